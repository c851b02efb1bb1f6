"""What a gateway leans on fails: its log, its collector of traces, its Redis. Requests do not."""

from __future__ import annotations

import fcntl
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

from faults.counted import rig, told, unharmed
from inprocess import BOTH, PATHS, request_body
from loopway import server_tool, state
from loopway.testing import Reply, ScriptedModel, call, text
from running import LONGEST_SECONDS, environment
from streams import message


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
def full_pipe() -> Iterator[int]:
    """The writing end of a pipe that somebody holds and nobody reads."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    try:
        yield writing
    finally:
        os.close(reading)
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
    "the log's reader stands still, no collector listens": (full_pipe, nobody_listens),
    "the log's disk is full, the collector never answers": (full_disk, nobody_answers),
}
"""By name: where the log goes, and where the traces go."""


HOOKS = """
import asyncio

from loopway import AgenticLoopHook, server_tool


class Probe(AgenticLoopHook):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        return f"there are {len(asyncio.all_tasks())} tasks" if data["model"] == "probe" else data


@server_tool(models=["m"])
async def look(n: int) -> str:
    \"\"\"Looks.\"\"\"
    return "found"


probe = Probe()
"""
WARM, REQUESTS = 8, 40
MORE = 3
"""Tasks and open files that come and go by themselves: a try to reach the collector."""


def looks_first(request: Any) -> Reply:
    return Reply(call("look", {"n": request.number})) if request.number % 2 else Reply(text("fine", pieces=1))


def held(client: httpx.Client, process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """The gateway's tasks and its open files."""
    told = client.post("/v1/messages", json=request_body("messages", "probe")).json()["error"]["message"]
    return int(told.split()[-2]), len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def ask(client: httpx.Client, number: int) -> None:
    """A loop on one of the four roads, and a request that is refused."""
    dialect, stream = BOTH[number % 2], bool(number & 2)
    answer = client.post(PATHS[dialect], json=request_body(dialect, tools=(), stream=stream))
    assert answer.status_code == 200
    assert answer.elapsed.total_seconds() < 2
    assert "fine" in answer.text
    assert '"error"' not in answer.text
    assert client.post(PATHS[dialect], content=b"{").status_code == 400


def test_surroundings(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Loops are answered as fast as ever, no task and no file is left, SIGTERM ends it in time with exit code 0."""
    with ExitStack() as stack:
        model = stack.enter_context(ScriptedModel({"m": looks_first, "probe": looks_first}))
        began = {name: _started(stack, tmp_path / str(number), model.url, *SURROUNDINGS[name])
                 for number, name in enumerate(SURROUNDINGS)}  # fmt: skip
        for name, (client, process) in began.items():
            with subtests.test(name):
                _until_ready(client, process)
                for number in range(WARM):
                    ask(client, number)
                before = held(client, process)
                for number in range(REQUESTS):
                    ask(client, number)
                assert [now - then <= MORE for now, then in zip(held(client, process), before, strict=True)] == [
                    True
                ] * 2
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
        "models": [{"name": "m", "upstream": "up"}, {"name": "probe", "upstream": "up"}],
        "hooks": ["probing.probe", "probing.look"],
    }
    (folder / "probing.py").write_text(HOOKS)
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


REDIS = [
    (fault, when, dialect, stream)
    for fault in ("dies", "hangs")
    for when in ("before it keeps", "before it finds", "while the tool runs")
    for dialect, stream in zip(BOTH, (fault == "dies", fault == "hangs"), strict=True)
]
"""Each road meets one of both faults, at each time."""


@pytest.mark.parametrize(("fault", "when", "dialect", "stream"), REDIS)
async def test_redis(
    fault: str, when: str, dialect: str, stream: bool, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In mid-exchange: the client has its call, and an answer to its result, with the kept half or without it."""
    url, process = redis
    monkeypatch.setattr(state, "_REDIS_SECONDS", 0.2)
    runs: list[int] = []

    def now(this: str) -> None:
        if this == when:
            process.send_signal(signal.SIGKILL if fault == "dies" else signal.SIGSTOP)

    @server_tool
    async def look(n: int) -> str:
        """Looks."""
        now("while the tool runs")
        runs.append(n)
        return "found"

    def script(request: Any) -> Reply:
        """A mixed reply to the first turn, and an answer to the history that comes back."""
        if len(request.body["messages"]) > 1:
            return Reply(text("end", pieces=1))
        now("before it keeps")
        return Reply(call("look", {"n": 1}, id="ours"), call("theirs", {}, id="yours"))

    async def converse() -> Any:
        body = request_body(dialect, tools=["theirs"], stream=stream)
        answer = await run.post(dialect, body)
        assert told(answer) == 200
        first = message(dialect, answer.content) if stream else answer.json()
        content = first["content"] if dialect == "messages" else None
        turn = first["message"] if stream and not content else {"role": "assistant", "content": content}
        if not (stream or content):
            turn = first["choices"][0]["message"]
        assert "yours" in json.dumps(turn)
        assert "ours" not in json.dumps(turn).replace("yours", "")
        now("before it finds")
        result: dict[str, Any] = {"role": "tool", "tool_call_id": "yours", "content": "done"}
        if dialect == "messages":
            block = {"type": "tool_result", "tool_use_id": "yours", "content": "done"}
            result = {"role": "user", "content": [block]}
        return await run.post(dialect, {**body, "messages": [*body["messages"], turn, result]})

    async with rig({}, [look], scripts={"m": script}, state={"redis_url": url}) as run:
        (answer,) = await unharmed(run, converse)
        assert told(answer) == 200
        assert "end" in answer.text
        found = when == "while the tool runs"
        assert runs == ([1] if found else [])
        assert ("found" in str(run.model.requests[-1].body)) == found
        assert [line for line in run.log.getvalue().splitlines() if "state_unreachable" in line]
