"""Memory of many open streams: the gateway's resident set before, while they are open, and after them.

`python benchmarks/streams_memory.py` opens 500 streams of 1 MB each, three times: passed through, through an active
hook, and through an active hook to clients that do not read. It must not know how the gateway does it. Linux only:
it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

HOOK = """
from loopway import AgenticLoopHook


class Nothing(AgenticLoopHook):
    server_fulfilled_tool_names = frozenset({"mine"})

    async def async_should_run_agentic_loop(self, response, **more):
        return False, {}


hook = Nothing()
"""
STALL_SECONDS = 3.0
"""When no stream has gone on for so long, the clients that do not read have stopped all of them."""


def event(kind: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **members}).encode())


class Model:
    """A model server whose streams say so many bytes, stay open until they are told to end, and then end."""

    def __init__(self, size: int, piece: int) -> None:
        self.size, self.end = size, asyncio.Event()
        self.sent = self.said = self.streams = 0
        self.delta = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "x" * piece})

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.streams += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            usage = {"input_tokens": 1, "output_tokens": 1}
            message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            writer.write(event("message_start", message={**message, "stop_reason": None, "stop_sequence": None}))
            writer.write(event("content_block_start", index=0, content_block={"type": "text", "text": ""}))
            for _ in range(self.size // len(self.delta)):
                writer.write(self.delta)
                self.sent += len(self.delta)
                await writer.drain()
            self.said += 1
            await self.end.wait()
            writer.write(event("content_block_stop", index=0))
            writer.write(event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage=usage))
            writer.write(event("message_stop"))
            await writer.drain()
        writer.close()


class Client:
    """One stream's client."""

    def __init__(self) -> None:
        self.got = 0
        self.ended = False

    async def run(self, port: int, body: bytes, reads: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
        writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        last = b""
        await reads.wait()
        while b'"message_stop"' not in last:
            piece = await reader.read(1 << 16)
            if not piece:
                raise RuntimeError(f"the stream broke off: {last[-200:]!r}")
            self.got += len(piece)
            last = (last + piece)[-300:]
        self.ended = True
        writer.close()


@contextlib.contextmanager
def gateway(model_port: int) -> Iterator[tuple[int, int]]:
    """A gateway in a process of its own: its number and its port."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "measured.py").write_text(HOOK)
        config = {
            "server": {"port": 0, "admin_port": None, "max_concurrent_requests": 10_000},
            "auth": {"mode": "open"},
            "upstreams": {"here": {"base_url": f"http://127.0.0.1:{model_port}", "dialects": ["messages"]}},
            "models": [{"name": "m", "upstream": "here"}],
            "hooks": ["measured.hook"],
        }
        Path(folder, "loopway.yaml").write_text(json.dumps(config))
        command = [sys.executable, "-m", "loopway", "serve", "--config", f"{folder}/loopway.yaml"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if '"ready"' in line:
                    # A log that nobody reads would stop the gateway.
                    threading.Thread(target=process.stdout.read, daemon=True).start()
                    yield process.pid, int(json.loads(line)["url"].rsplit(":", 1)[1])
                    break
            else:
                raise RuntimeError("the gateway did not start")
        finally:
            process.terminate()
            process.wait(timeout=60)


def memory(pid: int, name: str = "VmRSS") -> float:
    """Mebibytes of a process: VmRSS now, VmHWM at most so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {name}")


async def until(condition: Any, model: Model | None = None) -> None:
    """Wait; with a model also end when it has not been able to send for a while."""
    sent, since = -1, time.monotonic()
    while not condition():
        await asyncio.sleep(0.1)
        if model is not None and model.sent != sent:
            sent, since = model.sent, time.monotonic()
        elif model is not None and time.monotonic() - since > STALL_SECONDS:
            return


@contextlib.asynccontextmanager
async def model_server(size: int, piece: int) -> AsyncIterator[tuple[Model, int]]:
    model = Model(size, piece)
    server = await asyncio.start_server(model.serve, "127.0.0.1", 0, backlog=1024, limit=1 << 16)
    async with server:
        yield model, server.sockets[0].getsockname()[1]


async def measure(name: str, count: int, size: int, piece: int, *, watched: bool, reading: bool) -> None:
    async with model_server(size, piece) as (model, model_port):
        with gateway(model_port) as (pid, port):
            tools = [{"name": "mine" if watched else "other", "input_schema": {"type": "object"}}]
            question = [{"role": "user", "content": "hello"}]
            request = {"model": "m", "max_tokens": 9, "stream": True, "messages": question, "tools": tools}
            body, reads = json.dumps(request).encode(), asyncio.Event()
            reads.set()
            warm = [Client() for _ in range(5)]  # what is loaded with the first requests is not counted
            model.end.set()
            await asyncio.gather(*(one.run(port, body, reads) for one in warm))
            model.end.clear()
            before, told = memory(pid), model.said
            if not reading:
                reads.clear()
            clients = [Client() for _ in range(count)]
            model.sent = 0
            began = time.monotonic()
            tasks = [asyncio.create_task(one.run(port, body, reads)) for one in clients]
            if reading:
                await until(lambda: model.said - told == count and all(one.got >= size * 0.99 for one in clients))
            else:
                await until(lambda: model.said - told == count, model)
            took, during, passed = time.monotonic() - began, memory(pid), model.sent / 2**20
            model.end.set()
            reads.set()
            await asyncio.gather(*tasks)
            assert all(one.ended for one in clients)
            await asyncio.sleep(1)
            print(
                f"{name:<42} before {before:6.0f} MB   open {during:6.0f} MB   most {memory(pid, 'VmHWM'):6.0f} MB   "
                f"after {memory(pid):6.0f} MB   upstream had sent {passed:5.0f} MB   {took:5.1f} s",
                flush=True,
            )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of each stream")
    parser.add_argument("--piece", type=int, default=400, help="characters of one event's text")
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 16_384)), hard))
    os.environ.pop("LOOPWAY_CONFIG", None)
    print(f"{given.streams} streams of {given.bytes / 2**20:g} MB, in events of {given.piece} characters")
    options = (given.streams, given.bytes, given.piece)
    await measure("passed through", *options, watched=False, reading=True)
    await measure("through a hook", *options, watched=True, reading=True)
    await measure("passed through, nobody reads", *options, watched=False, reading=False)
    await measure("through a hook, nobody reads", *options, watched=True, reading=False)


if __name__ == "__main__":
    asyncio.run(main())
