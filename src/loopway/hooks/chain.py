"""Asks the hooks: in order, with a time-out each, and with one stance for each kind of failure.

This file must not know the wire. Two lifetimes, two classes: `Chain` is the gateway's, `Session` one exchange's.

=========  ===========================================================================================
a failure  what follows (an exception, a time-out, a wrong type)
=========  ===========================================================================================
pre_call   the exchange fails; a text or `Rejected` is no failure but a 400 with that text
gate       the next hook is asked; if the reply calls a tool that only this hook runs, the exchange fails
plan       the exchange fails
post       the exchange fails: its reply may hold what the hook exists to keep back
cleanup    nothing: the answer is out
=========  ===========================================================================================

Each failure is logged and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, get_args

import msgspec

from loopway.engine.fingerprint import fingerprint
from loopway.engine.loop import Claim, Gate, Plan
from loopway.engine.notes import HookRan, Listener, Phase, Subject
from loopway.engine.plan import AgenticLoopPlan, AgenticLoopRequestPatch, Decision, PlanError, Rerun, decide
from loopway.engine.reply import Reply
from loopway.errors import BadRequest, ExchangeError, HookFailed, Rejected
from loopway.hooks.base import overrides
from loopway.hooks.failure import told
from loopway.hooks.view import TooDeep, View, fresh, plain, view
from loopway.ids import new_id
from loopway.state import HookCache

Surface = Literal["messages", "chat_completions"]

_CLIENT_ERROR = range(400, 500)
_ENDLESS = "contains itself, or is nested too deeply"


class HasData(Protocol):
    """A request as pre-call hooks need it."""

    def data(self) -> dict[str, Any]:
        """The whole body as fresh plain data."""
        ...


R = TypeVar("R", bound=HasData)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The request of the current iteration as hooks see it. Each function gives a fresh copy."""

    model: str
    stream: bool
    offered: frozenset[str]
    messages: Callable[[], list[Any]]
    tools: Callable[[], list[Any] | None]
    optional_params: Callable[[], dict[str, Any]]


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and over which dialect."""

    surface: Surface
    provider: str
    call_type: str
    key_name: str
    key_models: tuple[str, ...]
    metadata: Callable[[], dict[str, Any]]


class CallLog:
    """What a plan gets as `logging_obj`: the few members of LiteLLM's that hooks read."""

    def __init__(self, call_id: str, model: str, stream: bool) -> None:
        self.litellm_call_id = call_id
        self.litellm_trace_id = call_id
        self.model = model
        self.stream = stream
        self.model_call_details: dict[str, Any] = {"litellm_call_id": call_id, "model": model}


class Hook:
    """A configured hook, with what the gateway knows of it. Its name is what logs and metrics call it."""

    def __init__(self, name: str, instance: Any) -> None:
        self.name = name
        self.instance = instance
        self.owned: frozenset[str] = frozenset(getattr(instance, "server_fulfilled_tool_names", ()) or ())
        base_gate = overrides(instance, "async_should_run_agentic_loop")
        chat_gate = overrides(instance, "async_should_run_chat_completion_agentic_loop")
        self.watches: dict[Surface, bool] = {
            "messages": base_gate,
            "chat_completions": base_gate or chat_gate,
        }
        self.chat_gate = chat_gate
        self.chat_plan = overrides(instance, "async_build_chat_completion_agentic_loop_plan")
        self.pre_call = overrides(instance, "async_pre_call_hook")
        self.post = overrides(instance, "async_post_agentic_loop_response_hook")
        self.cleanup = overrides(instance, "async_agentic_loop_cleanup_hook")

    def __repr__(self) -> str:
        return f"Hook({self.name})"


