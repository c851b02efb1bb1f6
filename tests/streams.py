"""A stream as its client sees it while it comes, replies in pieces, and notes that can be waited for.

This file must not know what a test wants to see.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from dialects.chat_completions.grammar import CHAT_GRAMMAR
from dialects.laws import MESSAGES_GRAMMAR, Grammar
from inprocess import KEY, PATHS, Run
from loopway.dialects.sse import Frame, Reader
from loopway.engine.notes import Ended, Note, Subject
from loopway.testing import Cut, Hold, Raw, Text, raw

GRAMMAR: dict[str, Grammar] = {"messages": MESSAGES_GRAMMAR, "chat_completions": CHAT_GRAMMAR}
NEVER = 30.0
"""Seconds that nothing here takes: a gate that nobody opens, a time-out that is not meant."""


class Notes(list[tuple[Subject, Note]]):
    """The notes of a gateway, so that a test can wait for one."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.notes)
        self._news = asyncio.Event()
        run.notes = self

    def append(self, told: tuple[Subject, Note]) -> None:
        super().append(told)
        self._news.set()

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Wait until the condition holds; it is asked again at every note. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def ended(self, count: int = 1, seconds: float = 5.0) -> Ended:
        """Wait until so many exchanges are over; how the last of them ended."""
        await self.until(lambda: len(self._ends()) >= count, seconds)
        return self._ends()[-1]

    def _ends(self) -> list[Ended]:
        return [note for _, note in self if isinstance(note, Ended)]


class Live:
    """An answer that is read as it comes. `raw` is what has come."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.raw = b""
        self._pieces = answer.aiter_raw()

    async def until(self, *parts: bytes, times: int = 1) -> None:
        """Read until all of these bytes are there, each so often."""
        while any(self.raw.count(part) < times for part in parts):
            async with asyncio.timeout(NEVER / 3):
                try:
                    self.raw += await anext(self._pieces)
                except StopAsyncIteration:
                    raise AssertionError(f"it ended without {parts!r}: {self.raw!r}") from None

    async def rest(self) -> bytes:
        """Read to the end; everything that came."""
        async with asyncio.timeout(NEVER / 2):
            async for piece in self._pieces:
                self.raw += piece
        return self.raw


@asynccontextmanager
async def live(
    run: Run, dialect: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> AsyncIterator[Live]:
    """One request whose answer is read as it comes; leaving early closes the connection."""
    async with run.stream(dialect, body, headers=headers) as answer:
        yield Live(answer)


async def ask(run: Run, dialect: str, body: Mapping[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One request on a connection that buffers little, so that who does not read it is slow."""
    end = socket.socket()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    end.setblocking(False)
    host, port = run.url.removeprefix("http://").split(":")
    await asyncio.get_running_loop().sock_connect(end, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=end, limit=64 * 1024)
    data = _json(body)
    lines = (f"POST {PATHS[dialect]} HTTP/1.1", "host: x", f"authorization: Bearer {KEY}", "connection: close")
    head = "\r\n".join([*lines, f"content-length: {len(data)}", "", ""])
    writer.write(head.encode() + data)
    return reader, writer


def frames(stream: bytes) -> list[Frame]:
    """The events of a stream, which must end with a whole one."""
    reader = Reader()
    found = reader.feed(stream)
    assert reader.rest() == b""
    return found


def message(dialect: str, stream: bytes) -> dict[str, Any]:
    """The one valid message of a stream; fails with what breaks the grammar."""
    events = frames(stream)
    assert GRAMMAR[dialect].breaches(events, ended=True) == []
    return GRAMMAR[dialect].fold(events)


def words(dialect: str, stream: bytes) -> str:
    """All text of a stream, broken off or not."""
    return GRAMMAR[dialect].text([one for one in frames(stream) if not is_error(one)])


def calls(dialect: str, stream: bytes) -> list[str]:
    """The names of the tools that the one valid message of a stream calls."""
    return GRAMMAR[dialect].calls(message(dialect, stream))


def is_error(frame: Frame) -> bool:
    """Whether an event is an error."""
    return frame.event == b"error" or (frame.data or b"").replace(b" ", b"").startswith(b'{"error":')


def error(dialect: str, stream: bytes) -> dict[str, Any]:
    """The error that ends a stream: in the dialect's shape, the only one, behind a valid beginning, the last event."""
    events = frames(stream)
    assert [number for number, one in enumerate(events) if is_error(one)] == [len(events) - 1], stream
    assert GRAMMAR[dialect].breaches(events[:-1], ended=False) == []
    last = events[-1]
    told: dict[str, Any] = json.loads(last.data or b"")
    if dialect == "messages":
        assert (last.event, told["type"]) == (b"error", "error")
    else:
        assert last.event == b""
    assert {"type", "message"} <= told["error"].keys()
    shown: dict[str, Any] = told["error"]
    return shown


def event(kind: str, **members: Any) -> bytes:
    """An event of Messages."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _json({"type": kind, **members}))


def delta(words: str, index: int = 0) -> bytes:
    """A piece of text of Messages."""
    return event("content_block_delta", index=index, delta={"type": "text_delta", "text": words})


def chunk(words: str | None = None, **delta: Any) -> bytes:
    """A chunk of Chat Completions as it is in the first reply of a scripted model: text, or another delta."""
    if words is not None:
        delta["content"] = words
    head = {"id": "chatcmpl-000002", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"}
    return b"data: %b\n\n" % _json({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def around(dialect: str) -> tuple[bytes, bytes]:
    """What a scripted model must say around pieces of text that are sent as bytes."""
    if dialect == "messages":
        start = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        return start, event("content_block_stop", index=0)
    return b": in front\n\n", b": behind\n\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def said(dialect: str, *parts: str | Hold | Raw | Cut, index: int = 0) -> list[Any]:
    """Text that the model says in these pieces; it can be held between any two events.

    Args:
        index: The block's index in Messages; the scripted model counts its other blocks from 0.
    """
    if dialect != "messages":
        return [Text((part,)) if isinstance(part, str) else part for part in parts]
    start = event("content_block_start", index=index, content_block={"type": "text", "text": ""})
    pieces = [raw(delta(part, index)) if isinstance(part, str) else part for part in parts]
    return [raw(start), *pieces, raw(event("content_block_stop", index=index))]
