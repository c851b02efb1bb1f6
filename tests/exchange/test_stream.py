"""Streams through a loop: live text, holding, keepalive, back-pressure, and the wire of `appended`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest
from inprocess import BOTH, KEY, PATHS, Run, gateway_over, request_body
from puppets import Puppet, text_of
from streams import (
    Notes,
    calls,
    chunk,
    delta,
    error,
    event,
    frames,
    live,
    message,
    said,
    words,
)

from loopway import AgenticLoopPlan
from loopway.engine.notes import Ended
from loopway.testing import Reply, call, hold, raw, text

both = pytest.mark.parametrize("dialect", BOTH)
PING = {"messages": b'event: ping\ndata: {"type": "ping"}\n\n', "chat_completions": b": ping\n\n"}
APPENDED = {"x-loopway-stream": "appended"}


async def whole(run: Run, dialect: str, headers: dict[str, str] | None = None, **more: object) -> bytes:
    """The bytes of one stream."""
    async with live(run, dialect, request_body(dialect, **more), headers) as stream:  # type: ignore[arg-type]
        assert stream.answer.status_code == 200
        return await stream.rest()


# --- live ---


@both
async def test_text_of_every_iteration_is_there_before_upstreams_next_event(dialect):
    """The model sends a piece and waits; the piece is at the client. In the first iteration and in each rerun."""
    gates = [asyncio.Event() for _ in range(3)]
    turns = [said(dialect, f"first{n} ", hold(gates[n]), f"rest{n}") for n in range(3)]
    script = [Reply(*turns[0], call("mine", {"n": 0})), Reply(*turns[1], call("mine", {"n": 1})), Reply(*turns[2])]
    async with (
        gateway_over({"m": script}, [Puppet()]) as run,
        live(run, dialect, request_body(dialect)) as stream,
    ):
        for n, gate in enumerate(gates):
            await stream.until(b"first%d" % n)
            assert b"rest%d" % n not in stream.raw
            gate.set()
        raw_stream = await stream.rest()
    joint = "" if dialect == "messages" else "\n\n"
    assert words(dialect, raw_stream) == joint.join(f"first{n} rest{n}" for n in range(3))
    assert calls(dialect, raw_stream) == []


@both
async def test_a_call_that_nobody_may_claim_is_live_too(dialect):
    """Where each hook names its tools, a call of the client's own is not held, not even until its arguments end."""
    gate = asyncio.Event()
    if dialect == "messages":
        start = {"type": "tool_use", "id": "t1", "name": "theirs", "input": {}}
        piece = {"type": "input_json_delta", "partial_json": '{"n": 1}'}
        script = [
            raw(event("content_block_start", index=0, content_block=start)),
            hold(gate),
            raw(event("content_block_delta", index=0, delta=piece) + event("content_block_stop", index=0)),
        ]
        reply = Reply(*script, stop="tool_use")
    else:
        named = {"index": 0, "id": "t1", "type": "function", "function": {"name": "theirs", "arguments": ""}}
        pieces = [{"tool_calls": [named]}, {"tool_calls": [{"index": 0, "function": {"arguments": '{"n": 1}'}}]}]
        first, second = (
            chunk("").replace(b'{"content": ""}', json.dumps(one).encode()).replace(b"chatcmpl-1", b"chatcmpl-000001")
            for one in pieces
        )
        first, second = (one.replace(b'"created": 1,', b'"created": 1700000000,') for one in (first, second))
        reply = Reply(raw(first), hold(gate), raw(second), stop="tool_use")
    async with (
        gateway_over({"m": [reply]}, [Puppet()]) as run,
        live(run, dialect, request_body(dialect)) as stream,
    ):
        await stream.until(b"theirs")
        gate.set()
        assert calls(dialect, await stream.rest()) == ["theirs"]


# --- keepalive ---


@both
async def test_a_slow_hook_keeps_the_stream_alive(dialect):
    """Pings come while a plan is awaited, and the message is as if there had been none."""
    slow = asyncio.Event()

    async def plan(given):
        await slow.wait()
        return given["rerun"]

    script = [Reply(text("a"), call("mine", {"n": 1})), Reply(text("b"))]
    async with (
        gateway_over({"m": script}, [Puppet(plan=plan)], loop={"keepalive_seconds": 0.02}) as run,
        live(run, dialect, request_body(dialect)) as stream,
    ):
        await stream.until(PING[dialect], times=4)
        assert len(run.model.requests) == 1
        slow.set()
        raw_stream = await stream.rest()
    assert words(dialect, raw_stream) == ("ab" if dialect == "messages" else "a\n\nb")
    assert message(dialect, raw_stream)


