"""Failures in mid-stream: one error event in the dialect's shape at the end, nothing behind it, counted once."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from inprocess import BOTH, Run, gateway_over, request_body
from loopway import AgenticLoopPlan
from loopway.dialects.sse import Reader
from loopway.engine.notes import Ended
from loopway.exchange import stream_road
from loopway.server import respond
from loopway.testing import Reply, call, cut, hold, raw, text
from puppets import Puppet, text_of
from streams import NEVER, Notes, around, ask, chunk, delta, error, event, frames, is_error, live, said, words

both = pytest.mark.parametrize("dialect", BOTH)
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
SERVER = {"error": {"message": "Overloaded", "type": "server_error", "param": None, "code": None}}
LARGEST = 20_000
"""Bytes of the largest event that the gateway takes here."""


def reported(dialect: str) -> bytes:
    """An error in an upstream's stream."""
    if dialect == "messages":
        return event("error", error=OVERLOADED["error"])
    return b"data: %b\n\n" % json.dumps(SERVER).encode()


def as_stream(*events: bytes) -> Reply:
    """A stream that ends cleanly behind these events."""
    return Reply(error=(200, b"".join(events)), headers={"content-type": "text/event-stream"})


def begun(dialect: str, *more: bytes) -> tuple[bytes, ...]:
    """The first events of a stream, with the text `seen`."""
    if dialect == "messages":
        head = text_of("messages", "") | {"content": [], "stop_reason": None}
        return event("message_start", message=head), around(dialect)[0], delta("seen"), *more
    return chunk(role="assistant", content=""), chunk("seen"), *more


Make = Callable[[str], Reply]
UPSTREAM: dict[str, tuple[Make, str]] = {
    "an error event": (lambda d: Reply(text("seen"), raw(reported(d)), text("unseen")), "upstream_event"),
    "an error event in a block": (lambda d: as_stream(*begun(d, reported(d))), "upstream_event"),
    "an error event behind a call": (
        lambda d: Reply(text("seen"), call("mine", {"n": 1}), raw(reported(d))),
        "upstream_event",
    ),
    "a cut": (lambda _: Reply(text("seen"), cut()), "upstream_broken"),
    "a cut in a call": (lambda _: Reply(text("seen"), call("mine", {"n": 1}), cut()), "upstream_broken"),
    "a cut in an event": (lambda _: Reply(text("seen"), raw(b'data: {"a'), cut()), "upstream_broken"),
    "a clean early end": (lambda d: as_stream(*begun(d)), "upstream_broken"),
    "an event that is no JSON": (lambda d: as_stream(*begun(d, b"event: x\ndata: {no\n\n")), "upstream_broken"),
    "an event that is too large": (
        lambda d: Reply(text("seen"), raw((delta if d == "messages" else chunk)("x" * LARGEST))),
        "upstream_broken",
    ),
    "an event that never ends": (
        lambda _: Reply(text("seen"), *[raw(b"data: " + b"x" * 5000)] * 6),
        "upstream_broken",
    ),
}
"""By name: the first reply, and the kind of error that it is. The client has seen the text `seen`."""


@pytest.fixture(autouse=True)
def _small_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_road, "Reader", functools.partial(Reader, LARGEST))


@both
@pytest.mark.parametrize("mode", ["merged", "appended"])
async def test_what_upstream_breaks_ends_in_one_error_event(dialect: str, mode: str, subtests: pytest.Subtests) -> None:
    """Whatever it is, behind the text there is the error and nothing else; no gate is asked, no call is sent again."""
    hook = Puppet()
    scripts = {name: [make(dialect)] for name, (make, _) in UPSTREAM.items()}
    async with gateway_over(scripts, [hook]) as run:
        notes = Notes(run)
        done = 0
        for name, (_, kind) in UPSTREAM.items():
            passed = mode == "appended" and dialect == "chat_completions"
            if passed and (kind == "upstream_event" or "event that" in name or "in an event" in name):
                continue  # nobody reads that stream: what upstream says itself is what the client gets
            with subtests.test(name):
                async with live(run, dialect, request_body(dialect, name), {"x-loopway-stream": mode}) as stream:
                    assert stream.answer.status_code == 200
                    got = await stream.rest()
                told = error(dialect, got)
                assert words(dialect, got) == "seen"
                if kind == "upstream_event":
                    assert told["message"] == "Overloaded"
                await notes.ended(done := done + 1)
                (ended,) = [n for s, n in notes if isinstance(n, Ended) and s.model == name]
                assert ended.error == kind
                assert run.model.calls[name] == 1
    assert (hook.gates, hook.plans) == ([], [])
    assert run.gateway.admission.in_flight == 0


