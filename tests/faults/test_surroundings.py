"""What a gateway leans on fails: its log, its collector of traces, its Redis. Requests do not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import pytest
import yaml

from inprocess import BOTH, gateway_over, request_body
from loopway import server_tool, state
from loopway.testing import Reply, ScriptedModel, call, text
from running import LONGEST_SECONDS, environment


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def closed_pipe() -> Iterator[int]:
    """The writing end of a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


@contextmanager
def full_disk() -> Iterator[IO[str]]:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        yield full


@contextmanager
def nobody_listens() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def nobody_answers() -> Iterator[str]:
    """Connections are taken by the kernel, and nothing ever comes."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(64)
        yield f"http://127.0.0.1:{deaf.getsockname()[1]}"


SURROUNDINGS: dict[str, tuple[Callable[[], Any] | None, Callable[[], Any] | None]] = {
    "the log's reader has gone": (closed_pipe, None),
    "no collector listens": (None, nobody_listens),
    "the log's disk is full, the collector never answers": (full_disk, nobody_answers),
}
"""By name: where the log goes, and where the traces go."""


def test_surroundings(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Requests are answered as fast as ever, the process stays, and SIGTERM ends it in time with exit code 0."""
    with ExitStack() as stack:
        model = stack.enter_context(ScriptedModel({"m": lambda _: Reply(text("fine"))}))
        began = {name: _started(stack, tmp_path / str(number), model.url, *SURROUNDINGS[name])
                 for number, name in enumerate(SURROUNDINGS)}  # fmt: skip
        for name, (client, process) in began.items():
            with subtests.test(name):
                _until_ready(client, process)
                for _ in range(40):
                    answer = client.post("/v1/messages", json=request_body("messages", tools=()))
                    assert answer.status_code == 200
                    assert answer.elapsed.total_seconds() < 2
                    assert client.post("/v1/messages", content=b"{").status_code == 400
        for _, process in began.values():
            process.send_signal(signal.SIGTERM)
        told = time.monotonic()
        for name, (_, process) in began.items():
            with subtests.test(name):
                assert process.wait(LONGEST_SECONDS) == 0
                assert time.monotonic() - told < 12


def _started(
    stack: ExitStack, folder: Path, model_url: str, log: Callable[[], Any] | None, traces: Callable[[], Any] | None
) -> tuple[httpx.Client, subprocess.Popen[bytes]]:
    """A gateway that has been started, and a client for it."""
    port = free_port()
    folder.mkdir()
    config = {
        "server": {"port": port, "admin_port": None, "drain_seconds": 1},
        "auth": {"mode": "open"},
        "upstreams": {"up": {"base_url": model_url, "dialects": list(BOTH)}},
        "models": [{"name": "m", "upstream": "up"}],
    }
    (folder / "loopway.yaml").write_text(yaml.safe_dump(config))
    more = {}
    if traces is not None:
        more = {"OTEL_EXPORTER_OTLP_ENDPOINT": stack.enter_context(traces()), "OTEL_BSP_SCHEDULE_DELAY": "50"}
    process = subprocess.Popen(
        [sys.executable, "-m", "loopway", "serve"],
        cwd=folder,
        env=environment(**more),
        stderr=stack.enter_context(log()) if log is not None else subprocess.DEVNULL,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=5)), process


def _until_ready(client: httpx.Client, process: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + LONGEST_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)  # its log says nothing here
    raise AssertionError(f"not ready; exit code {process.poll()}")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A Redis of this test's own: its address and its process."""
    command = shutil.which("redis-server") or shutil.which("valkey-server")
    if command is None:
        pytest.skip("there is no redis-server on this machine")
    path = tmp_path / "redis.sock"
    process = subprocess.Popen(
        [command, "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    end = time.monotonic() + 10
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    yield f"unix://{path}", process
    process.kill()
    process.wait()


WHEN = ("before it keeps", "before it finds", "never")


@pytest.mark.parametrize("fault", ["dies", "hangs"])
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("dialect", BOTH)
async def test_redis(dialect: str, fault: str, when: str, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixed reply goes on: the client has its call, and an answer to its result, with the kept half or without."""
    if when == "never" and fault == "hangs":
        return
    url, process = redis
    monkeypatch.setattr(state, "_REDIS_SECONDS", 0.2)
    number = signal.SIGKILL if fault == "dies" else signal.SIGSTOP
    runs: list[int] = []

    @server_tool
    async def look(n: int) -> str:
        """Looks."""
        runs.append(n)
        return "found"

    script = [Reply(call("look", {"n": 1}, id="ours"), call("theirs", {}, id="yours")), Reply(text("end"))]
    async with gateway_over({"m": script}, [look], state={"redis_url": url}) as run:
        if when == "before it keeps":
            process.send_signal(number)
        body = request_body(dialect, tools=["theirs"])
        answer = await run.post(dialect, body)
        assert answer.status_code == 200
        first = answer.json()
        turn = (
            {"role": "assistant", "content": first["content"]}
            if dialect == "messages"
            else first["choices"][0]["message"]
        )
        assert "yours" in json.dumps(turn)
        assert "ours" not in json.dumps(turn).replace("yours", "")
        if when == "before it finds":
            process.send_signal(number)
        result: dict[str, Any] = {"role": "tool", "tool_call_id": "yours", "content": "done"}
        if dialect == "messages":
            block = {"type": "tool_result", "tool_use_id": "yours", "content": "done"}
            result = {"role": "user", "content": [block]}
        answer = await run.post(dialect, {**body, "messages": [*body["messages"], turn, result]})
        assert answer.status_code == 200
        assert "end" in answer.text
        assert runs == ([1] if when == "never" else [])
        lost = [line for line in run.log.getvalue().splitlines() if "state_unreachable" in line]
        assert bool(lost) == (when != "never")
