"""A client that sends what it is told, byte for byte, and shows what came back. This file must not know HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from inprocess import KEY, PATHS, request_body

LONGEST_SECONDS = 10.0


class Raw:
    """A connection.

    Attributes:
        got: What has come.
        closed: Whether the other side has ended it.
        dialect: Whose path is asked for where one of Messages is sent.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.got = b""
        self.closed = False
        self.dialect = "messages"

    async def send(self, *pieces: bytes) -> None:
        """Send; nothing if the other side has gone."""
        for piece in pieces:
            self.writer.write(piece.replace(PATHS["messages"].encode(), PATHS[self.dialect].encode()))
            try:
                await self.writer.drain()
            except OSError:
                return

    def half_close(self) -> None:
        """Say that nothing more comes."""
        self.writer.write_eof()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read until the condition holds or the other side has closed."""
        async with asyncio.timeout(LONGEST_SECONDS):
            while not self.closed and not condition():
                try:
                    piece = await self._reader.read(65536)
                except OSError:
                    piece = b""
                self.closed = not piece
                self.got += piece

    async def rest(self) -> bytes:
        """Read until the other side closes; everything."""
        await self.until(lambda: False)
        return self.got

    async def answers(self, count: int = 1) -> list[int]:
        """Read so many answers, or until the other side closes; their statuses."""
        await self.until(lambda: len(statuses(self.got)) >= count and whole(self.got))
        return statuses(self.got)


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[Raw]:
    """A connection that is closed where the block ends."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()


def statuses(got: bytes) -> list[int]:
    """The status of each answer; those of 100 are left out."""
    lines = [line for line in got.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    found = [
        line for line in got.replace(b"}HTTP/1.1 ", b"}\r\nHTTP/1.1 ").split(b"\r\n") if line.startswith(b"HTTP/1.1 ")
    ]
    assert len(found) >= len(lines)
    return [int(line.split()[1]) for line in found if not line.startswith(b"HTTP/1.1 100")]


def whole(got: bytes) -> bool:
    """Whether the last answer has as many bytes as it says."""
    head, _, body = got[got.rfind(b"HTTP/1.1 ") :].partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return got.endswith(b"0\r\n\r\n")


def request(
    *lines: bytes,
    body: bytes | None = None,
    path: bytes | None = None,
    length: int | None = None,
    method: bytes = b"POST",
    version: bytes = b"HTTP/1.1",
    dialect: str = "messages",
    key: str | None = KEY,
    framed: bool = True,
) -> bytes:
    """A request with more header lines, in order behind the usual ones.

    Args:
        body: Another body than a good one.
        length: Another content-length than the body's.
        framed: Whether there is a content-length at all.
    """
    payload = good(dialect) if body is None else body
    head = [b"%b %b %b" % (method, path or PATHS[dialect].encode(), version), b"host: gateway"]
    if key is not None:
        head.append(b"authorization: Bearer " + key.encode())
    if framed:
        head.append(b"content-length: %d" % (len(payload) if length is None else length))
    return b"\r\n".join([*head, *lines, b"", b""]) + payload


def good(dialect: str = "messages", model: str = "steady", **more: Any) -> bytes:
    """A body that the gateway takes."""
    return json.dumps(request_body(dialect, model, **more)).encode()
