"""Exchanges that no hook watches: the bytes pass as they come, and a body that breaks off is never taken for whole."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from inprocess import BOTH, Run, gateway_over, request_body
from loopway.dialects.chat_completions.reply import Fold as ChatFold
from loopway.dialects.messages.reply import Fold as MessagesFold
from loopway.dialects.sse import Reader
from loopway.dialects.table import DIALECTS
from loopway.engine.notes import Ended
from puppets import Puppet
from streams import Notes, frames, is_error, live
from upstream.conftest import Answer, Call, Link, Wire

both = pytest.mark.parametrize("dialect", BOTH)
EVENTS = b"content-type: text/event-stream\r\n"
JSON = b"content-type: application/json\r\n"
CLOSE = b"connection: close\r\n"
END = {"messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n', "chat_completions": b"data: [DONE]\n\n"}


def head(*lines: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\n%b\r\n" % (status, b"".join(lines))


def chunked(*pieces: bytes) -> bytes:
    """The body in HTTP's chunks, complete."""
    return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in (*pieces, b""))


def and_closes(data: bytes) -> Answer:
    """These bytes, and the connection ends."""

    async def send(_call: Call, link: Link) -> bool:
        await link.send(data)
        return False

    return send


@asynccontextmanager
async def over(answer: Answer = b"") -> AsyncIterator[tuple[Run, Wire]]:
    """A gateway over a server that answers with these bytes, or does what this function does."""
    wire = Wire()
    wire.script(answer)
    await wire.start()
    try:
        async with gateway_over({"m": []}, [Puppet()], upstream={"base_url": wire.url}) as run:
            yield run, wire
    finally:
        await wire.stop()


def unwatched(dialect: str, **more: object) -> dict[str, object]:
    """A request that offers no tool of a hook."""
    return request_body(dialect, tools=("theirs",), **more)  # type: ignore[arg-type]


ODD = {
    "crlf": b'event: x\r\ndata: {"a":1}\r\n\r\n',
    "cr": b'event: x\rdata: {"a":1}\r\r',
    "comments": b": one\n:\n\n: two\n\n",
    "no json": b"data: {no\n\ndata\n\ndata: \xff\xfe\n\n",
    "several data lines": b"data: {\ndata: }\nid: 3\nretry: 10\n\n",
    "a byte order mark": b"\xef\xbb\xbfdata: {}\n\n",
    "no framing at all": b"<html>\0 " * 3000,
    "nothing": b"",
}