class Chain:
    """All hooks, in the configured order.

    Args:
        hooks: Names and instances; the instances have passed `registry.checked`.
        timeout_seconds: Most time of one phase of one hook.
        listener: Is told each phase that ran.
    """

    def __init__(
        self,
        hooks: Sequence[tuple[str, object]],
        *,
        timeout_seconds: float,
        listener: Listener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hooks = tuple(Hook(name, instance) for name, instance in hooks)
        self.owned: frozenset[str] = frozenset().union(*(hook.owned for hook in self.hooks))
        self.has_pre_call = any(hook.pre_call for hook in self.hooks)
        self._watched: dict[Surface, frozenset[str] | None] = {one: self._names(one) for one in get_args(Surface)}
        self.timeout_seconds = timeout_seconds
        self.listener = listener
        self.clock = clock
        self.cache = HookCache()

    def watches(self, surface: Surface, offered: Callable[[], frozenset[str]]) -> bool:
        """Whether any hook wants to see the replies to a request that offers these tools."""
        wanted = self._watched[surface]
        return wanted is None or (bool(wanted) and not wanted.isdisjoint(offered()))

    def _names(self, surface: Surface) -> frozenset[str] | None:
        """The tool names whose replies hooks want to see; None for all replies."""
        watching = [hook for hook in self.hooks if hook.watches[surface]]
        return None if any(not hook.owned for hook in watching) else frozenset().union(*(h.owned for h in watching))

    def any_name(self, surface: Surface) -> bool:
        """Whether a hook without names watches this dialect: it may claim any call."""
        return self._watched[surface] is None

    def session(self, subject: Subject, caller: Caller) -> Session:
        """Ask on behalf of one exchange."""
        return Session(self, subject, caller)


class Session:
    """The hooks' side of one exchange: what they added to `kwargs`, and which plans must be cleaned up.

    Attributes:
        seconds: Time spent in hooks.
        planned: The hook and the plan that led to the current iteration, or None.
    """

    def __init__(self, chain: Chain, subject: Subject, caller: Caller) -> None:
        self._chain = chain
        self._subject = subject
        self._caller = caller
        self._carried: dict[str, Any] = {}
        self._plans: list[tuple[Hook, AgenticLoopPlan, dict[str, Any]]] = []
        self._call_id = ""
        self._then: tuple[int, tuple[str, ...]] = (0, ())  # the limit and the fingerprints behind the last plan
        self.seconds = 0.0
        self.planned: tuple[Hook, AgenticLoopPlan] | None = None

    # --- phases ---

    async def pre_call(self, request: R, accept: Callable[[R, dict[str, Any]], R]) -> R:
        """Let every pre-call hook see the request and change it.

        Args:
            request: The client's request; `data()` gives it as fresh plain data.
            accept: Makes the changed request. What it raises is the hook's failure.
        """
        for hook in self._chain.hooks:
            if not hook.pre_call:
                continue
            try:
                given = view(request.data())
            except TooDeep as wrong:
                raise BadRequest(f"$: {wrong}", "$") from None
            caller = View(
                key_alias=self._caller.key_name,
                models=list(self._caller.key_models),
                metadata=View(),
                api_key=None,
                user_id=None,
                team_id=None,
            )
            returned = await self._run(
                hook,
                "pre_call",
                0,
                hook.instance.async_pre_call_hook,
                user_api_key_dict=caller,
                cache=self._chain.cache,
                data=given,
                call_type=self._caller.call_type,
            )
            if isinstance(returned, str):
                raise Rejected(returned or "a hook of the gateway refused the request")
            if isinstance(returned, Exception):
                raise self._rejection(returned) or self._failed(hook, "pre_call", 0, "it returned an exception")
            if returned is None:
                returned = given
            if not isinstance(returned, dict) or not all(isinstance(name, str) for name in returned):
                raise self._failed(hook, "pre_call", 0, f"it returned a {type(returned).__name__}, no request")
            try:
                request = accept(request, plain(returned))
            except ExchangeError as wrong:
                raise self._failed(hook, "pre_call", 0, f"the request that it returned: {wrong.text}") from None
            except RecursionError:
                raise self._failed(hook, "pre_call", 0, f"the request that it returned {_ENDLESS}") from None
            except (TypeError, ValueError) as wrong:  # what compares like an array
                raise self._failed(hook, "pre_call", 0, f"the request that it returned is no JSON: {wrong}") from wrong
        return request

    async def gate(self, command: Gate, asked: Asked) -> Claim | None:
        """Ask the gates behind number `after`; the first that claims wins."""
        for number, hook in enumerate(self._chain.hooks):
            if number <= command.after or not hook.watches[self._caller.surface]:
                continue
            if hook.owned and not hook.owned & asked.offered:
                continue
            try:
                claimed, context = await self._ask_gate(hook, command, asked)
            except HookFailed:
                if any(call.name in hook.owned for call in command.reply.calls):
                    raise
                continue
            if claimed:
                return Claim(number, hook.name, context)
        return None

    async def plan(self, command: Plan, asked: Asked) -> Decision:
        """Ask the hook that claimed for its plan."""
        hook = self._chain.hooks[command.claim.hook]
        chat = self._caller.surface == "chat_completions" and hook.chat_plan
        kwargs = self._kwargs(command.depth, command.limits.loops, command.fingerprints)
        common: dict[str, Any] = {
            "tools": command.claim.context,
            "model": asked.model,
            "messages": asked.messages(),
            "response": view(command.reply.value()),
            "logging_obj": CallLog(self._id(), asked.model, asked.stream),
            "stream": asked.stream,
            "kwargs": kwargs,
        }
        if chat:
            ask = hook.instance.async_build_chat_completion_agentic_loop_plan
            common["optional_params"] = asked.optional_params()
        else:
            ask = hook.instance.async_build_agentic_loop_plan
            common["anthropic_messages_provider_config"] = None
            common["anthropic_messages_optional_request_params"] = asked.optional_params()

        # Before the plan is asked for: the context is the hook's own, and it may change it.
        seen = (*command.fingerprints, fingerprint(command.claim.context, command.reply.calls)) if hook.post else ()
        plan = await self._run(hook, "plan", command.depth, ask, **common)
        if isinstance(plan, AgenticLoopPlan):
            cleanup = self._kwargs(command.depth, command.limits.loops, command.fingerprints)
            self._plans.append((hook, plan, cleanup))
        try:
            decision = decide(plan)
        except PlanError as wrong:
            raise self._failed(hook, "plan", command.depth, str(wrong)) from None
        if isinstance(plan, AgenticLoopPlan) and plan.request_patch is not None:
            self._carry(hook, plan.request_patch, command.depth)
        if isinstance(decision, Rerun):
            self.planned = (hook, plan)
            self._then = (command.limits.asked(decision.patch.kwargs.get("max_agentic_loops")).loops, seen)
        return decision

    async def post(self, reply: Reply, depth: int) -> dict[str, Any] | None:
        """Let the hook that planned this rerun replace its reply; the new one, or None."""
        if self.planned is None or not self.planned[0].post:
            return None
        hook, plan = self.planned
        before = view(reply.value())
        returned = await self._run(
            hook,
            "post",
            depth,
            hook.instance.async_post_agentic_loop_response_hook,
            response=before,
            plan=plan,
            kwargs=self._kwargs(depth, *self._then),
        )
        if returned is None:
            returned = before
        if hasattr(returned, "model_dump") and not isinstance(returned, dict):
            returned = returned.model_dump()
        if not isinstance(returned, dict):
            raise self._failed(hook, "post", depth, f"it returned a {type(returned).__name__}; return a whole reply")
        try:
            after: dict[str, Any] = plain(returned)
        except RecursionError:
            raise self._failed(hook, "post", depth, f"the reply that it returned {_ENDLESS}") from None
        return None if after == reply.value() else after

    @property
    def post_is_due(self) -> bool:
        """Whether the reply of the current iteration may be replaced when it is whole."""
        return self.planned is not None and self.planned[0].post

    async def cleanup(self) -> None:
        """Once per plan, the last one first. Failures are told and go no further."""
        plans, self._plans = self._plans, []
        for hook, plan, kwargs in reversed(plans):
            if not hook.cleanup:
                continue
            try:
                method = hook.instance.async_agentic_loop_cleanup_hook
                await self._run(hook, "cleanup", 0, method, plan=plan, kwargs=kwargs)
            except HookFailed:
                continue

    @property
    def has_cleanup(self) -> bool:
        """Whether a clean-up is due."""
        return any(hook.cleanup for hook, _, _ in self._plans)

    def refused(self, name: str, depth: int, what: str, phase: Phase = "plan") -> HookFailed:
        """The failure of a hook whose answer was well formed but cannot be used."""
        hook = next((hook for hook in self._chain.hooks if hook.name == name), None)
        if hook is None:  # a source of server tools, which has no hook methods
            return HookFailed(name, phase, what)
        return self._failed(hook, phase, depth, what)

    # --- inside ---

    def _carry(self, hook: Hook, patch: object, depth: int) -> None:
        """Keep what a plan adds to `kwargs`; a plan that skips may do so, too."""
        if not isinstance(patch, AgenticLoopRequestPatch) or not isinstance(patch.kwargs, dict):
            raise self._failed(hook, "plan", depth, "its request_patch is no AgenticLoopRequestPatch with kwargs")
        try:
            self._carried.update(fresh(dict(patch.kwargs)))
        except RecursionError:
            raise self._failed(hook, "plan", depth, f"request_patch.kwargs {_ENDLESS}") from None

    async def _ask_gate(self, hook: Hook, command: Gate, asked: Asked) -> tuple[bool, Any]:
        chat = self._caller.surface == "chat_completions" and hook.chat_gate
        ask = (
            hook.instance.async_should_run_chat_completion_agentic_loop
            if chat
            else hook.instance.async_should_run_agentic_loop
        )
        given = {
            "response": view(command.reply.value()),
            "model": asked.model,
            "messages": asked.messages(),
            "tools": asked.tools(),
            "stream": asked.stream,
            "custom_llm_provider": self._caller.provider,
            "kwargs": self._kwargs(command.depth, command.limits.loops, command.fingerprints),
        }
        answer = await self._run(hook, "gate", command.depth, ask, **given)
        match answer:
            case (bool() as claimed, context):
                return claimed, context
        what = f"it returned a {type(answer).__name__}; return (True, context) or (False, {{}})"
        raise self._failed(hook, "gate", command.depth, what)

    async def _run(
        self, hook: Hook, phase: Phase, depth: int, method: Callable[..., Awaitable[Any]], /, **given: Any
    ) -> Any:
        """Run one phase of one hook: with its time-out, timed, told. Raises `HookFailed` or a rejection."""
        began = self._chain.clock()
        error: str | None = None
        detail: str | None = None
        try:
            async with asyncio.timeout(self._chain.timeout_seconds) as limit:
                return await method(**given)
        except asyncio.CancelledError as raised:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the exchange is cancelled
            error = "CancelledError"  # something that the hook waited for was
            detail = f"{error}: something that it waited for was cancelled"
            raise HookFailed(hook.name, phase, f"it raised {error}") from raised
        except GeneratorExit:
            raise
        except BaseException as raised:  # a hook's own code may raise anything
            if limit.expired() and isinstance(raised, TimeoutError):
                error = "timeout"
                detail = f"no answer within {self._chain.timeout_seconds:g} s (loop.hook_timeout_seconds)"
                raise HookFailed(hook.name, phase, detail) from raised
            if phase == "pre_call" and (rejection := self._rejection(raised)) is not None:
                raise rejection from raised
            error = type(raised).__name__
            detail = told(raised)
            raise HookFailed(hook.name, phase, f"it raised {error}") from raised
        finally:
            took = self._chain.clock() - began
            self.seconds += took
            note = HookRan(hook=hook.name, phase=phase, seconds=took, depth=depth, error=error, detail=detail)
            self._chain.listener(self._subject, note)

    def _failed(self, hook: Hook, phase: Phase, depth: int, what: str) -> HookFailed:
        note = HookRan(hook=hook.name, phase=phase, seconds=0.0, depth=depth, error="wrong_answer", detail=what)
        self._chain.listener(self._subject, note)
        return HookFailed(hook.name, phase, what)

    @staticmethod
    def _rejection(raised: BaseException) -> Rejected | None:
        """A pre-call hook's own no: `Rejected`, or an HTTP exception with a 4xx status and a detail."""
        if isinstance(raised, Rejected):
            return raised
        status = getattr(raised, "status_code", None)
        detail = getattr(raised, "detail", None)
        if isinstance(status, int) and status in _CLIENT_ERROR and detail:
            if isinstance(detail, Mapping) and isinstance(detail.get("error"), str):
                detail = detail["error"]  # the usual {"error": "…"}
            rejected = Rejected(detail if isinstance(detail, str) else str(detail))
            rejected.status = status
            return rejected
        return None

    def _id(self) -> str:
        if not self._call_id:
            self._call_id = new_id(128)
        return self._call_id

    def _kwargs(self, depth: int, loops: int, fingerprints: Sequence[str]) -> dict[str, Any]:
        metadata: Mapping[str, Any] = {
            "user_api_key_alias": self._caller.key_name,
            "requester_metadata": self._caller.metadata(),
        }
        return {
            "metadata": metadata,
            **fresh(self._carried),
            # What follows is true, whatever a plan has added under the same names.
            "_agentic_loop_depth": depth,
            "max_agentic_loops": loops,
            "_agentic_loop_fingerprints": list(fingerprints),
            "_agentic_loop_api_surface": self._caller.surface,
            "litellm_call_id": self._id(),
            "request_id": self._subject.request_id,
            "custom_llm_provider": self._caller.provider,
        }
