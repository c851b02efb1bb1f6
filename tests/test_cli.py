"""The command line: exit codes, what it prints, where the configuration comes from, and how signals end it."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from loopway import __version__
from loopway.cli import main
from loopway.testing import Reply, ScriptedModel, text
from running import Running, run

HOOK = """
from loopway import AgenticLoopHook

class Watches(AgenticLoopHook):
    server_fulfilled_tool_names = frozenset({"b_tool", "a_tool"})

    async def async_should_run_agentic_loop(self, response, **more):
        return False, {}

hook = Watches()
"""
ASK = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]}


def good(**changed: Any) -> dict[str, Any]:
    """A configuration that can be served, at free ports."""
    return {
        "server": {"port": 0, "admin_port": 0, "drain_seconds": 20},
        "auth": {"mode": "open"},
        "upstreams": {"up": {"base_url": "http://127.0.0.1:9", "dialects": ["messages"], "max_retries": 0}},
        "models": [{"name": "m", "upstream": "up"}],
        **changed,
    }


def written(folder: Path, config: dict[str, Any], name: str = "loopway.yaml") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test in a folder of its own, without the variable; what it adds to the Python path goes again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPWAY_CONFIG", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


# --- usage ---


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--version"], 0, f"loopway {__version__}"),
        (["--help"], 0, "serve"),
        (["check", "--help"], 0, "LOOPWAY_CONFIG"),
        ([], 2, "usage: loopway"),
        (["fly"], 2, "invalid choice: 'fly'"),
        (["serve", "--port", "many"], 2, "invalid int value: 'many'"),
        (["serve", "--workers", "0"], 2, "'0'; write a whole number of at least 1"),
        (["serve", "--workers", "two"], 2, "'two'; write a whole number of at least 1"),
        (["serve", "--prot", "1"], 2, "unrecognized arguments"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else None,
)
def test_usage(arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Good usage is 0, bad usage is 2 and says what is wrong."""
    try:
        ended = main(arguments)
    except SystemExit as left:
        ended = int(left.code or 0)
    printed = capsys.readouterr()
    assert ended == code
    assert said in (printed.err if code and arguments else printed.out)


def test_module() -> None:
    """`python -m loopway` is the same command."""
    assert run("--version") == (0, f"loopway {__version__}\n")


# --- check ---


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` prints a line per upstream, model and hook, and exits 0."""
    (tmp_path / "cli_hooks.py").write_text(HOOK)
    models = [
        {"name": "m", "upstream": "up", "model": "theirs", "max_agentic_loops": 0, "fallback": "n"},
        {"name": "n", "upstream": "up"},
    ]
    config = written(tmp_path, good(models=models, hooks=["cli_hooks.hook"], loop={"max_agentic_loops": 4}))
    assert main(["check", "--config", str(config)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "upstream up: http://127.0.0.1:9 speaks messages",
        "model m: theirs at up, at most 0 reruns, falls back to n",
        "model n: n at up, at most 4 reruns",
        "hook cli_hooks.hook: Watches watches a_tool, b_tool",
        "good",
    ]


def test_check_says_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` tells all errors at once, each with file, key path and what to write, and exits 2."""
    wrong = good(hooks=["cli_nowhere.hook"], extra=1, loop={"max_agentic_loops": True})
    config = written(tmp_path, wrong)
    assert main(["check", "--config", str(config)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "3 errors; nothing was started"
    assert all(line.startswith(f"{config}: ") for line in lines[:-1])
    for where, what in (("extra", ""), ("loop.max_agentic_loops", "write"), ("hooks[0]", "no module 'cli_nowhere'")):
        assert [line for line in lines if f": {where}: " in line and what in line], where


def test_check_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a file in LiteLLM's shape says in vain is a warning, and the file is good."""
    params = {"model": "anthropic/claude", "api_key": "k", "rpm": 10}
    config = written(tmp_path, {"model_list": [{"model_name": "m", "litellm_params": params}]})
    assert main(["check", "--config", str(config)]) == 0
    printed = capsys.readouterr()
    assert "warning: " in printed.err
    assert "rpm" in printed.err
    assert printed.out.endswith("good\n")


# --- which file ---


@pytest.mark.parametrize(
    ("flag", "variable", "model"),
    [(False, False, "here"), (False, True, "variable"), (True, True, "flag")],
    ids=["./loopway.yaml", "$LOOPWAY_CONFIG", "--config"],
)
def test_which_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    flag: bool,
    variable: bool,
    model: str,
) -> None:
    """--config wins over $LOOPWAY_CONFIG, which wins over ./loopway.yaml."""
    for name, file in (("here", "loopway.yaml"), ("variable", "b.yaml"), ("flag", "c.yaml")):
        written(tmp_path, good(models=[{"name": name, "upstream": "up"}]), file)
    if variable:
        monkeypatch.setenv("LOOPWAY_CONFIG", "b.yaml")
    assert main(["check", *(["--config", "c.yaml"] if flag else [])]) == 0
    assert f"model {model}:" in capsys.readouterr().out


