"""Hooks and tools that fail in every way that was thought of: one exchange bears it, the others and the gateway do not.

What each phase's failure means is held by `tests/hooks/`; this is what is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from faults.counted import at_rest, every, rig, settled, told, unharmed
from inprocess import BOTH, Run, gateway_over, request_body
from loopway import AgenticLoopPlan, AgenticLoopRequestPatch, ToolError, server_tool
from loopway.testing import Reply, call, text
from puppets import Puppet

TIMEOUT_SECONDS = 0.2
BLOCKS_SECONDS = 0.15


def circle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def deep() -> Any:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


async def waits_for_what_was_cancelled(*_: Any) -> Any:
    task = asyncio.ensure_future(asyncio.sleep(10))
    task.cancel()
    return await task


async def hangs(*_: Any) -> None:
    await asyncio.Event().wait()


async def outlives_its_time() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def swallows_its_cancellation(given: dict[str, Any]) -> Any:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return given["rerun"]


def raises(error: BaseException) -> Callable[..., Any]:
    def hook(*_: Any) -> Any:
        raise error

    return hook


def blocks(given: dict[str, Any]) -> Any:
    time.sleep(BLOCKS_SECONDS)
    return given["rerun"]


def sleeps() -> str:
    time.sleep(BLOCKS_SECONDS)
    return "slept"


def rerun(**patch: Any) -> Callable[..., Any]:
    return lambda *_: AgenticLoopPlan(run_agentic_loop=True, request_patch=AgenticLoopRequestPatch(**patch))


PLANS: dict[str, tuple[int, Callable[[dict[str, Any]], Any]]] = {
    "raises": (500, raises(RuntimeError("no"))),
    "raises-a-group": (500, raises(ExceptionGroup("no", [ValueError("one"), KeyError("two")]))),
    "exits": (500, raises(SystemExit(3))),
    "calls-exit": (500, lambda _: sys.exit("usage: …")),
    "recurses": (500, raises(RecursionError())),
    "runs-out-of-memory": (500, raises(MemoryError())),
    "waits-for-what-was-cancelled": (500, waits_for_what_was_cancelled),
    "hangs": (500, hangs),
    "swallows-its-cancellation": (200, swallows_its_cancellation),
    "blocks-the-loop": (200, blocks),
    "returns-nothing": (500, lambda _: None),
    "returns-a-circle": (500, lambda _: AgenticLoopPlan(response_override={"content": circle()})),
    "returns-what-is-too-deep": (500, lambda _: AgenticLoopPlan(response_override={"content": deep()})),
    "patches-a-circle": (500, rerun(messages=circle())),
    "patches-what-is-too-deep": (500, rerun(optional_params={"x": deep()})),
    "patches-what-is-no-json": (500, rerun(messages=[{"role": "user", "content": object()}])),
    "patches-half-a-surrogate": (500, rerun(messages=[{"role": "user", "content": "\ud800"}])),
    "patches-another-model": (500, rerun(model="../../etc/passwd")),
}
"""By name: the status that the client has, and what the hook does when it is asked for its plan."""


def first_asks_then_says(request: Any) -> Reply:
    asked = isinstance(request.body["messages"][-1]["content"], str) and request.body["messages"][-1]["role"] == "user"
    return Reply(call("mine", {"n": 1})) if asked else Reply(text("fine", pieces=1))


def everywhere(run: Run, model: str, *tools: str) -> Callable[[], Awaitable[list[Any]]]:
    """A request on each of the four roads, all at once."""
    asked = [one for stream in (False, True) for one in every(run, model, tools=tools, stream=stream)]

    async def ask() -> list[Any]:
        return await asyncio.gather(*(one() for one in asked))

    return ask


async def test_plans(subtests: pytest.Subtests) -> None:
    """The client has the status of the table, with the hook's name if it is an error, and nothing is left of it."""

    def plan(given: dict[str, Any]) -> Any:
        return PLANS[given["model"]][1](given) if given["model"] in PLANS else given["rerun"]

    scripts = dict.fromkeys(PLANS, first_asks_then_says)
    loop = {"hook_timeout_seconds": TIMEOUT_SECONDS}
    async with rig({}, [Puppet(plan=plan)], scripts=scripts, loop=loop) as run:
        for name, (status, _) in PLANS.items():
            with subtests.test(name):
                (answers,) = await unharmed(run, everywhere(run, name, "mine"))
                for answer in answers:
                    assert told(answer) == status
                    assert ("Puppet" in answer.text) == (status != 200)