@both
async def test_a_ping_never_falls_inside_an_event(dialect):
    """While half an event has come from upstream pings go out, and the event behind them is whole."""
    gates = [asyncio.Event() for _ in range(3)]
    one = (delta if dialect == "messages" else chunk)("snowman \u2603")
    if dialect == "messages":
        around = (
            event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            event("content_block_stop", index=0),
        )
    else:
        one = one.replace(b"chatcmpl-1", b"chatcmpl-000001").replace(b'"created": 1,', b'"created": 1700000000,')
        around = (b": upstream's own\n\n", b": upstream's own\n\n")
    places = (3, len(one) // 2, len(one) - 1)
    pieces = [one[a:b] for a, b in zip((0, *places), (*places, len(one)), strict=True)]
    cut = [part for piece, gate in zip(pieces, gates, strict=False) for part in (raw(piece), hold(gate))]
    reply = Reply(raw(around[0]), *cut, raw(pieces[3]), raw(around[1]))
    async with (
        gateway_over({"m": [reply]}, [Puppet()], loop={"keepalive_seconds": 0.02}) as run,
        live(run, dialect, request_body(dialect)) as stream,
    ):
        for number, gate in enumerate(gates, 1):
            await stream.until(PING[dialect], times=2 * number)
            gate.set()
        raw_stream = await stream.rest()
    assert message(dialect, raw_stream)
    assert words(dialect, raw_stream) == "snowman \u2603"
    assert raw_stream.replace(PING[dialect], b"").count(one) == 1


@both
async def test_keepalive_before_the_first_byte_commits_to_200(dialect):
    """A silent upstream: the client gets a ping; upstream's 429 behind it is an error event and no status."""
    gate = asyncio.Event()
    refusal = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    async with gateway_over(
        {"m": [Reply(gate=gate, error=(429, refusal))]}, [Puppet()], loop={"keepalive_seconds": 0.02}
    ) as run:
        notes = Notes(run)
        async with live(run, dialect, request_body(dialect)) as stream:
            assert stream.answer.status_code == 200
            assert stream.answer.headers["content-type"].startswith("text/event-stream")
            await stream.until(PING[dialect], times=2)
            gate.set()
            told = error(dialect, await stream.rest())
        ended = await notes.ended()
    assert (told["type"], told["message"]) == ("rate_limit_error", "slow down")
    assert (ended.status, ended.error) == (429, "upstream_status")


@both
async def test_without_silence_there_is_no_ping(dialect):
    """A stream that goes on has none."""
    async with gateway_over({"m": [Reply(text("x" * 40, pieces=40))]}, [Puppet()]) as run:
        assert PING[dialect] not in await whole(run, dialect)


@both
async def test_a_status_that_comes_before_the_first_keepalive_is_a_status(dialect):
    """Nothing has gone to the client yet: it gets upstream's 429 and the body, also for a stream."""
    async with (
        gateway_over({"m": [Reply(error=(429, {"odd": 1}))]}, [Puppet()]) as run,
        live(run, dialect, request_body(dialect)) as stream,
    ):
        assert (stream.answer.status_code, json.loads(await stream.rest())) == (429, {"odd": 1})


# --- a reader that is slow ---

LARGE = 50
"""Mebibytes of the stream that nobody reads for a while."""


@both
@pytest.mark.parametrize("watched", [True, False])
async def test_a_client_that_does_not_read_holds_upstream_back(dialect, watched):
    """The model cannot send more than the sockets' buffers hold; when the client reads on it gets everything."""
    sent = 0

    async def count() -> None:
        nonlocal sent
        sent += 1

    piece = "x" * (1 << 20)
    if dialect == "messages":
        one = delta(piece)
        begin = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        end = event("content_block_stop", index=0)
    else:
        one, begin, end = chunk(piece), b": 1\n\n", b": 2\n\n"
        one = one.replace(b"chatcmpl-1", b"chatcmpl-000001").replace(b'"created": 1,', b'"created": 1700000000,')
    reply = Reply(raw(begin), *[part for _ in range(LARGE) for part in (raw(one), hold(count))], raw(end))
    async with gateway_over({"m": [reply]}, [Puppet()]) as run:
        tools = ("mine",) if watched else ("theirs",)
        request = json.dumps({**request_body(dialect, tools=tools), "stream": True}).encode()
        reader, writer = await small_connection(run)
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
            % (PATHS[dialect].encode(), KEY.encode(), len(request), request)
        )
        with contextlib.suppress(TimeoutError):  # it never is: nobody reads
            await run.model.until(lambda: bool(run.model.requests) and run.model.requests[0].state != "open", 0.4)
        stalled = sent
        got = bytearray()
        while more := await reader.read(1 << 20):
            got += more
        writer.close()
        state = run.model.requests[0].state
    assert 0 < stalled < LARGE // 2
    assert (sent, state) == (LARGE, "answered")
    assert got.count(b"x" * 1000) * 1000 > 0.99 * LARGE * (1 << 20)
    assert got.endswith(b"0\r\n\r\n")


async def small_connection(run: Run) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the gateway whose client end buffers little."""
    end = socket.socket()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    end.setblocking(False)
    host, port = run.url.removeprefix("http://").split(":")
    await asyncio.get_running_loop().sock_connect(end, (host, int(port)))
    return await asyncio.open_connection(sock=end, limit=64 * 1024)
