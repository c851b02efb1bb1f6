"""A model server that does with its sockets whatever a test says, and an upstream that points to it.

This file must not know what is tested.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from loopway.upstream.client import Upstream
from loopway.upstream.pool import Target

SECRET = "sk-very-secret"


@dataclass
class Call:
    """One request as it came."""

    line: str
    lines: list[tuple[str, str]]
    body: bytes
    connection: int

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]

    @property
    def headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.lines}


@dataclass
class Link:
    """The server's end of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    def reset(self) -> None:
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has closed its end."""
        with contextlib.suppress(OSError):
            while await self.reader.read(65536):
                pass


Answer = bytes | Callable[[Call, Link], Awaitable[object]]
"""Bytes leave the connection open; a function says by a true result that it stays open."""


@dataclass
class Wire:
    """The server. The n-th request gets the n-th answer, the last one goes on for ever."""

    answers: list[Answer] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    open: int = 0
    connections: int = 0
    url: str = ""
    links: list[Link] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    def script(self, *answers: Answer) -> None:
        self.answers = list(answers)

    @staticmethod
    def reply(body: bytes = b'{"ok":true}', status: int = 200, *lines: str, length: int | None = None) -> bytes:
        size = len(body) if length is None else length
        head = [f"HTTP/1.1 {status} Scripted", f"content-length: {size}", "content-type: application/json", *lines]
        return "\r\n".join([*head, "", ""]).encode("latin-1") + body

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls, limit=1 << 22, backlog=512)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open += 1
        self.connections += 1
        link = Link(reader, writer)
        self.links.append(link)
        number = self.connections
        try:
            while await self._exchange(link, number):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._news.set()
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, link: Link, number: int) -> object:
        head = (await link.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        lines = [(name, value) for name, _, value in (line.partition(": ") for line in head[1:-2])]
        call = Call(head[0], lines, b"", number)
        call.body = await link.reader.readexactly(int(call.headers.get("content-length", "0")))
        self.calls.append(call)
        self._news.set()
        answer = self.answers[min(len(self.calls), len(self.answers)) - 1]
        if isinstance(answer, bytes):
            await link.send(answer)
            return True
        return await answer(call, link)


@pytest_asyncio.fixture
async def wire() -> AsyncIterator[Wire]:
    server = Wire()
    server.script(Wire.reply())
    await server.start()
    yield server
    await server.stop()


@dataclass
class Made:
    """What the factory made: every pause that an upstream took, in seconds."""

    default_url: str
    pauses: list[float] = field(default_factory=list)
    upstreams: list[Upstream] = field(default_factory=list)

    def __call__(self, **values: Any) -> Upstream:
        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)

        given = {"name": "far", "base_url": self.default_url, "api_key": SECRET, "max_retries": 0, **values}
        made = Upstream(Target(**given), sleep=sleep, draw=lambda: 0.5)
        self.upstreams.append(made)
        return made


@pytest_asyncio.fixture
async def upstream(wire: Wire) -> AsyncIterator[Made]:
    """Makes upstreams; behind the test no connection and no task of theirs may be left."""
    made = Made(wire.url)
    yield made
    for one in made.upstreams:
        await one.aclose()
    await wire.until(lambda: wire.open == 0)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    left = [task for task in others if "aiohttp" in repr(task) or "loopway" in repr(task)]
    assert not left


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A fresh self-signed certificate for 127.0.0.1, and its key."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        capture_output=True,
        check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("the openssl command is not here")
    return certificate, key


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