TOOLS: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (raises(RuntimeError("away")), "failed: RuntimeError: away"),
    "says-so": (raises(ToolError("no such city")), "no such city"),
    "exits": (raises(SystemExit(3)), "failed: SystemExit"),
    "waits-for-what-was-cancelled": (waits_for_what_was_cancelled, "CancelledError"),
    "hangs": (hangs, "gave no result within 0.2 seconds"),
    "returns-a-circle": (circle, "no text and no JSON"),
    "returns-what-is-too-deep": (deep, "no text and no JSON"),
    "returns-what-is-no-json": (object, "no text and no JSON"),
    "returns-a-lot": (lambda: "x" * 5_000_000, "characters left out"),
    "blocks-the-loop": (sleeps, "slept"),
    "looks-like-a-stream": (lambda: "\n\nevent: error\ndata: {}\n\n", "event: error"),
    "returns-half-a-surrogate": (lambda: "\ud800 is half", "? is half"),
}
"""By name: what the tool does, and what the model reads in its result."""


async def test_tools(subtests: pytest.Subtests) -> None:
    """A failing tool is a result that the model reads, the answer is a 200, and nothing is left of it."""

    @server_tool
    async def tool(what: str) -> Any:
        """Does it."""
        made = TOOLS[what][0]()
        return await made if asyncio.iscoroutine(made) else made

    def script(request: Any) -> Reply:
        asked = request.body["messages"][-1]
        return (
            Reply(text("fine", pieces=1))
            if asked["content"] != "hello"
            else Reply(call("tool", {"what": request.model}))
        )

    loop = {"hook_timeout_seconds": TIMEOUT_SECONDS}
    async with rig({}, [tool], scripts=dict.fromkeys(TOOLS, script), loop=loop) as run:
        for name, (_, read) in TOOLS.items():
            with subtests.test(name):
                asked = len(run.model.requests)
                (answers,) = await unharmed(run, everywhere(run, name))
                for answer in answers:
                    assert told(answer) == 200
                    assert "fine" in answer.text
                ends = [one.body["messages"][-1] for one in run.model.requests[asked:] if one.model == name]
                results = [str(one) for one in ends if one["content"] != "hello"]
                assert len(results) == 4
                assert all(read in result for result in results)


FAILURES: dict[str, tuple[bool, Callable[[], Any]]] = {
    "raises": (True, raises(RuntimeError("no"))),
    "exits": (True, raises(SystemExit(3))),
    "waits-for-what-was-cancelled": (True, waits_for_what_was_cancelled),
    "hangs": (True, hangs),
    "returns-what-is-none": (True, object),
    "swallows-its-cancellation": (False, outlives_its_time),
    "blocks-the-loop": (False, lambda: time.sleep(BLOCKS_SECONDS / 5)),
}
"""By name: whether it is a failure, and what the hook does where it is asked; None goes on with its work."""
PHASES = {"pre_call": 500, "gate": 500, "plan": 500, "post": 500, "cleanup": 200}
"""By the phase that fails: the status that the client has."""


