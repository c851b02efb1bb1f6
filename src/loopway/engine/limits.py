"""May another iteration start? Arithmetic only; time comes in as an argument.

This file must not know what an iteration does.
"""

from __future__ import annotations

from typing import Literal

import msgspec

OnLimit = Literal["stop", "final_answer"]
OnRepeat = Literal["abort", "tell_model"]
Breach = Literal["fingerprint", "max_agentic_loops", "max_seconds", "max_tool_calls"]

DEFAULT_LOOPS = 3
"""Reruns, not model calls; the specification's own default."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one exchange.

    Attributes:
        loops: Reruns that may be made; 0 means none.
        ceiling: The most reruns that a request or a hook may ask for.
        seconds: Wall clock of the whole loop, checked before each further iteration.
        tool_calls: Calls of owned tools in the exchange.
        on_limit: What happens when a limit is reached.
        on_repeat: What happens when a fingerprint comes a second time.
    """

    loops: int = DEFAULT_LOOPS
    ceiling: int = 10
    seconds: float = 300.0
    tool_calls: int = 32
    on_limit: OnLimit = "stop"
    on_repeat: OnRepeat = "abort"

    def asked(self, loops: int | None) -> Limits:
        """These limits with as many reruns as were asked for, at most the ceiling."""
        if loops is None:
            return self
        return msgspec.structs.replace(self, loops=min(loops, self.ceiling))

    def breach(self, *, depth: int, seconds: float, tool_calls: int) -> Breach | None:
        """Why no further iteration may start, or None.

        Args:
            depth: Reruns done so far.
            seconds: How long the loop has run.
            tool_calls: Calls of owned tools so far, those of the reply at hand among them.
        """
        if depth >= self.loops:
            return "max_agentic_loops"
        if seconds >= self.seconds:
            return "max_seconds"
        if tool_calls > self.tool_calls:
            return "max_tool_calls"
        return None


def loops_asked(value: object) -> int:
    """A limit that a request or a hook asks for. Raises `ValueError` for anything but a whole number >= 0."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"is {_shown(value)}; write a whole number of at least 0")  # noqa: TRY004 - one kind to catch
    if value < 0:
        raise ValueError(f"is {value}; write a whole number of at least 0")
    return value


def _shown(value: object) -> str:
    """A value in words that a client and a hook's author understand."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, float):
        return str(value)
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else f"a {type(value).__name__}"
