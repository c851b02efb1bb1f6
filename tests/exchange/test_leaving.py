"""A client that goes away, in each phase of an exchange: within a second nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from inprocess import BOTH, Run, gateway_over, request_body
from loopway import AgenticLoopPlan
from loopway.engine.notes import Ended, HookRan
from loopway.server import respond
from loopway.testing import Reply, call, hold, raw, text
from puppets import Puppet
from streams import Live, Notes, live, said

both = pytest.mark.parametrize("dialect", BOTH)
SOON = 1.0
"""Seconds that anything may take behind the leaving of a client: CONTRACT, section 6, point 10."""


class Slow(Puppet):
    """Waits in a phase, for ever, and says when it is there and when it was cancelled there."""

    def __init__(self) -> None:
        super().__init__()
        self.begin("")

    def begin(self, phase: str) -> None:
        """From now on, wait in this phase."""
        self.phase = phase
        self.there = asyncio.Event()
        self.left = asyncio.Event()
        self.cleaned.clear()

    async def _wait(self, phase: str) -> None:
        if phase != self.phase:
            return
        self.there.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> Any:
        await self._wait("pre_call")
        return data

    async def async_should_run_agentic_loop(self, **given: Any) -> Any:  # type: ignore[override]
        await self._wait("gate")
        return await super().async_should_run_agentic_loop(**given)

    async def async_build_agentic_loop_plan(self, **given: Any) -> Any:  # type: ignore[override]
        plan = await super().async_build_agentic_loop_plan(**given)
        await self._wait("plan")
        return plan

    async def async_post_agentic_loop_response_hook(
        self, response: Any, plan: AgenticLoopPlan, kwargs: dict[str, Any]
    ) -> Any:
        await self._wait("post")
        return response


@dataclass
class Phase:
    """Where the client leaves.

    Attributes:
        script: The model's replies, given a gate that nobody opens.
        hook: The phase of the hook that never ends.
        calls: How many calls of the model there are when the client leaves.
        sees: What a streaming client has read by then.
        gone: What the last note says of it.
        cleaned: How many plans there are to clean up.
        pinged: Whether keepalives come quickly.
        tools: What the request offers.
    """

    script: Callable[[str, asyncio.Event], list[Reply]]
    calls: int
    gone: str
    hook: str = ""
    sees: tuple[bytes, ...] = ()
    cleaned: int = 0
    pinged: bool = False
    tools: tuple[str, ...] = ("mine", "theirs")
    streams_only: bool = False


CALLING = Reply(text("seen", pieces=1), call("mine", {"n": 1}))
SEEN = (b"seen",)

PHASES = {
    "a pre-call hook runs": Phase(lambda _d, _g: [CALLING], 0, "hook", hook="pre_call"),
    "waiting for the head": Phase(lambda _d, gate: [Reply(gate=gate)], 1, "upstream"),
    "streaming": Phase(lambda d, gate: [Reply(*said(d, "seen", hold(gate)))], 1, "stream", sees=SEEN),
    "holding a call": Phase(
        lambda _d, gate: [Reply(text("seen", pieces=1), call("mine", {"n": 1}), hold(gate))], 1, "stream", sees=SEEN
    ),
    "inside an event": Phase(
        lambda _d, gate: [Reply(text("seen", pieces=1), raw(b"data: {"), hold(gate))],
        1,
        "stream",
        sees=SEEN,
        streams_only=True,
    ),
    "a gate runs": Phase(lambda _d, _g: [CALLING], 1, "hook", hook="gate", sees=SEEN),
    "a plan is made": Phase(lambda _d, _g: [CALLING], 1, "hook", hook="plan", sees=SEEN),
    "the follow-up starts": Phase(lambda _d, gate: [CALLING, Reply(gate=gate)], 2, "upstream", sees=SEEN, cleaned=1),
    "the follow-up streams": Phase(
        lambda d, gate: [CALLING, Reply(*said(d, "again", hold(gate)))], 2, "stream", sees=SEEN, cleaned=1
    ),
    "a post hook runs": Phase(
        lambda _d, _g: [CALLING, Reply(text("hidden"))], 2, "hook", hook="post", sees=SEEN, cleaned=1
    ),
    "keepalive before the head": Phase(
        lambda _d, gate: [Reply(gate=gate)],
        1,
        "upstream",
        sees=(b"ping",),
        pinged=True,
        streams_only=True,
    ),
    "keepalive while a plan is made": Phase(
        lambda _d, _g: [CALLING],
        1,
        "hook",
        hook="plan",
        sees=(b"seen", b"ping"),
        pinged=True,
        streams_only=True,
    ),
    "passing, before the head": Phase(lambda _d, gate: [Reply(gate=gate)], 1, "upstream", tools=("theirs",)),
    "passing, in the stream": Phase(
        lambda d, gate: [Reply(*said(d, "seen", hold(gate)))],
        1,
        "stream",
        sees=SEEN,
        tools=("theirs",),
        streams_only=True,
    ),
}


CASES = [
    (name, stream) for name, phase in PHASES.items() for stream in (True, False) if stream or not phase.streams_only
]


class Gateways:
    """One gateway with quick keepalives and one without, for all phases; each case has a model of its own."""

    def __init__(self, dialect: str, hook: Slow, runs: dict[bool, Run]) -> None:
        self.dialect = dialect
        self.hook = hook
        self.runs = runs
        self.notes = {pinged: Notes(run) for pinged, run in runs.items()}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BOTH)
async def gateways(request: pytest.FixtureRequest) -> AsyncIterator[Gateways]:
    dialect, hook, never = request.param, Slow(), asyncio.Event()
    scripts = {f"{name} {stream}": PHASES[name].script(dialect, never) for name, stream in CASES}
    async with (
        gateway_over(scripts, [hook]) as calm,
        gateway_over(scripts, [hook], loop={"keepalive_seconds": 0.02}) as pinged,
    ):
        yield Gateways(dialect, hook, {False: calm, True: pinged})


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("name", "stream"), CASES)
async def test_a_client_that_leaves_leaves_nothing(gateways: Gateways, name: str, stream: bool) -> None:
    """Upstream is closed, the hook is cancelled, clean-up runs once per plan, no exchange and no task is left."""
    phase, hook, model = PHASES[name], gateways.hook, f"{name} {stream}"
    run, notes = gateways.runs[phase.pinged], gateways.notes[phase.pinged]
    hook.begin(phase.hook)
    before = asyncio.all_tasks()

    def told(kind: type) -> list[Any]:
        return [note for subject, note in notes if subject.model == model and isinstance(note, kind)]

    def requests() -> list[Any]:
        return [one for one in run.model.requests if one.model == model]

    body = request_body(gateways.dialect, model, tools=phase.tools)
    async with leaving(run, gateways.dialect, body, stream=stream) as client:
        await run.model.until(lambda: len(requests()) == phase.calls)
        if client is not None:
            await client.until(*phase.sees)
        if phase.hook:
            await hook.there.wait()
    async with asyncio.timeout(SOON):
        await notes.until(lambda: bool(told(Ended)))
        if phase.calls and not phase.hook:
            await run.model.until(lambda: requests()[-1].state == "left")
        if phase.hook:
            await hook.left.wait()
        await notes.until(lambda: len(hook.cleaned) == phase.cleaned)
        await no_more_tasks_than(before)
    assert run.gateway.admission.in_flight == 0
    assert len(requests()) == phase.calls
    assert len(hook.cleaned) == len([note for note in told(HookRan) if note.phase == "cleanup"]) == phase.cleaned
    (ended,) = told(Ended)
    gone = phase.gone if stream or phase.gone != "stream" else "upstream"
    assert (ended.gone, ended.error) == (gone, None)
    assert ended.status == (200 if stream and phase.sees else 499)
    assert "Traceback" not in gateways.runs[True].log.getvalue()  # the log is one for both


@contextlib.asynccontextmanager
async def leaving(run: Run, dialect: str, body: dict[str, Any], *, stream: bool) -> Any:
    """A client that closes its connection where this block ends. Gives the stream, once the first byte is there."""
    if not stream:
        posting = asyncio.ensure_future(run.post(dialect, body))
        yield None
        await cancelled(posting)
        return
    opened: asyncio.Future[Live] = asyncio.get_running_loop().create_future()

    async def ask() -> None:
        async with live(run, dialect, body) as answer:
            opened.set_result(answer)
            await asyncio.Event().wait()

    asking = asyncio.ensure_future(ask())
    yield Coming(opened)
    await cancelled(asking)


class Coming:
    """A stream whose head may still be on its way."""

    def __init__(self, opened: asyncio.Future[Live]) -> None:
        self._opened = opened

    async def until(self, *parts: bytes) -> None:
        if parts:
            await (await self._opened).until(*parts)


async def cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def no_more_tasks_than(before: set[asyncio.Task[Any]]) -> None:
    """Wait until every task of ours that began behind `before` has ended."""
    here = asyncio.current_task()
    while left := [one for one in asyncio.all_tasks() - before if one is not here and "ScriptedModel" not in repr(one)]:
        await asyncio.wait(left, timeout=SOON)


async def test_a_client_that_stops_reading_and_leaves_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway waits for a slow reader; when that one is gone, it waits no longer."""
    monkeypatch.setattr(respond, "_LOOK_AFTER_SECONDS", 0.0)
    many = [raw(b": %b\n\n" % (b"x" * 60_000)) for _ in range(400)]
    open_end = hold(asyncio.Event())
    async with gateway_over({"m": [Reply(text("seen", pieces=1), *many, open_end)]}, [Puppet()]) as run:
        notes = Notes(run)
        async with live(run, "messages", request_body("messages")) as stream:
            await stream.until(b"seen")
            assert run.model.requests[0].state == "open"
        ended = await notes.ended(seconds=SOON)
        await run.model.until(lambda: run.model.requests[0].state == "left", SOON)
    assert ended.gone == "stream"


@both
async def test_one_client_that_leaves_does_not_touch_another(dialect: str) -> None:
    """The other exchange, in the same phase of the same hook, goes on to its end."""
    gates = [asyncio.Event(), asyncio.Event()]
    plans = iter(gates)

    async def plan(given: dict[str, Any]) -> Any:
        await next(plans).wait()
        return given["rerun"]

    script = [CALLING, CALLING, Reply(text("done", pieces=1))]
    hook = Puppet(plan=plan)
    async with gateway_over({"m": script}, [hook]) as run:
        notes = Notes(run)
        async with contextlib.AsyncExitStack() as stack:
            first = await stack.enter_async_context(live(run, dialect, request_body(dialect)))
            await first.until(b"seen")
            async with live(run, dialect, request_body(dialect)) as second:
                await second.until(b"seen")
                await notes.until(lambda: True)
            ended = await notes.ended(seconds=SOON)
            assert ended.gone == "hook"
            gates[0].set()
            assert b"done" in await first.rest()
    assert hook.cancelled == 1
