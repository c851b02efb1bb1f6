"""Streams through a loop: live text, holding, keepalive, back-pressure, and the wire of `appended`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from inprocess import BOTH, Run, gateway_over, request_body
from loopway import AgenticLoopPlan
from loopway.testing import Reply, call, hold, raw, text
from puppets import Puppet, text_of
from streams import (
    Notes,
    around,
    ask,
    calls,
    chunk,
    delta,
    error,
    event,
    live,
    message,
    said,
    words,
)

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
async def test_text_of_every_iteration_is_there_before_upstreams_next_event(dialect: str) -> None:
    """The model sends a piece and waits; the piece is at the client. In the first iteration and in each rerun."""
    gates = [asyncio.Event() for _ in range(3)]
    turns = [said(dialect, f"first{n} ", hold(gates[n]), f"rest{n}", index=9) for n in range(3)]
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
async def test_a_call_that_nobody_may_claim_is_live_too(dialect: str) -> None:
    """Where each hook names its tools, a call of the client's own is not held, not even until its arguments end."""
    gate = asyncio.Event()
    if dialect == "messages":
        start = {"type": "tool_use", "id": "t1", "name": "theirs", "input": {}}
        piece = {"type": "input_json_delta", "partial_json": '{"n": 1}'}
        first = event("content_block_start", index=0, content_block=start)
        second = event("content_block_delta", index=0, delta=piece) + event("content_block_stop", index=0)
    else:
        named = {"index": 0, "id": "t1", "type": "function", "function": {"name": "theirs", "arguments": ""}}
        first = chunk(tool_calls=[named])
        second = chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"n": 1}'}}])
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
async def test_a_slow_hook_keeps_the_stream_alive(dialect: str) -> None:
    """Pings come while a plan is awaited, and the message is as if there had been none."""
    slow = asyncio.Event()

    async def plan(given: dict[str, Any]) -> Any:
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
async def test_a_ping_never_falls_inside_an_event(dialect: str) -> None:
    """While half an event has come from upstream pings go out, and the event behind them is whole."""
    gates = [asyncio.Event() for _ in range(3)]
    one = (delta if dialect == "messages" else chunk)("snowman \u2603")
    begin, end = around(dialect)
    places = (3, one.index("\u2603".encode()) + 1, len(one) - 1)
    pieces = [one[a:b] for a, b in zip((0, *places), (*places, len(one)), strict=True)]
    cut = [part for piece, gate in zip(pieces, gates, strict=False) for part in (raw(piece), hold(gate))]
    reply = Reply(raw(begin), *cut, raw(pieces[3]), raw(end))
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
async def test_keepalive_before_the_first_byte_commits_to_200(dialect: str) -> None:
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
async def test_without_silence_there_is_no_ping(dialect: str) -> None:
    """A stream that goes on has none."""
    async with gateway_over({"m": [Reply(text("x" * 40, pieces=40))]}, [Puppet()]) as run:
        assert PING[dialect] not in await whole(run, dialect)


@both
async def test_a_status_that_comes_before_the_first_keepalive_is_a_status(dialect: str) -> None:
    """Nothing has gone to the client yet: it gets upstream's 429 and the body, also for a stream."""
    async with (
        gateway_over({"m": [Reply(error=(429, {"odd": 1}))]}, [Puppet()]) as run,
        live(run, dialect, request_body(dialect)) as stream,
    ):
        assert (stream.answer.status_code, json.loads(await stream.rest())) == (429, {"odd": 1})


# --- holding ---


@both
async def test_a_released_call_leaves_in_its_original_bytes(dialect: str) -> None:
    """A call was held because a hook might have claimed it; none did."""
    if dialect == "messages":
        start = {"type": "tool_use", "id": "t1", "name": "theirs", "input": {}, "odd": [1.50]}
        deltas = [{"type": "input_json_delta", "partial_json": one} for one in ('{"n"', ": 1}")]
        said_by_model = [
            event("content_block_start", index=0, content_block=start),
            *(event("content_block_delta", index=0, delta=one) for one in deltas),
            event("content_block_stop", index=0),
        ]
    else:
        named = {
            "index": 0,
            "id": "t1",
            "type": "function",
            "function": {"name": "theirs", "arguments": ""},
            "odd": 1.5,
        }
        pieces = [{"index": 0, "function": {"arguments": one}} for one in ('{"n"', ": 1}")]
        said_by_model = [chunk(tool_calls=[named]), *(chunk(tool_calls=[one]) for one in pieces)]
    reply = Reply(*[raw(one) for one in said_by_model], stop="tool_use")
    async with gateway_over({"m": [reply]}, [Puppet(owned=False)]) as run:
        got = await whole(run, dialect)
    assert b"".join(said_by_model) in got
    assert calls(dialect, got) == ["theirs"]


# --- appended ---