@both
async def test_a_stream_is_byte_identical_and_not_parsed(
    dialect: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Odd framing, comments, invalid JSON, cut anywhere: the same bytes; reader, fold and splicer are never used."""

    def never(*_given: object, **_named: object) -> None:
        raise AssertionError("a stream that nobody watches was read")

    async with over() as (run, wire):
        monkeypatch.setattr(Reader, "feed", never)
        monkeypatch.setattr(MessagesFold, "feed", never)
        monkeypatch.setattr(ChatFold, "add", never)
        monkeypatch.setattr(type(DIALECTS[dialect]), "splicer", never)  # type: ignore[index]
        for name, odd in ODD.items():
            body = odd + END[dialect]
            cuts = [body[place : place + 7] for place in range(0, len(body), 7)]
            for pieces in ([body], cuts):
                with subtests.test(name, pieces=len(pieces)):
                    wire.script(head(EVENTS, b"transfer-encoding: chunked\r\n") + chunked(*pieces))
                    async with live(run, dialect, unwatched(dialect)) as stream:
                        assert await stream.rest() == body


@both
async def test_a_piece_of_a_stream_is_there_at_once(dialect: str) -> None:
    """Half an event is at the client before upstream sends the other half."""
    rest = asyncio.Event()

    async def send(_call: Call, link: Link) -> bool:
        await link.send(head(EVENTS, b"transfer-encoding: chunked\r\n"), b"7\r\ndata: {\r\n")
        await rest.wait()
        await link.send(chunked(b"}\n\n" + END[dialect]))
        return True

    async with over(send) as (run, _), live(run, dialect, unwatched(dialect)) as stream:
        await stream.until(b"data: {")
        rest.set()
        assert await stream.rest() == b"data: {}\n\n" + END[dialect]


LENGTHS: dict[str, tuple[tuple[bytes, bytes], bytes, bool]] = {
    "closed": ((JSON, CLOSE), b'{"a": 1}', False),
    "in chunks": ((JSON, b"transfer-encoding: chunked\r\n"), chunked(b'{"a":', b" 1}"), False),
    "text": ((b"content-type: text/plain\r\n", CLOSE), b'{"a": 1}', False),
    "events, closed": ((EVENTS, CLOSE), END["messages"], True),
    "events with their length": ((EVENTS, b"content-length: %d\r\n" % len(END["messages"])), END["messages"], True),
    "json to a stream, closed": ((JSON, CLOSE), b'{"a": 1}', True),
    "json to a stream, with its length": ((JSON, b"content-length: 8\r\n"), b'{"a": 1}', True),
}


async def test_however_long_a_reply_says_it_is(subtests: pytest.Subtests) -> None:
    """With a length, in chunks, or until the connection closes: the same body and content-type."""
    async with over() as (run, wire):
        for name, (lines, body, stream) in LENGTHS.items():
            with subtests.test(name):
                sent = head(*lines) + body
                wire.script(and_closes(sent) if CLOSE in lines else sent)
                answer = await run.post("messages", unwatched("messages", stream=stream))
                plain = END["messages"] if EVENTS in lines else b'{"a": 1}'
                assert (answer.status_code, answer.content) == (200, plain)
                assert answer.headers["content-type"].encode() in lines[0]


@both
@pytest.mark.parametrize("status", [b"204 No Content", b"201 Created"])
async def test_another_success_is_passed_on(dialect: str, status: bytes) -> None:
    """Also one without a body."""
    length = b"" if b"204" in status else b"content-length: 0\r\n"
    async with over(head(JSON, length, status=status)) as (run, _):
        answer = await run.post(dialect, unwatched(dialect))
        again = await run.post(dialect, unwatched(dialect))
    assert (answer.status_code, answer.content) == (int(status[:3]), b"")
    assert again.status_code == answer.status_code


@pytest.mark.parametrize("stream", [True, False])
async def test_a_compressed_reply_is_passed_on_as_it_is(stream: bool) -> None:
    """Identity was asked for; what comes compressed goes to the client with the header that says so."""
    plain = b"data: 1\n\n" + END["messages"] if stream else b'{"a": 1}'
    body = gzip.compress(plain)
    answer = head(EVENTS if stream else JSON, b"content-encoding: gzip\r\n", b"content-length: %d\r\n" % len(body))
    async with over(answer + body) as (run, wire):
        got = await run.post("messages", unwatched("messages", stream=stream))
    assert wire.calls[0].headers["accept-encoding"] == "identity"
    assert got.headers["content-encoding"] == "gzip"
    assert got.content == plain


COMPRESSED = gzip.compress(b"data: 1\n\n" * 3000, compresslevel=0)


BROKEN_OFF = {
    "large json": (head(JSON, b"content-length: 900000\r\n") + b'{"a": "' + b"x" * 50_000, False),
    "json in chunks": (head(JSON, b"transfer-encoding: chunked\r\n") + b'7\r\n{"a": "\r\n', False),
    "json to a stream": (head(JSON, b"transfer-encoding: chunked\r\n") + b'7\r\n{"a": "\r\n', True),
    "json with a length to a stream": (head(JSON, b"content-length: 20\r\n") + b'{"a": "', True),
    "a compressed stream": (
        head(EVENTS, b"content-encoding: gzip\r\n", b"content-length: 90000\r\n") + COMPRESSED,
        True,
    ),
}


async def test_a_body_that_breaks_off_is_cut(subtests: pytest.Subtests) -> None:
    """The head is out, and nothing can be said behind half a body: the client's connection breaks, too."""
    async with over() as (run, wire):
        notes = Notes(run)
        for number, (name, (answer, stream)) in enumerate(BROKEN_OFF.items(), 1):
            with subtests.test(name):
                wire.script(and_closes(answer))
                with pytest.raises(httpx.RemoteProtocolError):
                    await run.post("messages", unwatched("messages", stream=stream))
                assert (await notes.ended(number)).error == "upstream_broken"
        assert run.gateway.admission.in_flight == 0


async def test_a_small_body_that_breaks_off_is_a_502() -> None:
    """Nothing has gone yet: it can still be told."""
    async with over(and_closes(head(JSON, b"content-length: 20\r\n") + b'{"a": "')) as (run, _):
        answer = await run.post("messages", unwatched("messages"))
    assert answer.status_code == 502
    assert answer.json()["error"]["type"] == "api_error"


@both
async def test_a_stream_that_breaks_off_or_just_ends_gets_an_error_event(
    dialect: str, subtests: pytest.Subtests
) -> None:
    """Behind what came, whole or not; an event of its own, the last one, once."""
    async with over() as (run, wire):
        for cut in (b"", b"data: {", b"data: {}", b"data: {}\n", b"data: {}\r\n\r\n", b"event: x\r"):
            begun = b'data: {"a": 1}\n\n' + cut
            chunks = head(EVENTS, b"transfer-encoding: chunked\r\n")
            ways = {
                "cut": chunks + b"%x\r\n%b\r\n" % (len(begun), begun),
                "ended": chunks + chunked(begun),
                "closed": head(EVENTS, CLOSE) + begun,
                "short": head(EVENTS, b"content-length: 500\r\n") + begun,
                "with its length": head(EVENTS, b"content-length: %d\r\n" % len(begun)) + begun,
            }
            for way, answer in ways.items():
                with subtests.test(way, cut=cut):
                    wire.script(and_closes(answer))
                    async with live(run, dialect, unwatched(dialect)) as stream:
                        got = await stream.rest()
                    assert got.startswith(begun)
                    found = [is_error(one) for one in frames(got)]
                    assert (found.count(True), found[-1]) == (1, True)
    assert {one.error for one in run.told(Ended)} == {"upstream_broken"}


@both
@pytest.mark.parametrize(
    "end",
    [
        b'event: error\ndata: {"type": "error", "error": {"type": "x", "message": "m"}}\n\n',
        b'data: {"error": {"message": "m"}}\n\n',
    ],
)
async def test_an_upstreams_own_error_is_the_end(dialect: str, end: bytes) -> None:
    """A stream that ends in an error needs no second one."""
    body = chunked(b"data: 1\n\n", end)
    async with (
        over(head(EVENTS, b"transfer-encoding: chunked\r\n") + body) as (run, _),
        live(run, dialect, unwatched(dialect)) as stream,
    ):
        assert await stream.rest() == b"data: 1\n\n" + end


async def test_large_json_is_passed_on_while_it_comes() -> None:
    """The beginning of 20 MB is at the client before upstream has sent the rest, and nothing is held."""
    rest = asyncio.Event()
    size = 20 * (1 << 20)
    body = json.dumps({"words": "x" * size}).encode()
    half = len(body) // 2

    async def send(_call: Call, link: Link) -> bool:
        await link.send(head(JSON, b"content-length: %d\r\n" % len(body)), body[:half])
        await rest.wait()
        await link.send(body[half:])
        return True

    async with over(send) as (run, _):
        request = run.client.build_request(
            "POST", "/v1/messages", json=unwatched("messages"), headers={"authorization": "Bearer test-client-key-1"}
        )
        answer = await run.client.send(request, stream=True)
        got = 0
        pieces = answer.aiter_raw()
        while got < half:
            got += len(await anext(pieces))
        rest.set()
        async for piece in pieces:
            got += len(piece)
        await answer.aclose()
    assert got == len(body) == int(answer.headers["content-length"])


@both
async def test_headers_of_upstream_come_back_on_a_stream(dialect: str) -> None:
    """Its request id and rate limits, and who must not buffer is told."""
    lines = (EVENTS, b"request-id: r1\r\n", b"x-ratelimit-remaining-requests: 7\r\n", b"set-cookie: a=b\r\n")
    async with (
        over(head(*lines, b"content-length: %d\r\n" % len(END[dialect])) + END[dialect]) as (run, _),
        live(run, dialect, unwatched(dialect)) as stream,
    ):
        await stream.rest()
    got = stream.answer.headers
    assert (got["request-id"], got["x-ratelimit-remaining-requests"], got["cache-control"]) == ("r1", "7", "no-cache")
    assert got["x-accel-buffering"] == "no"
    assert "set-cookie" not in got
