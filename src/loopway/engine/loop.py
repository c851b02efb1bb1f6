"""The loop: a generator that yields what to do next and is sent what came of it. The only place that counts depth.

::

    Call(request)        <- Reply                the driver calls the model
    Gate(reply, after)   <- Claim | None         the driver asks the gates behind hook number `after`
    Plan(reply, claim)   <- Decision             the driver asks that hook for its plan
    Keep(reply)          <- None                 a mixed reply goes to the client: the server's half is kept
    Decided(…)           <- None                 what was decided on this reply, for who watches
    return Finished | Overridden | Stopped

A straight line through one exchange; it must not know what a call, a gate or a plan does, and reads no clock of its
own. Hooks: `hooks/chain.py`. The driver: `exchange.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Literal, Protocol, Self, assert_never

import msgspec

from loopway.engine.answers import NO_MORE, REPEATED, Answers, refusing
from loopway.engine.fingerprint import fingerprint
from loopway.engine.limits import Breach, Limits
from loopway.engine.plan import AgenticLoopRequestPatch, Answered, Decision, Override, Rerun, Skip, Terminate
from loopway.engine.reply import Reply

Outcome = Literal["rerun", "override", "terminate", "skip"]


class Request(Protocol):
    """What the loop must be able to do with a request; the dialects make them."""

    def patched(self, patch: AgenticLoopRequestPatch) -> Self:
        """This request with a patch of a hook."""
        ...

    def answered(self, answers: Answers) -> Self:
        """This request with an assistant turn and the results of its calls behind it."""
        ...


class Claim(msgspec.Struct, frozen=True):
    """A gate said yes.

    Attributes:
        hook: Its place in the configured order.
        name: Its name, for telemetry.
        context: What the gate returned beside its yes; handed to its plan.
    """

    hook: int
    name: str
    context: Any


class Call(msgspec.Struct, frozen=True):
    """Call the model. Send back the `Reply`."""

    request: Any
    depth: int


class Gate(msgspec.Struct, frozen=True):
    """Ask the gates of the hooks behind number `after` (-1: all). Send back the first `Claim`, or None."""

    reply: Reply
    depth: int
    after: int
    fingerprints: tuple[str, ...]
    limits: Limits


class Plan(msgspec.Struct, frozen=True):
    """Ask the hook that claimed for its plan. Send back the `Decision`."""

    reply: Reply
    depth: int
    claim: Claim
    fingerprints: tuple[str, ...]
    limits: Limits


class Keep(msgspec.Struct, frozen=True):
    """A reply with calls of server tools and of the client ends the exchange: keep what the client does not get.

    Send back None.
    """

    request: Any
    reply: Reply


class Decided(msgspec.Struct, frozen=True):
    """What was decided on the reply of one iteration. Send back None.

    Attributes:
        breach: The limit that cut the loop, if one did.
        hook: The name of the hook that decided, if one did.
        fingerprint: Of what was claimed, if a hook claimed.
    """

    depth: int
    outcome: Outcome
    hook: str | None = None
    breach: Breach | None = None
    fingerprint: str | None = None


class Finished(msgspec.Struct, frozen=True):
    """The reply is the answer: no hook claimed it, or one terminated the loop with it."""

    reply: Reply
    iterations: int


class Overridden(msgspec.Struct, frozen=True):
    """The value is the answer."""

    value: dict[str, Any]
    reply: Reply
    iterations: int


class Stopped(msgspec.Struct, frozen=True):
    """A limit cut the loop; the reply is the answer as far as it goes."""

    reply: Reply
    iterations: int
    breach: Breach


Command = Call | Gate | Plan | Keep | Decided
Result = Finished | Overridden | Stopped


def run(
    request: Request,
    limits: Limits,
    *,
    owned: frozenset[str],
    declared: frozenset[str],
    seconds: Callable[[], float],
    served: frozenset[str] = frozenset(),
) -> Generator[Command, Any, Result]:
    """Run one exchange.

    Args:
        request: The first request; needs only `patched` and `answered`.
        limits: The limits of this exchange.
        owned: The tools that only the server runs.
        declared: The tools that the client declared itself.
        seconds: How long the loop has run.
        served: The owned tools whose calls in a mixed reply can be kept until the client has answered its own.
    """
    depth = 0
    tool_calls = 0
    seen: tuple[str, ...] = ()
    while True:
        reply: Reply = yield Call(request, depth)
        tool_calls += sum(call.name in owned for call in reply.calls)
        # No tool runs on a broken reply, and none on one whose calls the client is already answering.
        hands_off = bool(reply.fault or reply.delivered or (reply.broken and reply.calls))
        after = -1
        while True:
            claim: Claim | None = None if hands_off else (yield Gate(reply, depth, after, seen, limits))
            if claim is None:
                if tool_calls <= limits.tool_calls and _mixed(reply, declared, owned, served):
                    yield Keep(request, reply)
                yield Decided(depth, "skip")
                return Finished(reply, depth + 1)
            print_ = fingerprint(claim.context, reply.calls)
            repeated = print_ in seen
            told = repeated and limits.on_repeat == "tell_model" and _all_ours(reply, claim, declared, owned)
            breach: Breach | None = "fingerprint"
            if not repeated or told:
                breach = limits.breach(depth=depth, seconds=seconds(), tool_calls=tool_calls)
            if breach is not None:
                final = breach != "fingerprint" and limits.on_limit == "final_answer"
                if not final or not _all_ours(reply, claim, declared, owned):
                    yield Decided(depth, "terminate", claim.name, breach, print_)
                    return Stopped(reply, depth + 1, breach)
                yield Decided(depth, "rerun", claim.name, breach, print_)
                last: Reply = yield Call(request.answered(refusing(reply, NO_MORE, choice_none=True)), depth + 1)
                yield Decided(depth + 1, "skip")
                return Stopped(last, depth + 2, breach)
            decision: Decision = Answered(refusing(reply, REPEATED))
            if not told:
                decision = yield Plan(reply, depth, claim, seen, limits)
            match decision:
                case Skip():
                    after = claim.hook
                    continue
                case Override(value):
                    yield Decided(depth, "override", claim.name, None, print_)
                    return Overridden(value, reply, depth + 1)
                case Terminate():
                    yield Decided(depth, "terminate", claim.name, None, print_)
                    return Finished(reply, depth + 1)
                case Rerun() | Answered():
                    yield Decided(depth, "rerun", claim.name, None, print_)
                    request, limits = _rerun(request, limits, decision)
                    seen = (*seen, print_)
                    break
                case _:
                    assert_never(decision)
        depth += 1


def _rerun(request: Request, limits: Limits, decision: Rerun | Answered) -> tuple[Request, Limits]:
    """The next request, and the limits that hold from then on."""
    if isinstance(decision, Answered):
        return request.answered(decision.answers), limits
    return request.patched(decision.patch), limits.asked(decision.patch.kwargs.get("max_agentic_loops"))


def _mixed(reply: Reply, declared: frozenset[str], owned: frozenset[str], served: frozenset[str]) -> bool:
    """Whether a whole reply calls server tools and tools of the client at once."""
    if reply.broken:
        return False
    names = [call.name for call in reply.calls]
    return any(name in served for name in names) and any(name in declared and name not in owned for name in names)


def _all_ours(reply: Reply, claim: Claim, declared: frozenset[str], owned: frozenset[str]) -> bool:
    """Whether the loop may answer every call of a reply itself: none is left for the client.

    A call is the client's if the client declared the tool, no hook owns it and the claim does not name it.
    """
    claimed = _names_in(claim.context, 0)
    return bool(reply.calls) and all(
        call.name in owned or call.name not in declared or call.name in claimed or call.id in claimed
        for call in reply.calls
    )


def _names_in(value: object, depth: int) -> set[str]:
    """All text values in a gate's context: the names and ids of the calls that it means are among them."""
    if isinstance(value, str):
        return {value}
    if depth > 8:  # noqa: PLR2004 - a context is shallow
        return set()
    if isinstance(value, dict):
        return set().union(*(_names_in(item, depth + 1) for item in value.values()))
    if isinstance(value, (list, tuple)):
        return set().union(*(_names_in(item, depth + 1) for item in value))
    return set()