def test_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not there is named, and that is a bad configuration."""
    assert main(["check", "--config", "nowhere.yaml"]) == 2
    assert "nowhere.yaml" in capsys.readouterr().err


# --- serve ---


@pytest.fixture
def taken() -> Any:
    """A port that somebody else listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.mark.parametrize(("which", "workers"), [("port", "1"), ("admin_port", "1"), ("port", "2")])
def test_port_in_use(tmp_path: Path, taken: int, which: str, workers: str) -> None:
    """A port in use is exit 1 and one line that names it."""
    config = written(tmp_path, good(server={"port": 0, "admin_port": 0, which: taken}))
    code, said = run("serve", "--config", str(config), "--workers", workers)
    assert code == 1
    (line,) = said.splitlines()
    assert re.search(rf"127\.0\.0\.1:{taken}: .*in use", line)


def test_demo_port_in_use(taken: int) -> None:
    """The demo says which port is in use and which flag takes another."""
    code, said = run("demo", "--port", str(taken))
    assert code == 1
    (line,) = said.splitlines()
    assert f"127.0.0.1:{taken}" in line
    assert "in use" in line
    assert "--port" in line


def test_flags_win(tmp_path: Path, taken: int) -> None:
    """--host and --port win over the file."""
    config = written(tmp_path, good(server={"host": "127.0.0.2", "port": taken, "admin_port": None}))
    with Running("serve", "--config", str(config), "--host", "127.0.0.1", "--port", "0") as gateway:
        ready = gateway.ready()
        url = httpx.URL(ready["url"])
        assert url.host == "127.0.0.1"
        assert url.port != taken
        assert "admin_url" not in ready
        assert httpx.get(f"{url}/readyz").status_code == 200
        assert httpx.get(f"{url}/metrics").status_code == 200
        assert gateway.end(signal.SIGINT) == 0


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_no_port(tmp_path: Path, command: str) -> None:
    """A number that is no port is bad usage."""
    written(tmp_path, good())
    code, said = run(command, "--port", "70000")
    assert code == 2
    assert "--port: is 70000; write a whole number from 0 to 65535" in said


def test_serve_refuses(tmp_path: Path) -> None:
    """A bad configuration is exit 2, and nothing listens."""
    config = written(tmp_path, good(models=[{"name": "m", "upstream": "nobody"}]))
    code, said = run("serve", "--config", str(config))
    assert code == 2
    assert "models[0].upstream" in said
    assert "ready" not in said


async def draining(gateway: Running, url: str) -> None:
    """Send SIGTERM, and wait until the gateway says that it drains."""
    gateway.process.send_signal(signal.SIGTERM)
    async with httpx.AsyncClient() as client:
        while (await client.get(f"{url}/readyz")).status_code != 503:
            pass
        assert (await client.get(f"{url}/healthz")).status_code == 200


@pytest.mark.parametrize("signals", [1, 2])
async def test_signals(tmp_path: Path, signals: int) -> None:
    """SIGTERM lets an open exchange finish and ends with 0; a second one ends at once."""
    gate = asyncio.Event()
    async with ScriptedModel({"m": [Reply(text("Good day."), gate=gate)]}) as model:
        upstreams = {"up": {"base_url": model.url, "dialects": ["messages"]}}
        config = written(tmp_path, good(upstreams=upstreams))
        with Running("serve", "--config", str(config)) as gateway:
            ready = await asyncio.to_thread(gateway.ready)
            async with httpx.AsyncClient(timeout=20) as client:
                asking = asyncio.create_task(client.post(ready["url"] + "/v1/messages", json=ASK))
                await model.until(lambda: bool(model.requests))
                await draining(gateway, ready["admin_url"])
                if signals == 1:
                    gate.set()
                    answer = await asking
                    assert answer.json()["content"] == [{"type": "text", "text": "Good day."}]
                    assert await asyncio.to_thread(gateway.wait) == 0
                    assert '"stopped"' in gateway.said
                else:
                    gateway.process.send_signal(signal.SIGTERM)
                    assert await asyncio.to_thread(gateway.wait) == 1
                    with pytest.raises(httpx.TransportError):
                        await asking


def test_workers(tmp_path: Path) -> None:
    """Two workers serve on one port, and SIGTERM ends them with 0."""
    with ScriptedModel({"m": lambda _request: Reply(text("Good day."))}) as model:
        upstreams = {"up": {"base_url": model.url, "dialects": ["messages"]}}
        config = written(tmp_path, good(upstreams=upstreams))
        with Running("serve", "--config", str(config), "--workers", "2") as gateway:
            ready = gateway.ready()
            assert ready["workers"] == 2
            answer = httpx.post(ready["url"] + "/v1/messages", json=ASK, timeout=20)
            assert answer.json()["stop_reason"] == "end_turn"
            assert "loopway_requests_total" in httpx.get(ready["admin_url"] + "/metrics", timeout=20).text
            assert gateway.end() == 0
            assert '"stopped"' in gateway.said
