"""The tool calls of one iteration: which fragment belongs to which, which wait, and how a client gets to see them.

This file must not know what else is in a chunk, or why a call is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from loopway.dialects.base import Keep
from loopway.dialects.chat_completions.chunk import Draft, Fragment, fragments, function_call
from loopway.dialects.chat_completions.reply import CallKeys
from loopway.dialects.chat_completions.shape import Shape
from loopway.dialects.members import Members


class Waiting(msgspec.Struct, gc=False):
    """A fragment that waits.

    Attributes:
        data: The chunk that it came in.
        raw: That chunk's frame.
        place: Its place in the chunk's list.
        alone: Whether nothing else of the chunk has been sent or is due.
        shape: What it has in common with others that wait.
    """

    data: bytes
    raw: bytes
    place: int
    alone: bool
    shape: Shape | None = None


class Call:
    """One call of the current iteration.

    Attributes:
        key: Its number among the calls of its iteration; -1 for a legacy one.
        held: Whether it waits; None as long as its name has not come.
        number: Its index in the client's stream once it is sent; -1 for a legacy one.
    """

    __slots__ = ("_id", "_kind", "held", "key", "name", "number", "waiting")

    def __init__(self, key: int) -> None:
        self.key = key
        self.name = ""
        self.held: bool | None = None
        self.number: int | None = None
        self.waiting: list[Waiting] = []
        self._id = ""
        self._kind = "function"

    @property
    def legacy(self) -> bool:
        """Whether it is a `function_call`, which has no id and no index."""
        return self.key < 0

    def learn(self, fragment: Fragment) -> None:
        """Take from a fragment what names the call."""
        self._id = self._id or (fragment.id if isinstance(fragment.id, str) else "")
        self.name = self.name or fragment.name
        if fragment.custom is not None:
            self._kind = "custom"

    def told(self, raw: bytes, fragment: Fragment, numbers: Iterator[int]) -> bytes:
        """A fragment as the client gets it: numbered anew, and named in the first one only."""
        first = self.number is None
        if self.number is None:
            self.number = -1 if self.legacy else next(numbers)
        if self.legacy:
            return raw
        changed: dict[str, Any] = {}
        without: tuple[str, ...] = ()
        if fragment.index != self.number:
            changed["index"] = self.number
        if first:
            identity = self._id or f"call_{self.number}"  # a call without an id cannot be answered
            if fragment.id != identity:
                changed["id"] = identity
            if not fragment.type:
                changed["type"] = self._kind
            if fragment.name != self.name:
                changed[self._kind] = _renamed(raw, self._kind, self.name)
        else:
            without = ("id",) if isinstance(fragment.id, str) else ()
            if fragment.body is not None and isinstance(fragment.body.name, str):
                changed[self._kind] = _renamed(raw, self._kind, None)
        if not changed and not without:
            return raw
        return Members.parse(raw).with_members(changed, without).encode()


class Calls:
    """The calls of one iteration, in the order in which they began."""

    def __init__(self) -> None:
        self._keys = CallKeys()
        self._calls: dict[int, Call] = {}

    def of(self, fragment: Fragment, *, legacy: bool) -> Call:
        """The call that a fragment belongs to."""
        key = -1 if legacy else self._keys.of(fragment.index, fragment.id, fragment.name)
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = Call(key)
        call.learn(fragment)
        return call

    @property
    def sent(self) -> bool:
        """Whether any of them has gone to the client."""
        return any(call.number is not None for call in self._calls.values())

    def drop(self) -> None:
        """What waits never goes."""
        for call in self._calls.values():
            if call.number is None:
                call.held = True
                call.waiting.clear()

    def kept(self, keep: Keep) -> list[Call]:
        """The calls that waited and may now go. One whose name never came is none."""
        return [call for call in self._calls.values() if call.number is None and call.name and keep(call.name)]


def fragment_of(waiting: Waiting, *, legacy: bool) -> tuple[bytes, Fragment]:
    """A fragment that has waited, and its bytes."""
    delta = Draft(waiting.data).delta
    raw = delta.raw("function_call" if legacy else "tool_calls") if delta is not None else None
    held = msgspec.Raw(raw or b"")
    return (bytes(held), function_call(held)) if legacy else fragments(held)[waiting.place]


def _renamed(raw: bytes, kind: str, name: str | None) -> msgspec.Raw:
    """The `function` of a fragment with this name, or without one."""
    held = Members.parse(raw).raw(kind)
    body = Members.parse(b"{}" if held is None or held == b"null" else held)
    changed = body.with_members({}, ("name",)) if name is None else body.with_members({"name": name})
    return msgspec.Raw(changed.encode())
