"""The log: which lines there are, what is in them, and that no log can fail an exchange.

Must not know how notes come about.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from loopway.engine.notes import Ended, Subject
from loopway.exchange import driver
from loopway.telemetry import content, logs
from loopway.testing import Reply, call
from served import running
from telemetry.test_tracing import END, PARENT, Puppet, ask, body, does, lookup

FORGED = '\n{"event": "exchange", "status": 200}\r\x1b[2K\u2028\x85\x00 \x9b'


@contextlib.contextmanager
def configured(stream: io.StringIO, form: logs.LogFormat = "json", level: logs.LogLevel = "info") -> Iterator[None]:
    root = logging.getLogger()
    before = list(root.handlers), root.level
    logs.configure(form=form, level=level, stream=stream)
    try:
        yield
    finally:
        root.handlers[:], root.level = before[0], before[1]
        root.setLevel(before[1])
        structlog.reset_defaults()


def subject(**more: Any) -> Subject:
    return Subject(**{"request_id": "r1", "dialect": "messages", "began": 0.0, "route": "/v1/messages", **more})


def ended(**more: Any) -> Ended:
    return Ended(**{"status": 200, "iterations": 1, "seconds": 0.5, **more})


async def test_one_line_per_exchange() -> None:
    """An exchange is one line with everything that a search asks for; no prompt, no reply, no key."""
    async with running(hooks=[Puppet()], script=[does("rerun"), END], key="secret-key") as served:
        await ask(served, headers={"x-request-id": "mine-1", "traceparent": PARENT})
        (line,) = served.lines("exchange")
        for name in ("timestamp", "seconds", "upstream_seconds", "hook_seconds"):
            assert line.pop(name)
        assert line == {
            "event": "exchange",
            "level": "info",
            "request_id": "mine-1",
            "trace_id": PARENT[3:35],
            "dialect": "messages",
            "model": "demo",
            "key": "tests",
            "route": "/v1/messages",
            "stream": False,
            "status": 200,
            "iterations": 2,
            "outcome": "skip",
            "tokens_input": 20,
            "tokens_output": 10,
        }
        for secret in ("secret-key", "how much is it", "four"):
            assert secret not in served.log.getvalue()


LINES: dict[str, tuple[list[Reply], dict[str, Any]]] = {
    "loop_aborted": ([does("rerun"), does("rerun")], {"reason": "fingerprint", "depth": 1, "level": "warning"}),
    "hook_failed": ([does("raise")], {"phase": "plan", "error": "RuntimeError", "level": "error"}),
    "upstream_failed": ([Reply(error=(429, "no"))], {"upstream": "here", "status": 429, "level": "warning"}),
    "tool_failed": ([Reply(call("lookup", {"n": -1})), END], {"tool": "lookup", "result": "error", "level": "warning"}),
}


@pytest.mark.parametrize("event", LINES)
async def test_line_per_trouble(event: str) -> None:
    """An abort, a failed hook, a failed upstream and a failed tool have a line of their own, with the request's id."""
    script, fields = LINES[event]
    async with running(hooks=[Puppet(), lookup], script=script) as served:
        await ask(served, headers={"x-request-id": "mine-1"})
        (line,) = served.lines(event)
        assert fields.items() <= line.items()
        assert line["request_id"] == "mine-1"
        assert [one["event"] for one in served.lines()] == [event, "exchange"]


class Broken(io.StringIO):
    """A stream that takes nothing."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def write(self, _: str) -> int:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "full"), BrokenPipeError(), BlockingIOError(), ValueError("I/O operation on closed file")],
    ids=["disk full", "closed pipe", "full pipe", "closed"],
)
async def test_stream_that_takes_nothing(error: Exception) -> None:
    """A log that cannot be written costs no exchange, and no library that logs sees the failure."""
    async with running(hooks=[Puppet()], script=[does("raise")]) as served:
        with configured(Broken(error)):
            answer = await served.http.post("/v1/messages", json=body())
            logging.getLogger("a.library").error("it failed")
        assert answer.status_code == 500
        assert answer.json()["error"]["message"].startswith("the hook")


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_forged_line(form: logs.LogFormat) -> None:
    """Whatever a client writes into a name stays inside its line."""
    stream = io.StringIO()
    with configured(stream, form):
        logs.Logs()(subject(model=FORGED, key_name=FORGED), ended(error="bad_request", error_text=FORGED, status=400))
        logging.getLogger("a.library").error("said %s", FORGED)
    said = stream.getvalue()
    assert len(said.splitlines()) == 2
    assert "\x1b[2K" not in said
    if form == "json":
        assert json.loads(said.splitlines()[0])["model"] == FORGED


def test_bounded() -> None:
    """A long name is cut."""
    stream = io.StringIO()
    with configured(stream):
        logs.Logs()(subject(model="x" * 10_000), ended())
    assert len(stream.getvalue()) < 1200


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [(PARENT, PARENT[3:35]), ("", None), ("nonsense", None), (PARENT.replace("0af7", "zzzz"), None)],
)
def test_trace_id_of_the_client(traceparent: str, trace_id: str | None) -> None:
    """Without tracing the client's own trace id is in the lines, if it sent one that is one."""
    stream = io.StringIO()
    with configured(stream):
        logs.Logs()(subject(traceparent=traceparent), ended())
    assert json.loads(stream.getvalue()).get("trace_id") == trace_id


@pytest.mark.parametrize(("level", "count"), [("debug", 1), ("info", 1), ("warning", 0), ("error", 0)], ids=str)
def test_level(level: logs.LogLevel, count: int) -> None:
    """The configured level is the least that is written."""
    stream = io.StringIO()
    with configured(stream, level=level):
        logs.Logs()(subject(), ended())
    assert len(stream.getvalue().splitlines()) == count


def test_text_for_people() -> None:
    """The form for people is one readable line."""
    stream = io.StringIO()
    with configured(stream, "text"):
        logs.Logs()(subject(model="claude"), ended())
    assert "exchange" in stream.getvalue()
    assert "claude" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@pytest.mark.parametrize(("switch", "shown"), [(None, False), ("false", False), ("true", True)])
@pytest.mark.parametrize("form", ["json", "text"])
def test_traceback(monkeypatch: pytest.MonkeyPatch, form: logs.LogFormat, switch: str | None, *, shown: bool) -> None:
    """A traceback says what was raised and where; what the exceptions say may be a prompt, and waits for the switch."""
    monkeypatch.delenv(content.VARIABLE, raising=False)
    if switch is not None:
        monkeypatch.setenv(content.VARIABLE, switch)
    stream = io.StringIO()
    with configured(stream, form):
        try:
            try:
                raise OSError(errno.ENOSPC, "No space left on device")
            except OSError as full:
                raise ValueError("the prompt") from full
        except ValueError:
            logging.getLogger("uvicorn.error").exception("Exception in ASGI application")
    said = stream.getvalue()
    assert ("the prompt" in said) is shown
    assert all(one in said for one in ("ValueError", "test_logs.py", "in test_traceback", "No space left on device"))


async def test_mistake_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody expected is a 500 that says nothing, and a line with its type and place."""

    async def mistaken(*_: object) -> None:
        raise ValueError("the prompt")

    monkeypatch.setattr(driver, "pass_through", mistaken)
    async with running(script=[END]) as served:
        answer = await ask(served)
        (line,) = served.lines("internal_error")
    assert answer.status_code == 500
    assert "the prompt" not in answer.text
    assert line["detail"].startswith("ValueError at test_logs.py:")
    assert "the prompt" not in json.dumps(line)
