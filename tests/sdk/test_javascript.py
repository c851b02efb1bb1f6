"""The official JavaScript SDKs over a merged stream, through Node.js: one process tries everything, each test looks.

The packages of `package.json` are looked for in $LOOPWAY_NODE_MODULES, else in `node_modules` beside this file::

    npm install --prefix tests/sdk --no-package-lock --no-audit --no-fund
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from inprocess import BOTH, KEY
from sdk.loops import (
    BROKEN,
    INTERIM,
    ITERATIONS,
    completion,
    joined,
    message,
    read_completion,
    read_message,
    request,
    unwatched,
)

HERE = Path(__file__).parent
MODULES = Path(os.environ.get("LOOPWAY_NODE_MODULES") or HERE / "node_modules")
PACKAGES = ("@anthropic-ai/sdk", "openai")
READINGS = ("helper", "events", "json")

Made = dict[str, dict[str, Any]]


def missing() -> str:
    """Why these tests cannot run here; empty if they can."""
    if shutil.which("node") is None:
        return "Node.js is not installed"
    absent = [name for name in PACKAGES if not (MODULES / name / "package.json").is_file()]
    install = "npm install --prefix tests/sdk --no-package-lock"
    return f"{' and '.join(absent)} not in {MODULES}; run: {install}" if absent else ""


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "nothing is missing")


def name_of(dialect: str, reading: str, interim: str, model: str) -> str:
    return f"{dialect} {reading} {interim} {model}"


@pytest.fixture(scope="module")
def made(urls: dict[str, str]) -> Made:
    """What every client made of every stream."""
    cases = {
        name_of(dialect, reading, interim, model): {
            "dialect": dialect,
            "reading": reading,
            "url": urls[interim],
            "key": KEY,
            "body": (unwatched if model == "half" else request)(dialect, model),
        }
        for dialect in BOTH
        for reading in READINGS
        for interim in INTERIM
        for model in (*ITERATIONS, *BROKEN, "silent", "half")
        if model in ITERATIONS or (interim == "stream" and reading != "json")
    }
    done = subprocess.run(
        ["node", "clients.cjs"],
        cwd=HERE,
        env={**os.environ, "LOOPWAY_NODE_MODULES": str(MODULES)},
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Made = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("interim", INTERIM)
@pytest.mark.parametrize("model", ITERATIONS)
@pytest.mark.parametrize("reading", READINGS)
def test_content_ending_and_usage(made: Made, dialect: str, interim: str, model: str, reading: str) -> None:
    """`.stream().finalMessage()`, `.stream().finalChatCompletion()`, plain loops and JSON: what `interim_text` says."""
    one = made[name_of(dialect, reading, interim, model)]
    assert "raised" not in one, one
    got, streamed = one["got"], reading != "json"
    if dialect == "messages":
        wanted = message(model, interim, streamed=streamed)
    else:
        wanted = completion(model, interim, streamed=streamed)
    if reading == "events":
        want = joined(wanted)
        told = {**got, "usage": usage_of(got["usage"], want["usage"])}
        assert told == want
    elif dialect == "messages":
        assert read_message(got) == wanted
    else:
        told = read_completion(got)
        if streamed:  # its helper keeps only the last piece of what it does not know
            told["reasoning_content"] = wanted["reasoning_content"]
        assert told == wanted


def usage_of(got: dict[str, Any], like: Any) -> Any:
    if isinstance(like, dict):
        return {name: got.get(name) for name in like}
    return [got[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("model", BROKEN)
@pytest.mark.parametrize("reading", ["helper", "events"])
def test_what_goes_wrong_in_mid_stream_is_raised(made: Made, dialect: str, model: str, reading: str) -> None:
    """An error of the SDK's own, with the words of the event, behind the text so far."""
    one = made[name_of(dialect, reading, "stream", model)]
    assert (one["api"], one["text"]) == (True, "Seen."), one
    assert BROKEN[model] in one["message"]


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("reading", ["helper", "events"])
def test_half_an_event_of_a_stream_that_nobody_watches(made: Made, dialect: str, reading: str) -> None:
    """It has gone when upstream breaks off: Anthropic's SDK overlooks it, OpenAI's finds no JSON; both raise."""
    one = made[name_of(dialect, reading, "stream", "half")]
    assert one["text"] == "Seen."
    assert ("broke off" if dialect == "messages" else "JSON") in one["message"]


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("reading", ["helper", "events"])
def test_pings_are_as_if_absent(made: Made, dialect: str, reading: str) -> None:
    """Silences before the head and in the reply, several keepalives long, change nothing."""
    one = made[name_of(dialect, reading, "stream", "silent")]
    assert "raised" not in one, one
    assert one["text"] == "The end \u2603."