HOOKS: dict[str, Callable[[Any], Any]] = {
    "raises": lambda _: 1 / 0,
    "is no plan": str,
    "is no reply": lambda _: AgenticLoopPlan(response_override={"no": "reply"}),
    "takes too long": lambda _: asyncio.sleep(NEVER),
}


@pytest.mark.parametrize(
    ("dialect", "mode"), [("messages", "merged"), ("chat_completions", "merged"), ("messages", "appended")]
)
async def test_a_hook_that_fails_ends_in_one_error_event(dialect: str, mode: str, subtests: pytest.Subtests) -> None:
    """It names the hook and what it did; what the client has seen stays, and the next exchange works."""
    answer = ""

    async def plan(given: dict[str, Any]) -> Any:
        made = HOOKS[answer](given)
        return await made if asyncio.iscoroutine(made) else made

    script = [Reply(text("seen"), call("mine", {"n": 1})) for _ in HOOKS]
    loop = {"hook_timeout_seconds": 0.05}
    async with gateway_over({"m": [*script, Reply(text("fine"))]}, [Puppet(plan=plan)], loop=loop) as run:
        for answer in HOOKS:
            with subtests.test(answer):
                async with live(run, dialect, request_body(dialect), {"x-loopway-stream": mode}) as stream:
                    got = await stream.rest()
                events = frames(got)
                assert [is_error(one) for one in events].index(True) == len(events) - 1
                told = json.loads(events[-1].data or b"")["error"]
                assert "puppets.Puppet" in told["message"]
                assert "Traceback" not in told["message"]
                if mode == "merged":
                    assert error(dialect, got) == told
                    assert words(dialect, got) == "seen"
        async with live(run, dialect, request_body(dialect)) as stream:
            assert words(dialect, await stream.rest()) == "fine"
    assert [one.error for one in run.told(Ended)] == ["hook_failed"] * len(HOOKS) + [None]


@both
async def test_a_status_in_a_rerun_is_an_error_event(dialect: str) -> None:
    """The client has text already: upstream's 429 can be no status any more, its words are kept."""
    refusal = OVERLOADED if dialect == "messages" else SERVER
    script = [Reply(text("seen"), call("mine", {"n": 1})), Reply(error=(429, refusal), headers={"retry-after": "1"})]
    hook = Puppet()
    async with gateway_over({"m": script}, [hook]) as run:
        async with live(run, dialect, request_body(dialect)) as stream:
            got = await stream.rest()
        await Notes(run).ended()
    assert error(dialect, got)["message"] == "Overloaded"
    assert len(hook.plans) == len(hook.cleaned) == 1
    assert [one.error for one in run.told(Ended)] == ["upstream_status"]


@both
async def test_a_silent_upstream_is_an_error_event(dialect: str) -> None:
    """`read_timeout_seconds` without a byte in mid-stream."""
    script = [Reply(text("seen"), hold(asyncio.Event()))]
    async with gateway_over({"m": script}, [Puppet()], upstream={"read_timeout_seconds": 0.1}) as run:
        async with live(run, dialect, request_body(dialect)) as stream:
            told = error(dialect, await stream.rest())
        await run.model.until(lambda: run.model.requests[0].state == "left", 1)
    assert "read_timeout_seconds" in told["message"]


