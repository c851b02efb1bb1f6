"""Plans, as hook authors write them, and decisions, as the loop reads them.

This file must not know who wrote a plan or what a request looks like on the wire.
"""

from __future__ import annotations

from typing import Any

import msgspec

from loopway.engine.answers import Answers
from loopway.engine.limits import loops_asked


class AgenticLoopRequestPatch(msgspec.Struct, kw_only=True):
    """What a rerun changes. What is left out stays exactly as it was.

    Attributes:
        model: A configured model name; it may be served by another upstream of the same dialect.
        messages: The whole new list of messages, in the dialect's shape. Without it the old ones are sent again.
        tools: The whole new list of tools, in the dialect's shape. An empty list sends no tools.
        max_tokens: Most tokens of the next reply. Sent under the name that the request itself uses.
        optional_params: Any other members of the request body, merged over the old ones; `None` removes one.
        kwargs: Added to `kwargs` of the next iterations. `max_agentic_loops` in it sets the limit of this exchange.
    """

    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    optional_params: dict[str, Any] = msgspec.field(default_factory=dict)
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


class AgenticLoopPlan(msgspec.Struct, kw_only=True):
    """What a hook wants done with a reply. Read in this order; the first that is set wins.

    Attributes:
        response_override: The answer for the client, in the dialect's shape; returned as it is.
        terminate: End the loop with the current reply.
        run_agentic_loop: Run the model again with `request_patch`, which must then be there.
        request_patch: What the rerun changes.
        stop_reason: Why, in the hook's own words; logged, never sent.
        metadata: The hook's own; handed back to its post and clean-up hooks.

    With nothing set the plan skips: the next hook is asked.
    """

    run_agentic_loop: bool = False
    request_patch: AgenticLoopRequestPatch | None = None
    response_override: Any = None
    terminate: bool = False
    stop_reason: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class PlanError(ValueError):
    """A plan that cannot be carried out; the text says what was found and what to write."""


class Skip(msgspec.Struct, frozen=True, tag=True):
    """Ask the next hook."""


class Override(msgspec.Struct, frozen=True, tag=True):
    """Return this value to the client."""

    value: dict[str, Any]


class Terminate(msgspec.Struct, frozen=True, tag=True):
    """End the loop with the current reply."""


class Rerun(msgspec.Struct, frozen=True, tag=True):
    """Call the model again with this patch."""

    patch: AgenticLoopRequestPatch


class Answered(msgspec.Struct, frozen=True, tag=True):
    """Call the model again with these answers to all calls of its reply."""

    answers: Answers


Decision = Skip | Override | Terminate | Rerun | Answered


def decide(plan: object) -> Skip | Override | Terminate | Rerun:
    """Read a plan. Raises `PlanError` where it is no plan, or one that cannot be carried out."""
    if not isinstance(plan, AgenticLoopPlan):
        raise PlanError(f"it returned {_named(plan)}; return an AgenticLoopPlan")
    for name in ("terminate", "run_agentic_loop"):
        if not isinstance(getattr(plan, name), bool):
            raise PlanError(f"{name} is {_named(getattr(plan, name))}; write True or False")
    if plan.response_override is not None:
        return Override(_mapping(plan.response_override, "response_override"))
    if plan.terminate:
        return Terminate()
    if not plan.run_agentic_loop:
        return Skip()
    if plan.request_patch is None:
        raise PlanError(
            "run_agentic_loop=True without a request_patch; add request_patch=AgenticLoopRequestPatch(messages=…)"
        )
    return Rerun(_checked(plan.request_patch))


def _checked(patch: object) -> AgenticLoopRequestPatch:
    if not isinstance(patch, AgenticLoopRequestPatch):
        raise PlanError(f"request_patch is {_named(patch)}; write an AgenticLoopRequestPatch")
    if patch.model is not None and (not isinstance(patch.model, str) or not patch.model):
        raise PlanError(f"request_patch.model is {_named(patch.model)}; write a configured model name")
    for name in ("messages", "tools"):
        value = getattr(patch, name)
        if value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise PlanError(f"request_patch.{name} is {_named(value)}; write a list of mappings")
    if patch.messages is not None and not patch.messages:
        raise PlanError("request_patch.messages is empty; leave it out to send the old messages again")
    tokens = patch.max_tokens
    if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1):
        raise PlanError(f"request_patch.max_tokens is {tokens!r}; write a whole number of at least 1")
    for name in ("optional_params", "kwargs"):
        value = getattr(patch, name)
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise PlanError(f"request_patch.{name} is {_named(value)}; write a mapping with text keys")
    for name in ("messages", "model", "stream", "max_agentic_loops"):
        if name in patch.optional_params:
            raise PlanError(f"request_patch.optional_params has {name!r}; {_INSTEAD[name]}")
    if "max_agentic_loops" in patch.kwargs:
        try:
            loops_asked(patch.kwargs["max_agentic_loops"])
        except ValueError as wrong:
            raise PlanError(f"request_patch.kwargs.max_agentic_loops {wrong}") from None
    return patch


_INSTEAD = {
    "messages": "write request_patch.messages",
    "model": "write request_patch.model, which is routed",
    "stream": "whether the answer streams is the client's own choice",
    "max_agentic_loops": "write request_patch.kwargs['max_agentic_loops']",
}


def _mapping(value: object, name: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    for method in ("model_dump", "to_dict", "dict"):  # pydantic models of the SDKs, and what looks like them
        dump = getattr(value, method, None)
        if callable(dump):
            dumped = dump()
            if isinstance(dumped, dict):
                return dumped
    if isinstance(value, msgspec.Struct):
        built = msgspec.to_builtins(value)
        if isinstance(built, dict):
            return built
    raise PlanError(f"{name} is {_named(value)}; write a whole reply in the dialect's shape, as a mapping")


def _named(value: object) -> str:
    """What something is, without its content."""
    if value is None:
        return "None"
    return f"a {type(value).__name__}"
