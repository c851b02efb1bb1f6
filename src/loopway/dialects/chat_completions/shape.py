"""Chunks that differ only in their text: read once in full, then told by the bytes around the text.

Most chunks of a stream differ only in a piece of text, or of a call's arguments, and in OpenAI's padding
(`obfuscation`). Bytes that begin and end like a chunk that was read in full, with one JSON string between, are that
chunk with another text. This file must not know what a text is for.
"""

from __future__ import annotations

import msgspec

from loopway.dialects.chat_completions.chunk import EMPTY, Draft, Fragment
from loopway.dialects.members import Members

_TEXT = msgspec.json.Decoder(str)
_PADDING = b'"obfuscation":"'
_QUOTE = 0x22
_SHORTEST = 3  # an empty text says nothing, and is read in full


class Shape:
    """The bytes around a text, and what they become on the way out.

    Attributes:
        of: The member of a delta that has the text, or the number of the call whose arguments it belongs to.
    """

    __slots__ = ("_after", "_before", "_key", "_out", "_padded", "of")

    def __init__(self, of: str | int, key: str, before: bytes, after: bytes) -> None:
        self.of = of
        self._key = key
        self._before = before
        self._padded = _PADDING in after
        self._after = after[: after.index(_PADDING) + len(_PADDING)] if self._padded else after
        self._out: tuple[bytes, bytes] | None = None

    @classmethod
    def of_text(cls, data: bytes, name: str) -> Shape | None:
        """The shape of a chunk whose delta says nothing but the text `name`; None if it says more."""
        draft = Draft(data)
        if not _plain(draft) or draft.delta is None or _says_beside(draft.delta, name):
            return None
        return cls._around(name, name, data, draft.delta.raw(name) or b"")

    @classmethod
    def of_arguments(cls, data: bytes, number: int, raw: bytes, fragment: Fragment) -> Shape | None:
        """The shape of a chunk that says nothing but a piece of the arguments of a call; None if it says more."""
        draft = Draft(data)
        if fragment.function is None or not _plain(draft) or draft.delta is None:
            return None
        whole = Members.parse(raw)
        if _says_beside(draft.delta, "tool_calls") or _says_beside(whole, "index", "id", "type", "function"):
            return None
        if _says_beside(Members.parse(whole.raw("function") or b""), "arguments"):
            return None
        return cls._around(number, "arguments", data, bytes(fragment.function.arguments))

    @classmethod
    def _around(cls, of: str | int, key: str, data: bytes, text: bytes) -> Shape | None:
        around = _around(data, key, text)
        if around is None or text in EMPTY:
            return None
        if _PADDING in around[1] and not _is_padding(around[1].rpartition(_PADDING)[2]):
            return None
        return cls(of, key, *around)

    def becomes(self, data: bytes, sent: bytes) -> bool:
        """Learn from one chunk of this shape what goes out for it; False if it cannot be told."""
        text = data[len(self._before) : self._end(data)]
        around = _around(sent, self._key, text)
        if around is None or (self._padded and _PADDING not in around[1]):
            return False
        after = around[1][: around[1].index(_PADDING) + len(_PADDING)] if self._padded else around[1]
        self._out = (around[0], after)
        return True

    def text(self, data: bytes) -> str | None:
        """The text of a chunk of this shape; None if it has another."""
        if not data.startswith(self._before):
            return None
        end = self._end(data)
        if end < len(self._before) + _SHORTEST or data[len(self._before)] != _QUOTE:
            return None
        try:
            return _TEXT.decode(data[len(self._before) : end])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def sent(self, data: bytes, raw: bytes) -> bytes:
        """What goes out for a chunk of this shape. `raw` is its whole frame."""
        if self._out is None:
            return raw
        end = self._end(data)
        tail = data[end + len(self._after) :] + b"\n\n" if self._padded else b""
        return self._out[0] + data[len(self._before) : end] + self._out[1] + tail

    def _end(self, data: bytes) -> int:
        """Where the text ends; -1 if the bytes behind it are others."""
        if not self._padded:
            return len(data) - len(self._after) if data.endswith(self._after) else -1
        end = data.rfind(self._after)
        return end if end >= 0 and _is_padding(data[end + len(self._after) :]) else -1


def _plain(draft: Draft) -> bool:
    """Whether nothing in the choice has to be collected from chunk to chunk."""
    return draft.choice is not None and (draft.choice.raw("logprobs") or b"null") == b"null"


def _says_beside(members: Members, *names: str) -> bool:
    """Whether there is more, that would have to be collected or, as a role, be looked at in each chunk."""
    return any(name == "role" or members.raw(name) not in EMPTY for name in members.names() if name not in names)


def _around(data: bytes, key: str, text: bytes) -> tuple[bytes, bytes] | None:
    """The bytes before and behind a member's value; None if it is not the only one of its name."""
    name = b'"%b"' % key.encode()
    if b"\n" in data.rstrip() or b"\r" in data or data.count(name) != 1:
        return None
    start = data.index(name) + len(name)
    for colon in (b":", b": "):
        if data.startswith(colon + text, start):
            start += len(colon)
            return data[:start], data[start + len(text) :]
    return None


def _is_padding(tail: bytes) -> bool:
    """Whether this is the rest of an `obfuscation` at the very end of a chunk."""
    return tail.endswith(b'"}') and (tail[:-2].isalnum() or tail == b'"}')