@both
async def test_an_error_that_comes_first_is_a_status_with_upstreams_own_words(dialect: str) -> None:
    """Nothing has gone to the client: SDKs try again on a status, and not on an event."""
    async with gateway_over({"m": [as_stream(reported(dialect), *begun(dialect))]}, [Puppet()]) as run:
        answer = await run.post(dialect, request_body(dialect, stream=True))
    assert answer.status_code == (529 if dialect == "messages" else 500)
    assert answer.json()["error"]["message"] == "Overloaded"
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("leaves", [True, False])
async def test_an_error_that_the_client_does_not_read_holds_nothing(
    monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """The last event does not fit into the buffers: the exchange ends when the client leaves, or at its time limit."""
    monkeypatch.setattr(respond, "_LAST_WORDS_SECONDS", 0.05)
    monkeypatch.setattr(respond, "_LOOK_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(stream_road, "Reader", Reader)
    begin, _ = around("messages")
    script = [Reply(raw(begin), raw(delta("x" * (12 << 20))), raw(reported("messages")), hold(asyncio.Event()))]
    async with gateway_over({"m": script}, [Puppet()], server={"request_timeout_seconds": 30 if leaves else 1}) as run:
        notes = Notes(run)
        _, writer = await ask(run, "messages", request_body("messages", stream=True))
        await run.model.until(lambda: bool(run.model.requests) and run.model.requests[0].state == "left")
        if leaves:
            writer.transport.abort()
        ended = await notes.ended()
        writer.transport.abort()
        assert run.gateway.admission.in_flight == 0
    assert (ended.error, ended.gone) == ("upstream_event", "stream")
    assert "Traceback" not in run.log.getvalue()


async def _out_of_time(_run: Run) -> None:
    """Nothing has to be done."""


async def _drained(run: Run) -> None:
    await run.gateway.admission.drain(0)


ENDS: dict[str, tuple[Callable[[Run], Awaitable[None]], dict[str, Any]]] = {
    "timeout": (_out_of_time, {"request_timeout_seconds": 0.3}),
    "draining": (_drained, {}),
}


@both
@pytest.mark.parametrize("kind", ENDS)
async def test_the_gateways_own_end_is_an_error_event(dialect: str, kind: str) -> None:
    """Request time-out and drain, while upstream or a hook is awaited, watched or not; both are cancelled."""
    end, server = ENDS[kind]
    never, planning = asyncio.Event(), asyncio.Event()

    async def plan(_given: dict[str, Any]) -> Any:
        planning.set()
        await never.wait()

    say = delta if dialect == "messages" else chunk
    half = say("unseen")[:-6]
    waits = Reply(*said(dialect, "seen", hold(never)))
    breaks_off = Reply(raw(around(dialect)[0]), raw(say("seen")), raw(half), hold(never))
    scripts = {
        "in the stream": [waits],
        "in an event": [breaks_off],
        "in a hook": [Reply(*said(dialect, "seen", index=9), call("mine", {"n": 1}))],
        "passing": [waits],
        "passing, in an event": [breaks_off],
    }
    hook = Puppet(plan=plan)
    got: dict[str, bytes] = {}
    all_there = asyncio.Barrier(len(scripts) + 1)
    async with gateway_over(scripts, [hook], server=server) as run:
        notes = Notes(run)

        async def one(name: str) -> None:
            tools = ("theirs",) if name.startswith("passing") else ("mine", "theirs")
            async with live(run, dialect, request_body(dialect, name, tools=tools)) as stream:
                await stream.until(b"seen")
                await all_there.wait()
                got[name] = await stream.rest()

        asking = [asyncio.create_task(one(name)) for name in scripts]
        await planning.wait()
        await all_there.wait()
        await end(run)
        await asyncio.gather(*asking)
        await notes.ended(len(scripts))
        left = [one for one in run.model.requests if one.model != "in a hook"]
        await run.model.until(lambda: all(one.state == "left" for one in left), 1)
    assert hook.cancelled == 1
    assert [one.error for one in run.told(Ended)] == [kind] * len(scripts)
    for name, stream in got.items():
        assert is_error(frames(stream)[-1]), name
        if name == "passing, in an event":
            assert stream.count(half) == 1
        else:
            error(dialect, stream)
