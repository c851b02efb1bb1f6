"""Hooks and tools that fail in every way that was thought of: one exchange bears it, the others and the gateway do not.

What each phase's failure means is held by `tests/hooks/`; this is what is left behind.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from faults.counted import counts, every, rig, settled, unharmed
from inprocess import BOTH, gateway_over, request_body
from loopway import AgenticLoopPlan, AgenticLoopRequestPatch, ToolError, server_tool
from loopway.testing import Reply, call, text
from puppets import Puppet

TIMEOUT_SECONDS = 0.2
BLOCKS_SECONDS = 0.3


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
    return Reply(call("mine", {"n": 1})) if asked else Reply(text("fine"))


async def test_plans(subtests: pytest.Subtests) -> None:
    """The client has the status of the table, with the hook's name if it is an error, and nothing is left of it."""

    def plan(given: dict[str, Any]) -> Any:
        return PLANS[given["model"]][1](given) if given["model"] in PLANS else given["rerun"]

    scripts = dict.fromkeys(PLANS, first_asks_then_says)
    loop = {"hook_timeout_seconds": TIMEOUT_SECONDS}
    async with rig({}, [Puppet(plan=plan)], scripts=scripts, loop=loop) as run:
        for name, (status, _) in PLANS.items():
            with subtests.test(name):
                for answer in await unharmed(run, *every(run, name, tools=("mine",))):
                    assert answer.status_code == status
                    if status != 200:
                        assert "Puppet" in answer.json()["error"]["message"]


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
        return Reply(text("fine")) if asked["content"] != "hello" else Reply(call("tool", {"what": request.model}))

    loop = {"hook_timeout_seconds": TIMEOUT_SECONDS}
    async with rig({}, [tool], scripts=dict.fromkeys(TOOLS, script), loop=loop) as run:
        for name, (_, told) in TOOLS.items():
            with subtests.test(name):
                asked = len(run.model.requests)
                for answer in await unharmed(run, *every(run, name, tools=())):
                    assert answer.status_code == 200
                reruns = [one for one in run.model.requests[asked:] if one.model == name and one.number % 2 == 0]
                assert len(reruns) == 2
                assert all(told in str(one.body["messages"][-1]) for one in reruns)


async def test_what_a_hook_leaks_is_all_that_is_left() -> None:
    """A task that a hook forgets stays, and nothing of ours with it; answers go on."""
    leaked: list[asyncio.Task[Any]] = []

    def leak(given: dict[str, Any]) -> Any:
        leaked.append(asyncio.ensure_future(asyncio.Event().wait()))
        return given["rerun"]

    async with rig({}, [Puppet(plan=leak)], scripts={"m": first_asks_then_says}) as run:
        await run.fresh()
        before, held = counts(run), len(leaked)
        answers = [await ask() for ask in every(run, "m", tools=("mine",)) * 3]
        assert [answer.status_code for answer in answers] == [200] * 6
        await run.fresh()
        await settled(run, replace(before, tasks=before.tasks + len(leaked) - held))
    for task in leaked:
        task.cancel()


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
