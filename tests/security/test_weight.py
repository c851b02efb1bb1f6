"""What weighs more than it looks: nested JSON, packed bodies, bodies without a length. It is refused, and soon.

Bodies that are slow are in `tests/faults/`, bytes that are no JSON in `tests/fuzz/`.
"""

from __future__ import annotations

import asyncio
import json
import tracemalloc
import zlib
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from faults.counted import at_rest, beside, rig, settled
from faults.rawclient import raw, request
from inprocess import BOTH, gateway_over, request_body
from loopway import server_tool
from loopway.hooks.web_search.hits import SearchFailed
from loopway.hooks.web_search.providers import LARGEST_ANSWER, Searxng, Wish
from loopway.hooks.web_search.settings import read
from loopway.testing import Reply, text
from loopway.upstream import pool
from puppets import text_of
from upstream.conftest import Call, Link, Wire

MEGABYTE = 1_000_000
DEPTHS = {"watched": (400, 900, 1000, 100_000), "plain": (1000, 100_000)}
"""Levels that are read, that are nearly too many, that nobody reads; where the loop is run, and where not."""


def nested(depth: int, brackets: bytes) -> bytes:
    front, back = brackets.split(b"1")
    return front * depth + b"1" + back * depth


def holding(dialect: str, model: str, value: bytes) -> Iterator[tuple[str, bytes]]:
    """Good requests but for one member, which is the value; by the member's name."""
    body = request_body(dialect, model, tools=("theirs",))
    tool: dict[str, Any] = {"name": "theirs", "input_schema": "@"}
    if dialect == "chat_completions":
        tool = {"type": "function", "function": {"name": "theirs", "parameters": "@"}}
    block = {"type": "tool_use", "id": "t", "name": "theirs", "input": "@"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "@"}
    turns = [{"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    changes: dict[str, dict[str, Any]] = {
        "metadata": {"metadata": "@"},
        "unknown": {"unknown": "@"},
        "system": {"system": "@"},
        "content": {"messages": [{"role": "user", "content": "@"}]},
        "history": {"messages": [*body["messages"], *turns]},
        "tools": {"tools": [tool]},
        "tool_choice": {"tool_choice": "@"},
        "stream": {"stream": "@"},
        "model": {"model": "@"},
        "max_agentic_loops": {"max_agentic_loops": "@"},
    }
    for name, change in changes.items():
        yield name, json.dumps({**body, **change}).encode().replace(b'"@"', value)


@pytest.mark.parametrize("model", DEPTHS)
async def test_nesting(model: str, subtests: pytest.Subtests) -> None:
    """However deep a member is, whichever it is: an answer or a 400, nothing is left, the exchange beside is whole."""

    @server_tool(models=["watched"])
    async def look(n: int) -> str:
        """Looks."""
        return str(n)

    fine = lambda _: Reply(text("fine"))  # noqa: E731
    async with rig({}, [look], scripts={"watched": fine, "plain": fine}) as run:
        before = await at_rest(run)
        async with beside(run):
            for dialect in BOTH:
                for brackets in (b"[1]", b'{"a":1}'):
                    for depth in DEPTHS[model]:
                        for name, body in holding(dialect, model, nested(depth, brackets)):
                            with subtests.test(f"{dialect} {name} {depth} {brackets!r}"):
                                assert (await run.post(dialect, body)).status_code in (200, 400)
        await run.fresh()
        await settled(run, before)


def packed(megabytes: int, front: bytes = b"") -> bytes:
    """The begin of a gzip stream that unpacks to so much text, in a thousandth of it."""
    engine = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    first = engine.compress(front) + engine.flush(zlib.Z_FULL_FLUSH)
    return first + megabytes * (engine.compress(b"x" * MEGABYTE) + engine.flush(zlib.Z_FULL_FLUSH))


async def most_held(doing: Awaitable[Any]) -> tuple[int, Any]:
    """The most megabytes that were held while this was done, and its result."""
    tracemalloc.start()
    try:
        done = await doing
        return tracemalloc.get_traced_memory()[1] // MEGABYTE, done
    finally:
        tracemalloc.stop()


def sends(body: bytes, *lines: bytes) -> Any:
    async def answer(_call: Call, link: Link) -> bool:
        head = b"".join(b"%b\r\n" % line for line in (b"content-length: %d" % len(body), *lines))
        await link.send(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + body)
        return True

    return answer


GZIP = b"content-encoding: gzip"


@pytest.mark.parametrize("dialect", BOTH)
async def test_a_packed_answer_of_an_upstream(dialect: str) -> None:
    """400 MB in 400 KB, as a reply and as an event: of it no more is unpacked than a reply may have."""
    head = json.dumps(text_of(dialect, "@")).encode().partition(b"@")[0]
    answers = {
        False: sends(packed(400, head), GZIP, b"content-type: application/json"),
        True: sends(packed(400, b"data: " + head), GZIP, b"content-type: text/event-stream"),
    }
    wire = Wire()
    await wire.start()
    try:
        async with gateway_over({"m": []}, [look_at_all], upstream={"base_url": wire.url}) as run:
            for stream, answer in answers.items():
                wire.script(answer)
                most, got = await most_held(run.post(dialect, request_body(dialect, stream=stream)))
                assert got.status_code == 502
                assert most < 150
    finally:
        await wire.stop()


@server_tool
async def look_at_all() -> str:
    """Looks at everything."""
    return ""


@pytest.mark.parametrize("dialect", BOTH)
async def test_a_packed_request(dialect: str) -> None:
    """No body of a client is unpacked: it is no JSON."""
    body = packed(400)
    async with gateway_over({"m": []}) as run:
        most, got = await most_held(run.client.post(
            "/v1/messages" if dialect == "messages" else "/v1/chat/completions",
            content=body,
            headers={"content-encoding": "gzip", "x-api-key": "test-client-key-1"},
        ))  # fmt: skip
    assert got.status_code == 400
    assert most < 50


async def test_a_packed_answer_of_a_search() -> None:
    """A provider that packs 400 MB into 400 KB: a failed search, and not much more unpacked than an answer may have."""
    wire = Wire()
    wire.script(sends(packed(400, b'{"results":[],"x":"'), GZIP, b"content-type: application/json"))
    await wire.start()
    made = Searxng(read({"provider": "searxng", "base_url": wire.url}))

    async def search() -> None:
        with pytest.raises(SearchFailed, match="too large"):
            await made.search("rain", Wish(3))

    try:
        most, _ = await most_held(search())
    finally:
        await made.aclose()
        await wire.stop()
    assert most < 20 * LARGEST_ANSWER // MEGABYTE


LARGEST = 100_000
"""Bytes that a request's body may have here."""


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("chunked", [False, True], ids=["with its length", "in chunks"])
async def test_a_body_has_a_bound(dialect: str, chunked: bool) -> None:
    """The last byte that fits is read, and the next one is a 413 that says how many there may be."""
    async with gateway_over({"m": lambda _: Reply(text("fine"))}, server={"max_body_bytes": LARGEST}) as run:
        body = json.dumps(request_body(dialect)).encode()
        for size, status in ((LARGEST, 200), (LARGEST + 1, 413), (30 * LARGEST, 413)):
            whole = body[:-1] + b" " * (size - len(body)) + b"}"
            sent = request(b"connection: close", body=whole)
            if chunked:
                pieces = [whole[place : place + 30_000] for place in range(0, size, 30_000)]
                end = [b""] if size <= LARGEST + 1 else []  # nobody waits for the end of what is far too long
                framed = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in [*pieces, *end])
                sent = request(b"connection: close", b"transfer-encoding: chunked", body=framed, framed=False)
            async with raw(run.url) as client:
                client.dialect = dialect
                await client.send(sent)
                assert await client.answers() == [status]
                assert (str(LARGEST).encode() in client.got) == (status == 413)