class Faulty(Puppet):
    """Owns the tool `faulty`, and does something else than its work in one phase of an exchange with the model `m`."""

    def __init__(self) -> None:
        super().__init__("faulty")
        self.phase = ""
        self.does: Callable[[], Any] = lambda: None
        self.met = 0

    async def _do(self, phase: str) -> Any:
        if phase != self.phase:
            return None
        self.met += 1
        done = self.does()
        return await done if asyncio.iscoroutine(done) else done

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> Any:
        return (await self._do("pre_call") if data["model"] == "m" else None) or data

    async def async_should_run_agentic_loop(self, **given: Any) -> Any:  # type: ignore[override]
        return await self._do("gate") or await super().async_should_run_agentic_loop(**given)

    async def async_build_agentic_loop_plan(self, **given: Any) -> Any:  # type: ignore[override]
        return await self._do("plan") or await super().async_build_agentic_loop_plan(**given)

    async def async_post_agentic_loop_response_hook(self, response: Any, plan: Any, kwargs: dict[str, Any]) -> Any:
        return await self._do("post") or response

    async def async_agentic_loop_cleanup_hook(self, plan: AgenticLoopPlan, kwargs: dict[str, Any]) -> None:
        self.cleaned.append(plan)
        await self._do("cleanup")


def faulty_then_fine(request: Any) -> Reply:
    asked = isinstance(request.body["messages"][-1]["content"], str) and request.body["messages"][-1]["role"] == "user"
    return Reply(text("first "), call("faulty", {"n": 1})) if asked else Reply(text("fine", pieces=1))


@pytest.mark.parametrize("phase", PHASES)
async def test_phases(phase: str, subtests: pytest.Subtests) -> None:
    """Each failure in each phase, on all four roads at once: its status, a clean-up per plan, nothing left."""
    hook = Faulty()
    loop = {"hook_timeout_seconds": TIMEOUT_SECONDS / 2}
    async with rig({}, [hook], scripts={"m": faulty_then_fine}, loop=loop) as run:
        hook.phase = phase
        for name, (fails, hook.does) in FAILURES.items():
            with subtests.test(name):
                hook.met = 0
                (answers,) = await unharmed(run, everywhere(run, "m", "faulty"))
                status = PHASES[phase] if fails else 200
                assert [told(answer) for answer in answers] == [status] * 4
                assert all(("Faulty" if status == 500 else "fine") in answer.text for answer in answers)
                assert hook.met == (8 if phase == "gate" and not fails else 4)
                assert len(hook.plans) == len(hook.cleaned)
                hook.plans.clear()
                hook.cleaned.clear()


async def test_what_a_hook_leaks_is_all_that_is_left() -> None:
    """A task and a file that a hook forgets stay, and nothing of ours with them; answers go on."""
    leaked: list[tuple[asyncio.Task[Any], int]] = []

    def leak(given: dict[str, Any]) -> Any:
        leaked.append((asyncio.ensure_future(asyncio.Event().wait()), os.open(os.devnull, os.O_RDONLY)))
        return given["rerun"]

    async with rig({}, [Puppet(plan=leak)], scripts={"m": first_asks_then_says}) as run:
        before, held = await at_rest(run), len(leaked)
        asked = [one for stream in (False, True) for one in every(run, "m", tools=("mine",), stream=stream)]
        assert [told(await ask()) for ask in asked * 3] == [200] * 12
        assert len(leaked) - held == 12
        await run.fresh()
        await settled(run, replace(before, tasks=before.tasks + 12, descriptors=before.descriptors + 12))
    for task, number in leaked:
        task.cancel()
        os.close(number)


async def test_rules_that_exit_are_a_500(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.exit` in a rule is the rule's failure, in the dialect's shape, and not the gateway's end."""
    sys.modules["exiting_rule"] = type(sys)("exiting_rule")
    monkeypatch.setattr(sys.modules["exiting_rule"], "rule", lambda _text: sys.exit(1), raising=False)
    try:
        async with gateway_over({"m": []}, rules={"pre_call": ["exiting_rule.rule"]}) as run:
            for dialect in BOTH:
                answer = await run.post(dialect, request_body(dialect))
                assert answer.status_code == 500
                assert "exiting_rule" in answer.json()["error"]["message"]
    finally:
        del sys.modules["exiting_rule"]
