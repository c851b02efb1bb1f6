"""Clients that fail in every way that was thought of: an answer or an end in bounded time, and nothing is left of them.

Clients that leave, or read slowly and go on, are in `tests/exchange/`, smuggled requests in `tests/security/`.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from faults.counted import at_once, rig, unharmed
from faults.rawclient import Raw, good, raw, request
from inprocess import BOTH, PATHS, Run, request_body
from loopway import serving
from loopway.engine.notes import Ended
from loopway.server import respond
from loopway.testing import Reply, hold, text
from streams import ask
from upstream.conftest import Answer, Call, Link

FEW_SECONDS = 1.0
"""The gateway's time-outs here: a request, a head, an idle connection."""
SLOW = good(model="slow", stream=True)
SLOW_JSON = good(model="slow")


@pytest_asyncio.fixture
async def run(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    """A gateway with short time-outs. The model `quick` answers at once, `slow` waits in the middle of its answer."""
    monkeypatch.setattr(serving, "_HEAD_SECONDS", FEW_SECONDS)
    monkeypatch.setattr(serving, "_IDLE_SECONDS", FEW_SECONDS)
    monkeypatch.setattr(serving, "_TICKS_PER_LOOK", 1)
    scripts = {
        "quick": lambda _: Reply(text("quick")),
        "slow": lambda _: Reply(text("slow", pieces=1), hold(asyncio.Event())),
    }
    async with rig({}, scripts=scripts, server={"request_timeout_seconds": 3 * FEW_SECONDS}) as made:
        yield made


QUICK = good(model="quick")
ASK = request(body=QUICK)
LAST = request(b"connection: close", body=QUICK)


async def says(client: Raw, *pieces: bytes) -> list[int]:
    """Send, read what comes until the gateway closes; the statuses."""
    await client.send(*pieces)
    await client.rest()
    return await client.answers(0)


async def endless(client: Raw, begin: bytes, piece: bytes = b"x" * 60_000) -> list[int]:
    """Begin, then send without end; the statuses of what comes back before the gateway closes."""
    await client.send(begin)

    async def send() -> None:
        while not client.writer.is_closing():
            await client.send(piece)
            await asyncio.sleep(0)

    sending = asyncio.ensure_future(send())
    try:
        await client.rest()
    finally:
        sending.cancel()
    return await client.answers(0)


async def half_closes(client: Raw, data: bytes) -> list[int]:
    await client.send(data)
    client.half_close()
    return await says(client)


async def drips(client: Raw, begin: bytes, piece: bytes = b"x") -> list[int]:
    """Begin, then send a byte again and again; the statuses when the gateway closes."""
    await client.send(begin)

    async def send() -> None:
        while True:
            await client.send(piece)
            await asyncio.sleep(0.02)

    sending = asyncio.ensure_future(send())
    try:
        await client.rest()
    finally:
        sending.cancel()
    return await client.answers(0)


H2C = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQCAAAAAAIAAAAA")
WS = (b"connection: Upgrade", b"upgrade: websocket", b"sec-websocket-version: 13", b"sec-websocket-key: eA==")
HEAD = request(body=b"")[:-2]
CHUNKED = request(b"transfer-encoding: chunked", body=b"", framed=False)
TRAILER = CHUNKED + b"1\r\nx\r\n0\r\na: "

CLIENTS: dict[str, tuple[list[int], Callable[[Raw], Awaitable[list[int]]]]] = {
    # the body
    "sends no body": ([504], lambda c: says(c, request(length=500, body=b""))),
    "stalls in its body": ([504], lambda c: says(c, request(length=500))),
    "drips its body": ([504], lambda c: drips(c, request(length=500_000, body=b""))),
    "drips chunks": ([504], lambda c: drips(c, CHUNKED, b"1\r\nx\r\n")),
    "drips its body behind a refusal": ([401], lambda c: drips(c, request(length=500_000, body=b"", key="wrong"))),
    "sends half a body and ends": ([], lambda c: half_closes(c, request(length=500))),
    "says more than its length": ([400], lambda c: says(c, request(body=QUICK, length=20))),
    "says too much by far": ([413], lambda c: says(c, request(b"connection: close", length=10**12))),
    "says no number of bytes": ([400], lambda c: says(c, request(b"content-length: many", framed=False))),
    "says 5000 digits of bytes": ([400], lambda c: says(c, request(b"content-length: " + b"9" * 5000, framed=False))),
    "sends chunks that are none": ([400], lambda c: says(c, CHUNKED + b"xyz\r\n")),
    "sends an endless chunk extension": ([431], lambda c: endless(c, CHUNKED + b"1;")),
    "sends an endless trailer": ([431], lambda c: endless(c, TRAILER)),
    "sends endless trailers": ([431], lambda c: endless(c, TRAILER, b"b\r\na: " * 10_000)),
    # the head
    "says nothing": ([], says),
    "stalls in its head": ([408], lambda c: says(c, HEAD)),
    "drips its head": ([408], lambda c: drips(c, HEAD, b"a:b\r\n")),
    "drips empty lines": ([], lambda c: drips(c, b"", b"\r\n")),
    "drips empty lines behind an answer": ([200], lambda c: drips(c, ASK, b"\r\n")),
    "sends 1000 headers": ([200], lambda c: says(c, request(b"connection: close", *many(1000), body=QUICK))),
    "sends 20000 headers": ([431], lambda c: says(c, request(*many(20_000), body=QUICK))),
    "sends a header of 1 MB": ([431], lambda c: says(c, request(b"x-a: " + b"y" * 1_000_000, body=QUICK))),
    "sends an endless header": ([431], lambda c: endless(c, HEAD)),
    "sends an endless path": ([431], lambda c: endless(c, b"GET /")),
    "sends a path of 60 KB": ([404], lambda c: says(c, request(b"connection: close", path=b"/" + b"x" * 60_000))),
    "is no HTTP client": ([400], lambda c: says(c, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500)),
    "speaks HTTP/2": ([400], lambda c: says(c, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),
    "takes it for a proxy": ([400], lambda c: says(c, b"CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\n\r\n")),
    # the connection
    "half-closes behind its request": ([], lambda c: half_closes(c, request(body=SLOW))),
    "half-closes behind a request for JSON": ([], lambda c: half_closes(c, request(body=SLOW_JSON))),
    "pipelines": ([200] * 3, lambda c: says(c, ASK + ASK + LAST)),
    "pipelines into bad news": ([401, 404, 200], lambda c: says(c, request(key="no") + request(path=b"/no") + LAST)),
    "pipelines garbage": ([400], lambda c: says(c, request(body=SLOW_JSON) + b"garbage\r\n\r\n")),
    "waits to be told to go on": ([200] * 2, lambda c: says(c, request(b"expect: 100-continue", body=QUICK) + LAST)),
    "asks for h2c": ([200] * 2, lambda c: says(c, request(*H2C, body=QUICK) + LAST)),
    "asks for h2c in chunks": ([200] * 2, lambda c: says(c, h2c_in_chunks() + LAST)),
    "asks for a WebSocket": ([405, 200], lambda c: says(c, request(*WS, method=b"GET", body=b"") + LAST)),
    "speaks HTTP/1.0": ([200], lambda c: says(c, request(version=b"HTTP/1.0", body=QUICK))),
}  # fmt: skip
"""By what the client does: the statuses that it has until the gateway closes the connection."""


def many(count: int) -> list[bytes]:
    return [b"x-%d: y" % number for number in range(count)]


def h2c_in_chunks() -> bytes:
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(QUICK), QUICK)
    return request(*H2C, b"transfer-encoding: chunked", body=body, framed=False)


async def test_client(run: Run, subtests: pytest.Subtests) -> None:
    """All of them at once, in both dialects: the statuses of the table, an end, and each error says what it is."""

    async def meets(name: str, dialect: str) -> tuple[list[int], int]:
        async with raw(run.url) as client:
            client.dialect = dialect
            statuses = await CLIENTS[name][1](client)
            return statuses, len(re.findall(rb'"message": ?"', client.got))

    met = [(name, dialect) for name in CLIENTS for dialect in BOTH]
    got = await at_once(run, *(functools.partial(meets, *one) for one in met))
    for (name, dialect), given in zip(met, got, strict=True):
        with subtests.test(f"{name} {dialect}"):
            statuses = CLIENTS[name][0]
            assert given == (statuses, len([status for status in statuses if status >= 400]))


READERS = {"a stream": ("mine", True), "a stream that passes": ("theirs", True), "JSON that passes": ("theirs", False)}
"""What is not read: the tool that the request offers, and whether it is a stream."""


async def test_a_client_that_stops_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exchange ends in its time and its call is closed, while it is still there; with it the rest of it goes."""
    monkeypatch.setattr(respond, "_LAST_WORDS_SECONDS", FEW_SECONDS / 10)
    left = {(name, dialect): asyncio.Event() for name in READERS for dialect in BOTH}

    def floods(name: str) -> Answer:
        async def flood(call: Call, link: Link) -> None:
            kind = b"text/event-stream" if READERS[name][1] else b"application/json"
            try:
                await link.send(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n\r\n" % kind)
                while True:
                    await link.send(b": %b\n\n" % (b"x" * 60_000))
            finally:
                left[name, "messages" if call.target == PATHS["messages"] else "chat_completions"].set()

        return flood

    async def stops(name: str, dialect: str) -> None:
        tool, stream = READERS[name]
        _, writer = await ask(here, dialect, request_body(dialect, name, [tool], stream=stream))
        async with asyncio.timeout(10 * FEW_SECONDS):
            await left[name, dialect].wait()
        writer.transport.abort()

    async with rig({name: floods(name) for name in READERS}, server={"request_timeout_seconds": FEW_SECONDS}) as here:
        assert await at_once(here, *(functools.partial(stops, *one) for one in left)) == [None] * 6
        ends = [note for subject, note in here.notes if isinstance(note, Ended) and subject.model in READERS]
        assert len(ends) == 6
        assert max(note.seconds for note in ends) < 3 * FEW_SECONDS


async def test_errors_of_the_connection_have_a_shape_that_sdks_read(run: Run) -> None:
    """What is no request of any dialect is answered in JSON that both dialects' SDKs understand."""
    async with raw(run.url) as client:
        await says(client, b"garbage\r\n\r\n")
        assert b'"type": "error"' in client.got
        assert b'"message": "this is no valid HTTP request"' in client.got


async def test_garbage_behind_a_request_is_not_in_its_answer(run: Run) -> None:
    """While a stream is on its way the connection is cut: no error of the connection stands inside the answer."""
    async with raw(run.url) as client:
        await client.send(request(body=SLOW))
        await client.until(lambda: b"slow" in client.got)
        await client.send(b"garbage\r\n\r\n")
        await client.rest()
        assert client.got.count(b"HTTP/1.1") == 1
        assert not client.got.endswith(b"0\r\n\r\n")


async def test_an_idle_connection_stays_for_a_while(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within its time a connection takes one request after the other, whatever the looks at it say."""
    monkeypatch.setattr(serving, "_IDLE_SECONDS", 60)
    async with raw(run.url) as client:
        for count in range(1, 4):
            await client.send(ASK)
            assert await client.answers(count) == [200] * count
            for server in (run.serving._main,):
                for connection in server.server_state.connections:
                    connection.look(asyncio.get_running_loop().time())  # type: ignore[union-attr]
        assert not client.closed


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's hint; it copes
async def test_a_request_with_a_long_body_is_no_long_head(run: Run) -> None:
    """A body of 2 MB in one piece, and in chunks of every size, is read whatever its head's bound is."""
    body = QUICK[:-1] + b" " * 2_000_000 + b"}"
    pieces = [body[place : place + 70_000] for place in range(0, len(body), 70_000)] + [b""]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)

    async def both() -> list[int]:
        async with raw(run.url) as client:
            await client.send(request(body=body), CHUNKED + chunks, LAST)
            await client.rest()
            return await client.answers(0)

    assert await unharmed(run, both) == [[200] * 3]
