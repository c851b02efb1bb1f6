"""Rules: plain functions that fail a request by its text, or an exchange by its answer's text.

Their shape is LiteLLM's: `rule(input) -> bool`, or `{"decision": bool, "message": str}`. This file must not know a
wire format.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

from loopway.engine.notes import HookRan, Listener, Phase, Subject
from loopway.errors import HookFailed, Rejected, RuleFailed
from loopway.hooks.failure import told

Rule = Callable[[str], Any]


class Rules:
    """The rules of a gateway.

    Args:
        pre_call: Names and functions that see the text of a request's messages.
        post_call: Names and functions that see the text of the last reply.
        listener: Is told each rule that failed by itself.
        clock: Seconds, rising.
    """

    def __init__(
        self,
        pre_call: Sequence[tuple[str, Rule]],
        post_call: Sequence[tuple[str, Rule]],
        *,
        listener: Listener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pre_call = tuple(pre_call)
        self._post_call = tuple(post_call)
        self._listener = listener
        self._clock = clock
        self.before = bool(self._pre_call)
        self.after = bool(self._post_call)

    def check_request(self, text: str, subject: Subject) -> None:
        """Raises `Rejected` with a rule's message, `HookFailed` if a rule fails by itself."""
        for name, rule in self._pre_call:
            message = self._ask(name, rule, "pre_call", text, subject)
            if message is not None:
                raise Rejected(message or "a rule of the gateway refuses this request")

    def check_reply(self, text: str, subject: Subject) -> None:
        """Raises `RuleFailed` with a rule's message, `HookFailed` if a rule fails by itself."""
        for name, rule in self._post_call:
            message = self._ask(name, rule, "post", text, subject)
            if message is not None:
                raise RuleFailed(message or "a rule of the gateway refuses the answer")

    def _ask(self, name: str, rule: Rule, phase: Phase, text: str, subject: Subject) -> str | None:
        """A rule's no as its message, or None."""
        began = self._clock()
        try:
            said = rule(text)
        except BaseException as raised:
            error = type(raised).__name__
            took = self._clock() - began
            note = HookRan(hook=name, phase=phase, seconds=took, depth=0, error=error, detail=told(raised))
            self._listener(subject, note)
            raise HookFailed(name, phase, f"it raised {error}") from raised
        match said:
            case True | {"decision": True}:
                return None
            case False:
                return ""
            case {"decision": False, **more}:
                message = more.get("message", "")
                return message if isinstance(message, str) else ""
        what = f"it returned a {type(said).__name__}; return True, False or {{'decision': …, 'message': …}}"
        note = HookRan(hook=name, phase=phase, seconds=0.0, depth=0, error="wrong_answer", detail=what)
        self._listener(subject, note)
        raise HookFailed(name, phase, what)


def checked_rule(value: object, dotted: str) -> Rule:
    """A rule as it is. Raises `ValueError` that says what was found and what to write."""
    if inspect.isclass(value) or not callable(value):
        found = "a class" if inspect.isclass(value) else f"a {type(value).__name__}"
        raise ValueError(f"{dotted!r} is {found}; name a function that takes a text and returns True or False")
    if inspect.iscoroutinefunction(value):
        raise ValueError(f"{dotted!r} is `async def`; a rule is a plain function (use a hook to wait for something)")
    return value