async def test_connections_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more connections to an upstream than there were exchanges at once; when none is asked for any more, none."""
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.1)
    all_there = asyncio.Barrier(AT_ONCE)

    async def together(_call: Call, link: Link) -> bool:
        await all_there.wait()
        await link.send(Wire.reply())
        return True

    wire = Wire()
    wire.script(together)
    await wire.start()
    try:
        async with gateway_over({"m": []}, upstream={"base_url": wire.url}) as run:
            for _ in range(3):
                asked = [run.post("messages", request_body("messages", tools=())) for _ in range(AT_ONCE)]
                assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
            assert wire.connections <= AT_ONCE + 1  # one may have been closed in between
            await wire.until(lambda: wire.open == 0)
    finally:
        await wire.stop()


AT_ONCE = 8


async def test_addresses_that_are_known_are_bounded() -> None:
    """However many queries come, and however long they are, few of them are kept."""
    async with gateway_over({"m": lambda _: Reply(text("fine"))}) as run:
        for number in range(200):
            query = f"?q={number}" + "x" * (number % 2) * 5000
            body = request_body("messages", tools=())
            assert (await run.post("messages", body, path=f"/v1/messages{query}")).status_code == 200
        kept = run.gateway.upstreams["scripted"]._addresses
        assert 0 < len(kept) <= 64
        assert max(len(query) for _, query in kept) <= 100
