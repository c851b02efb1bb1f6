"""One JSON object whose members stay raw bytes until somebody asks for them.

What is not changed keeps its bytes: a request of 10 MB is not decoded to change its `model`. This file must not know
what any member means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Self

import msgspec

from loopway.errors import BadRequest

_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ESCAPED_ASCII = re.compile(rb"\\u00[0-7]")


class NotAnObject(ValueError):
    """The bytes are no JSON object; the text says what they are."""


class Members:
    """A JSON object, read or written member by member. Never changed: `with_members` makes a new one."""

    __slots__ = ("_members", "_raw")

    def __init__(self, raw: bytes | None, members: dict[str, msgspec.Raw]) -> None:
        self._raw = raw
        self._members = members

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read the top level. Raises `NotAnObject`."""
        try:
            return cls(raw, _DECODER.decode(raw))
        except msgspec.ValidationError:
            raise NotAnObject("the body is not a JSON object") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            raise NotAnObject(f"the body is not JSON: {wrong}" if raw else "the body is empty") from None
        except RecursionError:
            raise NotAnObject("the body is nested too deeply") from None

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def names(self) -> list[str]:
        """The names of all members, in order."""
        return list(self._members)

    def raw(self, name: str) -> bytes | None:
        """A member's own bytes, or None."""
        member = self._members.get(name)
        return None if member is None else bytes(member)

    def get(self, name: str) -> Any:
        """A member as fresh plain data, or None. Raises `BadRequest` for what only looks like JSON."""
        member = self._members.get(name)
        return None if member is None else _decoded(name, member)

    def fresh(self, *without: str) -> dict[str, Any]:
        """All members but these as fresh plain data. Raises `BadRequest` for what only looks like JSON."""
        return {name: _decoded(name, raw) for name, raw in self._members.items() if name not in without}

    def with_members(self, changed: Mapping[str, Any], removed: tuple[str, ...] = ()) -> Self:
        """A new object with some members set and some removed; the others keep bytes and place."""
        members = {name: raw for name, raw in self._members.items() if name not in removed}
        for name, value in changed.items():
            members[name] = value if isinstance(value, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(value))
        return type(self)(None, members)

    def encode(self) -> bytes:
        """The object's bytes: the original ones if nothing was changed."""
        if self._raw is None:
            parts = [msgspec.json.encode(name) + b":" + bytes(raw) for name, raw in self._members.items()]
            self._raw = b"{" + b",".join(parts) + b"}"
        return self._raw

    def repeated(self, name: str) -> bool:
        """Whether the original bytes hold a top-level member twice, where one of them may be `name`.

        Two readers may take different ones: what one checks must be what the other obeys.
        """
        if self._raw is None:
            return False
        for other in self._members:
            if len(other) == len(name) and other != name and other.lower() == name:
                return True  # some readers do not tell capitals (Go's encoding/json)
        if not self._room_for(name):
            return False
        escaped = b"\\u00" in self._raw and _ESCAPED_ASCII.search(self._raw)
        if not escaped and self._raw.count(b'"%b"' % name.encode()) <= 1:
            return False
        pairs: list[tuple[str, Any]] = []

        def keep(found: list[tuple[str, Any]]) -> dict[str, Any]:
            nonlocal pairs
            pairs = found  # the outermost object comes last
            return {}

        try:
            json.loads(self._raw, object_pairs_hook=keep)
        except (ValueError, RecursionError):
            return True
        return sum(key == name for key, _ in pairs) > 1

    def _room_for(self, name: str) -> bool:
        """Whether the bytes that no known member takes are enough for one more: its quotes, colon, value and comma.

        Nearly always they are not, and the body need not be searched: that costs more than to parse it.
        """
        least = (
            sum(len(known.encode("utf-8", "surrogatepass")) + len(raw) + 4 for known, raw in self._members.items()) + 1
        )
        return len(self._raw or b"") - least >= len(name) + 5


def _decoded(name: str, raw: msgspec.Raw) -> Any:
    """A member's value. Parsing the top level has not looked at numbers out of range, or at text that is no UTF-8."""
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        raise BadRequest(f"$.{name}: it is nested too deeply", f"$.{name}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise BadRequest(f"$.{name}: it cannot be read: {wrong}", f"$.{name}") from None
