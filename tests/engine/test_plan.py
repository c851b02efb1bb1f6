"""Plans to decisions, and what is no plan."""

from __future__ import annotations

from typing import Any, cast

import pytest

from loopway.engine.plan import (
    AgenticLoopPlan,
    AgenticLoopRequestPatch,
    Override,
    PlanError,
    Rerun,
    Skip,
    Terminate,
    decide,
)

PATCH = AgenticLoopRequestPatch(messages=[{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("plan", "decision"),
    [
        (AgenticLoopPlan(), Skip()),
        (AgenticLoopPlan(request_patch=PATCH), Skip()),
        (AgenticLoopPlan(run_agentic_loop=True, request_patch=PATCH), Rerun(PATCH)),
        (AgenticLoopPlan(terminate=True), Terminate()),
        (AgenticLoopPlan(terminate=True, run_agentic_loop=True, request_patch=PATCH), Terminate()),
        (AgenticLoopPlan(terminate=True, run_agentic_loop=True), Terminate()),
        (AgenticLoopPlan(response_override={"a": 1}), Override({"a": 1})),
        (
            AgenticLoopPlan(response_override={"a": 1}, terminate=True, run_agentic_loop=True, request_patch=PATCH),
            Override({"a": 1}),
        ),
    ],
)
def test_the_first_that_is_set_wins(plan: Any, decision: Any) -> None:
    """Override before terminate before rerun; nothing set skips."""
    assert decide(plan) == decision


def test_an_override_may_be_a_model_of_an_sdk() -> None:
    """What has `model_dump` is read through it."""

    class Model:
        def model_dump(self) -> Any:
            return {"id": "x"}

    assert decide(AgenticLoopPlan(response_override=Model())) == Override({"id": "x"})


def patched(**fields: Any) -> Any:
    return AgenticLoopPlan(run_agentic_loop=True, request_patch=AgenticLoopRequestPatch(**fields))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (None, "returned None"),
        ({"run_agentic_loop": True}, "returned a dict"),
        (True, "returned a bool"),
        (AgenticLoopPlan(run_agentic_loop=True), "without a request_patch"),
        (AgenticLoopPlan(run_agentic_loop=cast("Any", "yes")), "run_agentic_loop is a str"),
        (AgenticLoopPlan(terminate=cast("Any", 1)), "terminate is a int"),
        (AgenticLoopPlan(response_override="text"), "response_override is a str"),
        (
            AgenticLoopPlan(run_agentic_loop=True, request_patch=cast("Any", {"messages": []})),
            "request_patch is a dict",
        ),
        (patched(model=""), "request_patch.model"),
        (patched(model=5), "request_patch.model"),
        (patched(messages="x"), "request_patch.messages"),
        (patched(messages=["x"]), "request_patch.messages"),
        (patched(messages=[]), "request_patch.messages is empty"),
        (patched(tools={}), "request_patch.tools"),
        (patched(max_tokens=0), "request_patch.max_tokens"),
        (patched(max_tokens=True), "request_patch.max_tokens"),
        (patched(max_tokens="5"), "request_patch.max_tokens"),
        (patched(optional_params=[]), "request_patch.optional_params"),
        (patched(optional_params={1: 2}), "request_patch.optional_params"),
        (patched(optional_params={"stream": True}), "client's own choice"),
        (patched(optional_params={"model": "x"}), "write request_patch.model"),
        (patched(optional_params={"messages": []}), "write request_patch.messages"),
        (patched(optional_params={"max_agentic_loops": 2}), "kwargs"),
        (patched(kwargs=None), "request_patch.kwargs"),
        (patched(kwargs={"max_agentic_loops": -1}), "max_agentic_loops is -1"),
        (patched(kwargs={"max_agentic_loops": True}), "max_agentic_loops is true"),
        (patched(kwargs={"max_agentic_loops": "3"}), "max_agentic_loops is a text"),
    ],
)
def test_what_is_no_plan_is_refused_with_what_to_write(plan: Any, words: Any) -> None:
    """A wrong plan is an error, never a guess."""
    with pytest.raises(PlanError) as refused:
        decide(plan)
    assert words in str(refused.value)