def told(words: str, *blocks: dict[str, object], stop: str = "end_turn") -> bytes:
    """One message of Messages in odd framing: CRLF, comments, a ping, data in front of the event's name."""
    usage = {"input_tokens": 3, "output_tokens": 1}
    head = {"id": f"msg_{words}", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    events = [
        event("message_start", message={**head, "stop_reason": None, "stop_sequence": None}),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        b": a comment\n\n",
        b'data: {"type": "ping"}\nevent: ping\n\n',
        delta(words),
        event("content_block_stop", index=0),
    ]
    for index, block in enumerate(blocks, 1):
        events += [
            event("content_block_start", index=index, content_block=block),
            event("content_block_stop", index=index),
        ]
    events.append(
        event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": 9})
    )
    return b"".join([*events, event("message_stop")]).replace(b"\n", b"\r\n")


def as_stream(body: bytes) -> Reply:
    """A reply whose bytes are these."""
    return Reply(error=(200, body), headers={"content-type": "text/event-stream"})


CALLING = told("one", {"type": "tool_use", "id": "t1", "name": "mine", "input": {"n": 1}}, stop="tool_use")


@pytest.mark.parametrize(
    ("configured", "asked", "appended"),
    [
        ("appended", {}, True),
        ("merged", APPENDED, True),
        ("appended", {"x-loopway-stream": "merged"}, False),
        ("merged", {}, False),
    ],
)
async def test_appended_is_each_iterations_own_bytes(configured: str, asked: dict[str, str], appended: bool) -> None:
    """By configuration or by a header: the rerun is a second message behind the first, nothing else is there."""
    script = [as_stream(CALLING), as_stream(told("two"))]
    async with gateway_over({"m": script}, [Puppet()], loop={"stream": configured}) as run:
        got = await whole(run, "messages", asked)
    assert len(run.model.requests) == 2
    if appended:
        assert got == CALLING + told("two")
    else:
        assert words("messages", got) == "onetwo"
        assert message("messages", got)["id"] == "msg_one"


async def test_chat_streams_are_not_inspected_in_appended() -> None:
    """As the specification has it: no gate is asked, the bytes pass, the call reaches the client."""
    hook = Puppet()
    async with gateway_over({"m": [Reply(text("a"), call("mine", {"n": 1}))]}, [hook]) as run:
        got = await whole(run, "chat_completions", APPENDED)
    assert (hook.gates, calls("chat_completions", got)) == ([], ["mine"])


@both
async def test_another_word_for_the_stream_is_a_400(dialect: str) -> None:
    """It names the header and what to write."""
    async with gateway_over({"m": [Reply(text("a"))]}, [Puppet()]) as run:
        answer = await run.post(dialect, request_body(dialect, stream=True), headers={"x-loopway-stream": "joined"})
    assert answer.status_code == 400
    assert "x-loopway-stream" in answer.json()["error"]["message"]


async def test_an_override_is_a_message_of_its_own_in_appended() -> None:
    """It comes behind the reply that it overrides."""
    hook = Puppet(plan=lambda _: AgenticLoopPlan(response_override=text_of("messages", "over")))
    async with gateway_over({"m": [as_stream(CALLING)]}, [hook]) as run:
        got = await whole(run, "messages", APPENDED)
    assert got.startswith(CALLING)
    behind = message("messages", got.removeprefix(CALLING))
    assert (behind["id"], behind["content"][0]["text"], behind["stop_reason"]) == ("msg_made", "over", "end_turn")


@pytest.mark.parametrize("replaces", [True, False])
async def test_a_post_hook_sees_the_rerun_before_the_client_in_appended(replaces: bool) -> None:
    """What it keeps back never goes; what it leaves goes in its own bytes."""

    class Post(Puppet):
        async def async_post_agentic_loop_response_hook(
            self, response: Any, plan: AgenticLoopPlan, kwargs: dict[str, Any]
        ) -> Any:
            return text_of("messages", "made") if replaces else response

    script = [as_stream(CALLING), as_stream(told("secret"))]
    async with gateway_over({"m": script}, [Post()]) as run:
        got = await whole(run, "messages", APPENDED)
    if replaces:
        assert b"secret" not in got
        assert words("messages", got.removeprefix(CALLING)) == "made"
    else:
        assert got == CALLING + told("secret")


# --- a reader that is slow ---

PIECE = 1 << 14
LARGE = 50 * (1 << 20) // PIECE
"""Events of a stream that nobody reads for a while: 50 MiB."""


@pytest.mark.parametrize(("dialect", "watched"), [("messages", True), ("chat_completions", True), ("messages", False)])
async def test_a_client_that_does_not_read_holds_upstream_back(dialect: str, watched: bool) -> None:
    """The model cannot send more than the sockets' buffers hold; when the client reads on it gets everything."""
    sent = 0

    async def count() -> None:
        nonlocal sent
        sent += 1

    one = (delta if dialect == "messages" else chunk)("x" * PIECE)
    begin, end = around(dialect)
    reply = Reply(raw(begin), *[part for _ in range(LARGE) for part in (raw(one), hold(count))], raw(end))
    async with gateway_over({"m": [reply]}, [Puppet()]) as run:
        tools = ("mine",) if watched else ("theirs",)
        reader, writer = await ask(run, dialect, request_body(dialect, tools=tools, stream=True))
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
    assert got.count(b"x") >= LARGE * PIECE
    assert got.endswith(b"0\r\n\r\n")


@both
@pytest.mark.parametrize("watched", [True, False])
async def test_a_pre_call_hook_that_takes_long_keeps_the_stream_alive(dialect: str, watched: bool) -> None:
    """Pings go out while it runs; then the stream follows, its bytes unchanged where nobody watches."""
    go = asyncio.Event()

    class Slow(Puppet):
        async def async_pre_call_hook(self, user_api_key_dict: Any, cache: Any, data: Any, call_type: str) -> Any:
            await go.wait()
            return data

    tools = ["mine"] if watched else ["other"]
    loop = {"keepalive_seconds": 0.02}
    async with gateway_over({"m": [Reply(text("late", pieces=1))]}, [Slow()], loop=loop) as run:
        ping = b"event: ping" if dialect == "messages" else b": ping"
        async with run.stream(dialect, request_body(dialect, tools=tools)) as answer:
            pieces = answer.aiter_raw()
            raw = b""
            while raw.count(ping) < 3:
                raw += await anext(pieces)
            assert run.model.requests == []
            go.set()
            raw += b"".join([piece async for piece in pieces])
    assert b"late" in raw
    if not watched:
        assert raw.rindex(ping) < raw.index(b"late")
