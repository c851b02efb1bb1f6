"""Upstreams that fail in every way that was thought of: a right answer or a clear error, and nothing is left of it.

What the client of a stream is told behind the first byte is held by `tests/exchange/test_failing.py`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from inprocess import BOTH, KEY, PATHS, Run, request_body
from puppets import text_of
from streams import frames, is_error

from faults.counted import rig, unharmed
from loopway.dialects.table import DIALECTS
from loopway.exchange import json_road, stream_road
from upstream.conftest import Answer, Call, Link

SILENCE = 0.3
"""`read_timeout_seconds` here."""
LARGEST = 300_000
"""Bytes that a reply may have here which is read whole, or folded."""
JSON, EVENTS = b"content-type: application/json\r\n", b"content-type: text/event-stream\r\n"


def dialect_of(call: Call) -> str:
    return "messages" if call.target.startswith("/v1/messages") else "chat_completions"


def whole(call: Call) -> tuple[bytes, bytes]:
    """A good answer to a call, JSON or stream: its content-type and its body."""
    dialect = dialect_of(call)
    reply = text_of(dialect, "fine")
    if b'"stream":true' not in call.body.replace(b'": ', b'":'):
        return JSON, json.dumps(reply).encode()
    return EVENTS, b"".join(frame.raw for frame in DIALECTS[dialect].render(reply))


def sent(
    *lines: bytes, status: bytes = b"200 OK", body: bytes | None = None, length: int | None = None, front: bytes = b""
) -> Answer:
    """An answer with more header lines, another status, body, length, or bytes in front."""

    async def answer(call: Call, link: Link) -> object:
        kind, good = whole(call)
        payload = good if body is None else body
        size = len(payload) if length is None else length
        await link.send(
            front + b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%b%b\r\n" % (status, size, kind, b"".join(lines)) + payload
        )
        return length is None

    return answer


def half(then: Callable[[Link], Awaitable[object]]) -> Answer:
    """Half of a good answer, then something else."""

    async def answer(call: Call, link: Link) -> object:
        kind, body = whole(call)
        await link.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n" % (len(body), kind) + body[: len(body) // 2])
        return await then(link)

    return answer


async def reset(_call: Any, link: Link) -> None:
    link.reset()


async def silent(_call: Any, link: Link) -> None:
    await link.gone()


async def closed(*_: Any) -> None:
    pass


async def trickles(call: Call, link: Link) -> bool:
    kind, body = whole(call)
    for byte in b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n" % (len(body), kind) + body:
        await link.send(bytes([byte]))
        await asyncio.sleep(0)
    return True


async def endless(_call: Call, link: Link, piece: bytes = b": more\n\n" * 500) -> None:
    await link.send(b"HTTP/1.1 200 OK\r\n" + EVENTS + b"\r\n")
    while True:  # until the connection is closed, which raises
        await link.send(piece)
        await asyncio.sleep(0)


def bomb(size: int = 50_000_000) -> bytes:
    """Some KB that unpack to a huge reply."""
    head, tail = json.dumps(text_of("messages", "@")).encode().split(b"@")
    return gzip.compress(head + b"x" * size + tail)


@dataclass(frozen=True)
class Fault:
    """What the server does, and what the client has then.

    Attributes:
        does: The server's answer.
        watched, unwatched: The outcome where a hook watches the exchange, and where none does. 200 is the right answer,
            "passed" whatever the server sent, unchanged, "broken" an error in the stream or a cut connection, another
            number an error with this status.
        stream: The outcome of a stream where it is not the same.
    """

    does: Answer
    watched: int | str
    unwatched: int | str
    stream: int | str | None = None


FAULTS: dict[str, Fault] = {
    "resets": Fault(reset, 502, 502),
    "closes": Fault(closed, 502, 502),
    "says-nothing": Fault(silent, 504, 504),
    "stalls-in-its-head": Fault(lambda _, link: _then(link, b"HTTP/1.1 200 OK\r\ncont", silent), 504, 504),
    "stalls-in-its-body": Fault(half(lambda link: silent(None, link)), 504, 504, stream="broken"),
    "breaks-off-in-its-body": Fault(half(lambda link: closed()), 502, 502, stream="broken"),
    "resets-in-its-body": Fault(half(lambda link: reset(None, link)), 502, 502, stream="broken"),
    "sends-byte-after-byte": Fault(trickles, 200, 200),
    "is-no-http-server": Fault(lambda _, link: _then(link, b"SSH-2.0-OpenSSH_9.6\r\n", closed), 502, 502),
    "sends-binary": Fault(lambda _, link: _then(link, bytes(range(256)) * 40, closed), 502, 502),
    "is-longer-than-it-says": Fault(sent(length=20), 502, "passed", stream="broken"),
    "is-shorter-than-it-says": Fault(sent(length=5000), 502, 502, stream="broken"),
    "lies-in-two-lengths": Fault(sent(b"content-length: 3\r\n"), 502, 502),
    "has-a-length-and-chunks": Fault(sent(b"transfer-encoding: chunked\r\n"), 502, 502),
    "has-chunks-that-are-none": Fault(
        lambda call, link: _then(
            link, b"HTTP/1.1 200 OK\r\n%btransfer-encoding: chunked\r\n\r\nxyz\r\n" % whole(call)[0], silent
        ),
        502, "broken", stream="broken",
    ),
    "says-continue-first": Fault(sent(front=b"HTTP/1.1 100 Continue\r\n\r\n" * 3), 200, 200),
    "says-early-hints-first": Fault(sent(front=b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"), 200, 200),
    "switches-protocols": Fault(
        lambda _, link: _then(link, b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", silent),
        502, 502,
    ),
    "redirects": Fault(sent(b"location: http://127.0.0.1:1/\r\n", status=b"307 Elsewhere"), 502, 502),
    "not-modified": Fault(lambda _, link: _then(link, b"HTTP/1.1 304 No\r\n\r\n", kept), 502, 502),
    "has-no-content": Fault(lambda _, link: _then(link, b"HTTP/1.1 204 No\r\n\r\n", kept), 502, "passed", stream="broken"),
    "has-a-status-of-its-own": Fault(sent(status=b"999 Denied"), 502, 502),
    "has-headers-of-60-KB": Fault(sent(b"x-a: %b\r\n" % (b"y" * 60_000)), 200, 200),
    "has-headers-of-600-KB": Fault(sent(b"x-a: %b\r\n" % (b"y" * 60_000) * 10), 502, 502),
    "has-2000-headers": Fault(sent(b"".join(b"x-%d: y\r\n" % number for number in range(2000))), 502, 502),
    "has-a-header-on-two-lines": Fault(sent(b"request-id: a\r\n b\r\n"), 502, 502),
    "has-a-nul-in-a-header": Fault(sent(b"request-id: a\0b\r\n"), 502, 502),
    "has-a-bare-cr-in-a-header": Fault(sent(b"request-id: a\rset-cookie: b\r\n"), 502, 502),
    "has-a-bell-in-a-header": Fault(sent(b"request-id: a\x07b\r\n"), 502, 502),
    "has-an-empty-body": Fault(sent(body=b""), 502, "passed", stream="broken"),
    "says-what-is-no-json": Fault(sent(body=b"<html>Welcome to nginx</html>"), 502, "passed", stream="broken"),
    "nests-too-deeply": Fault(sent(body=b"[" * 100_000), 502, "passed", stream="broken"),
    "sends-no-utf-8": Fault(sent(body=b'{"content":"\xff\xfe"}'), 502, "passed", stream="broken"),
    "sends-a-bomb": Fault(sent(b"content-encoding: gzip\r\n", body=bomb()), 502, "passed", stream="broken"),
    "uses-an-unknown-encoding": Fault(sent(b"content-encoding: br\r\n"), 502, "passed", stream="broken"),
    "fails-without-an-end": Fault(lambda _, link: _flood(link, b"HTTP/1.1 500 No\r\n" + JSON + b"\r\n"), 502, 502),
    "sends-more-than-a-reply-has": Fault(sent(body=b'{"a":"' + b"x" * LARGEST + b'"}'), 502, "passed", stream="broken"),
}  # fmt: skip


async def _then(link: Link, data: bytes, then: Callable[..., Awaitable[object]]) -> object:
    await link.send(data)
    return await then(None, link)


async def kept(*_: Any) -> bool:
    return True


async def _flood(link: Link, head: bytes) -> None:
    await link.send(head)
    while True:
        await link.send(b"x" * 60_000)
        await asyncio.sleep(0)


async def outcome(run: Run, dialect: str, body: dict[str, Any]) -> int | str:
    """What a client has of an exchange: 200, another status in the dialect's shape, "passed" or "broken"."""
    content = bytearray()
    headers = {"authorization": f"Bearer {KEY}"}
    try:
        async with run.client.stream("POST", PATHS[dialect], json=body, headers=headers) as answer:
            async for piece in answer.aiter_raw():
                content += piece
    except httpx.HTTPError:
        return "broken"
    raw = bytes(content)
    if answer.status_code >= 400:
        told = json.loads(raw)
        assert isinstance(told["error"]["message"], str)
        assert answer.headers["x-request-id"]
        return answer.status_code
    if b'"fine"' in raw and (not body.get("stream") or DIALECTS[dialect].tail in raw):
        return 200
    if raw and body.get("stream") and is_error(frames(raw)[-1]):
        return "broken"
    return "passed"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_road, "LARGEST_REPLY", LARGEST)
    monkeypatch.setattr(stream_road, "LARGEST_REPLY", LARGEST)


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("watched", [True, False], ids=["watched", "unwatched"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_upstream(dialect, watched, stream, subtests):
    """The client has the outcome of the table, the exchange beside is whole, and no task, connection or file is left."""
    answers = {name: fault.does for name, fault in FAULTS.items()}
    async with rig(answers, wire={"read_timeout_seconds": SILENCE}) as run:
        for name, fault in FAULTS.items():
            body = request_body(dialect, name, tools=("mine",) if watched else ("theirs",), stream=stream)
            wanted = fault.watched if watched else fault.unwatched
            if stream and wanted != 200:
                wanted = fault.stream or wanted
            with subtests.test(name):
                got = await unharmed(run, lambda body=body: outcome(run, dialect, body), dialect=dialect)
                assert got == [wanted] * 2


@pytest.mark.parametrize("dialect", BOTH)
async def test_upstream_that_is_not_there(dialect, subtests):
    """A port where nobody listens and a name that does not resolve: 502, and it says which of both."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ports = {"refuses": "cannot be reached", "unknown": "does not resolve"}
        urls = {"refuses": f"http://127.0.0.1:{taken.getsockname()[1]}", "unknown": "http://no-such-host.invalid"}
        async with rig(
            {},
            upstreams={
                name: {"base_url": url, "dialects": list(BOTH), "max_retries": 0} for name, url in urls.items()
            },
            models=[{"name": name, "upstream": name} for name in urls],
        ) as run:
            for name, text in ports.items():
                with subtests.test(name):
                    body = request_body(dialect, name)
                    for answer in await unharmed(run, lambda body=body: run.post(dialect, body), dialect=dialect):
                        assert answer.status_code == 502
                        assert text in answer.json()["error"]["message"]


@pytest.mark.parametrize("dialect", BOTH)
async def test_a_stream_that_never_ends_is_cut_where_it_is_folded(dialect):
    """Comments without end: a watched stream ends with an error when it is longer than a reply may be."""
    async with rig({"endless": endless}) as run:
        body = request_body(dialect, "endless", stream=True)
        assert await unharmed(run, lambda: outcome(run, dialect, body), dialect=dialect) == ["broken"] * 2


@pytest.mark.parametrize("dialect", BOTH)
async def test_a_stream_that_never_ends_holds_nothing_where_it_passes(dialect):
    """An unwatched client reads a megabyte of it and leaves: the call is closed."""

    async def some(run: Run) -> int:
        size = 0
        async with run.stream(dialect, request_body(dialect, "endless", tools=())) as answer:
            async for piece in answer.aiter_raw():
                size += len(piece)
                if size > 1_000_000:
                    break
        return size

    async with rig({"endless": endless}) as run:
        assert all(size > 1_000_000 for size in await unharmed(run, lambda: some(run), dialect=dialect))


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "unwatched"])
async def test_a_trickle_is_bounded_by_the_request(watched):
    """A server that sends a byte now and then is never silent; `request_timeout_seconds` ends it with a 504."""

    async def drip(_call: Call, link: Link) -> None:
        await link.send(b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: 100000\r\n\r\n")
        while True:
            await link.send(b" ")
            await asyncio.sleep(0.02)

    tools = ("mine",) if watched else ("theirs",)
    async with rig({"drips": drip}, wire={"read_timeout_seconds": 5}, server={"request_timeout_seconds": 1}) as run:
        body = request_body("messages", "drips", tools=tools)
        begun = asyncio.get_running_loop().time()
        assert await outcome(run, "messages", body) == 504
        assert asyncio.get_running_loop().time() - begun < 3
