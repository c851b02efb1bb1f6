"""The answer of an upstream while its body is on the way, and who gives its connection back.

This file must not know what the body says, nor when a call is tried again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import httpx

from loopway.errors import Broken
from loopway.upstream.errors_table import TRANSPORT_ERRORS, translate
from loopway.upstream.inflate import InflateError, Inflater
from loopway.upstream.transport import Body, Received

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator


class UpstreamResponse:
    """The answer of an upstream: its head is here, its body comes when it is asked for.

    Whoever has one reads it to its end or calls `aclose`; cancellation while reading closes it.

    Attributes:
        headers: The header lines, names in lower case.
        head_size: Bytes of them.
        length: Bytes that the body says to have as it travels, or None.
    """

    def __init__(self, upstream: str, response: httpx.Response) -> None:
        self.upstream = upstream
        self.status: int = response.status_code
        stream = response.stream
        if not isinstance(stream, httpx.AsyncByteStream):
            raise TypeError("the transport gave a response without an asynchronous stream")
        self._stream = stream
        # Who stands between may have put a stream or headers of its own into the answer.
        readable = stream if isinstance(stream, Body) else _Iterated(stream)
        self._next: Callable[[], Awaitable[bytes]] = readable.read_some
        raw = response.lines if isinstance(response, Received) else response.headers.raw
        self.headers: list[tuple[bytes, bytes]] = []
        self.head_size = 0
        self.length: int | None = None
        for given, value in raw:
            name = given.lower()
            self.headers.append((name, value))
            self.head_size += len(name) + len(value) + 4
            if name == b"content-length" and value.isdigit():
                self.length = int(value)
        self._over = False
        self._whole = False

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by its lower-case name."""
        return next((value for known, value in self.headers if known == name), None)

    @property
    def encoded(self) -> bool:
        """Whether the body has a content-encoding, although none was wanted."""
        return (self.header(b"content-encoding") or b"identity").strip().lower() not in {b"identity", b""}

    def raw_chunks(self) -> AsyncIterator[bytes]:
        """The body as it travels, in pieces as they come. Raises `Broken` and `Silent`."""
        return _Raw(self)

    def chunks(self) -> AsyncIterator[bytes]:
        """The body without its content-encoding. Raises `Broken`, also for one that is not known here."""
        if not self.encoded:
            return _Raw(self)
        encoding = (self.header(b"content-encoding") or b"").strip().lower()
        return _Plain(self, encoding)

    async def read(self, most: int, *, raw: bool = False) -> bytes:
        """The whole body.

        Args:
            most: Bytes that it may have; raises `Broken` if it has more.
            raw: Leave a content-encoding as it is.
        """
        parts: list[bytes] = []
        size = 0
        plain = None if raw or not self.encoded else self.chunks()
        while True:
            part = await self.next_piece() if plain is None else await anext(plain, None)
            if part is None:
                break
            size += len(part)
            if size > most:
                await self.aclose()
                raise Broken(self.upstream, f"the answer of the upstream {self.upstream!r} has more than {most} bytes")
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def aclose(self) -> None:
        """Give the connection up: back to the pool if the body was read to its end, else closed at once."""
        if self._over:
            return
        self._over = True
        with contextlib.suppress(*TRANSPORT_ERRORS):
            await self._stream.aclose()

    async def next_piece(self) -> bytes | None:
        """The next piece of the body as it travels, or None at its end. Raises `Broken` and `Silent`."""
        if self._whole:
            return None
        if self._over:
            raise Broken(self.upstream, f"the answer of the upstream {self.upstream!r} was closed")
        try:
            piece = await self._next()
        except TRANSPORT_ERRORS as error:
            await self.aclose()
            raise translate(self.upstream, error, "body") from error
        except BaseException:
            await self.aclose()
            raise
        if piece:
            return piece
        self._whole = True
        await self.aclose()
        return None


class _Iterated:
    """The body of any httpx stream, piece by piece."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._pieces = aiter(stream)

    async def read_some(self) -> bytes:
        """The next piece; nothing at its end."""
        async for piece in self._pieces:
            if piece:
                return piece
        return b""


class _Raw:
    """Iterates over a body without being a generator: nothing is left to finalise when it is dropped."""

    def __init__(self, response: UpstreamResponse) -> None:
        self._response = response

    def __aiter__(self) -> _Raw:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._response.next_piece()
        if piece is None:
            raise StopAsyncIteration
        return piece


class _Plain:
    """Iterates over a body and undoes its content-encoding."""

    def __init__(self, response: UpstreamResponse, encoding: bytes) -> None:
        self._response = response
        self._inflater = Inflater(encoding)
        self._ready: Iterator[bytes] = iter(())

    def __aiter__(self) -> _Plain:
        return self

    async def __anext__(self) -> bytes:
        try:
            while True:
                for piece in self._ready:
                    return piece
                data = await self._response.next_piece()
                if data is None:
                    self._inflater.end()
                    break
                self._ready = self._inflater.feed(data)
        except InflateError as error:
            await self._response.aclose()
            upstream = self._response.upstream
            raise Broken(
                upstream,
                f"the upstream {upstream!r} sent a body with a content-encoding that cannot be undone, "
                "although it was asked for none; switch compression off there",
            ) from error
        raise StopAsyncIteration
