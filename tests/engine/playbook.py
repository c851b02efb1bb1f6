"""Playbooks: what the loop asks for, and what it is sent, line by line. No server, no clock."""

from __future__ import annotations

from typing import Any

import msgspec

from loopway.engine.answers import Answers
from loopway.engine.limits import Limits
from loopway.engine.loop import Call, Claim, Decided, Gate, Plan, Result, run
from loopway.engine.plan import AgenticLoopRequestPatch, Decision, Override, Rerun, Skip, Terminate
from loopway.engine.reply import Ending, Reply, ToolCall


class Asked(msgspec.Struct, frozen=True):
    """A request that only remembers what was done to it."""

    story: tuple[str, ...] = ()

    def patched(self, patch: AgenticLoopRequestPatch) -> Asked:
        return Asked((*self.story, f"patched {patch.model or ''}".strip()))

    def answered(self, answers: Answers) -> Asked:
        texts = [answer.content for answer in answers.results]
        return Asked((*self.story, f"answered {len(texts)}{' none' if answers.choice_none else ''}"))


def call(name: str, arguments: Any = None, *, id: str = "c1", valid: bool = True) -> ToolCall:  # noqa: A002
    return ToolCall(id, name, arguments if arguments is not None else {}, "{}", valid)


def reply(*calls: ToolCall, ending: Ending | None = None, fault: str | None = None, delivered: bool = False) -> Reply:
    """A reply that makes these calls."""
    said: Ending = ending or ("tool_calls" if calls else "end")
    return Reply(raw=b"{}", calls=calls, ending=said, fault=fault, delivered=delivered)


def claim(context: Any = None, hook: int = 0) -> Claim:
    return Claim(hook, f"hook{hook}", {} if context is None else context)


def rerun(**patch: Any) -> Rerun:
    return Rerun(AgenticLoopRequestPatch(**patch))


SKIP, TERMINATE = Skip(), Terminate()
OVERRIDE = Override({"content": []})


class Play:
    """Runs the loop against lines of a script.

    A line is a reply (the next model call gives it), a claim or None (the next gates say so) or a decision (the next
    plan is that). Every command that the loop yields is written down in `log`.
    """

    def __init__(
        self,
        *lines: Reply | Claim | Decision | None,
        limits: Limits | None = None,
        owned: frozenset[str] = frozenset({"mine"}),
        declared: frozenset[str] = frozenset({"theirs"}),
        seconds: list[float] | None = None,
    ) -> None:
        self.log: list[str] = []
        self.decided: list[Decided] = []
        self.requests: list[Asked] = []
        clock = iter(seconds or [])
        loop = run(
            Asked(),
            limits or Limits(),
            owned=owned,
            declared=declared,
            seconds=lambda: next(clock, 0.0),
        )
        script = list(lines)
        answer: Any = None
        try:
            while True:
                command = loop.send(answer)
                self.log.append(self._word(command))
                answer = None if isinstance(command, Decided) else script.pop(0)
        except StopIteration as done:
            self.result: Result = done.value
        assert not script, f"the loop ended before these lines: {script}"

    def _word(self, command: object) -> str:
        match command:
            case Call(request, depth):
                self.requests.append(request)
                return f"call {depth}"
            case Gate():
                return f"gate {command.depth}" + (f" after {command.after}" if command.after >= 0 else "")
            case Plan():
                return f"plan {command.depth} {command.claim.name}"
            case Decided():
                self.decided.append(command)
                return f"{command.outcome}" + (f" {command.breach}" if command.breach else "")
        raise AssertionError(command)
