"""One chunk of a Chat Completions stream: what must be known of it, and how it is rewritten.

This file must not know what was sent before it. Wire format: the "chat completion chunk object" of
https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from loopway.dialects.members import Members, NotAnObject

TEXTS: Final = ("content", "reasoning_content", "reasoning")
"""The members of a delta, and of a message, that hold text which is read one piece behind the other."""
HEAD: Final = ("id", "object", "created", "model")
"""The members that are the same in all chunks of one stream."""
EMPTY: Final = frozenset((b"", b"null", b'""', b"[]", b"{}"))
"""The bytes of values that say nothing; none at all stands for a member that is not there."""

Raw = msgspec.Raw
NULL: Final = Raw(b"null")


class Named(msgspec.Struct, gc=False):
    """The `function` or `custom` of a call's fragment, or a legacy `function_call`."""

    name: str | msgspec.UnsetType | None = msgspec.UNSET
    arguments: Raw = Raw()
    input: Raw = Raw()


class Fragment(msgspec.Struct, gc=False):
    """One entry of `delta.tool_calls`."""

    index: int | None = None
    id: str | msgspec.UnsetType | None = msgspec.UNSET
    type: str | None = None
    function: Named | None = None
    custom: Named | None = None

    @property
    def body(self) -> Named | None:
        """What has the name and the arguments."""
        return self.function or self.custom

    @property
    def name(self) -> str:
        """The tool's name, empty if this fragment does not say it."""
        body = self.body
        return body.name if body is not None and isinstance(body.name, str) else ""


class Delta(msgspec.Struct, gc=False):
    """What one chunk adds to the message."""

    role: Raw = Raw()
    content: Raw = Raw()
    reasoning_content: Raw = Raw()
    reasoning: Raw = Raw()
    refusal: Raw = Raw()
    audio: Raw = Raw()
    tool_calls: Raw = Raw()
    function_call: Raw = Raw()


class Choice(msgspec.Struct, gc=False):
    """One of the choices; a watched request has only one."""

    delta: Delta | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct, gc=False):
    """One chunk. What is not needed for a decision is not decoded."""

    id: Raw = Raw()
    object: Raw = Raw()
    created: Raw = Raw()
    model: Raw = Raw()
    choices: list[Choice] | None = None
    usage: Raw = Raw()
    error: Raw = Raw()

    @property
    def head(self) -> dict[str, Raw]:
        """Those of the members in `HEAD` that are there."""
        return {name: raw for name in HEAD if bytes(raw := getattr(self, name))}


_CHUNK = msgspec.json.Decoder(Chunk)
_FRAGMENTS = msgspec.json.Decoder(list[Fragment])
_FUNCTION_CALL = msgspec.json.Decoder(Named)
_RAWS = msgspec.json.Decoder(list[Raw])


class Unreadable(ValueError):
    """The data of an event is no chunk."""


def decoded(data: bytes) -> Chunk:
    """What must be known of a chunk. Raises `Unreadable`."""
    try:
        return _CHUNK.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise Unreadable(str(wrong)) from None


def fragments(raw: Raw) -> list[tuple[bytes, Fragment]]:
    """The entries of `delta.tool_calls`, each with its own bytes. Raises `Unreadable`."""
    try:
        return list(zip(map(bytes, _RAWS.decode(raw)), _FRAGMENTS.decode(raw), strict=True))
    except (msgspec.MsgspecError, RecursionError) as wrong:
        raise Unreadable(str(wrong)) from None


def function_call(raw: Raw) -> Fragment:
    """A legacy `delta.function_call` as a fragment. Raises `Unreadable`."""
    try:
        return Fragment(index=0, function=_FUNCTION_CALL.decode(raw))
    except (msgspec.MsgspecError, RecursionError) as wrong:
        raise Unreadable(str(wrong)) from None


# --- half a surrogate pair ---
# Some servers cut a text between the two escapes of one character. JSON allows a lone surrogate escape, msgspec does
# not: they are written as a private character with the four digits behind it, and back on the way out.

_ESCAPE = re.compile(rb"\\(?:u([dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)
_MARKED = re.compile(rb"\\ue000([dD][89a-fA-F][0-9a-fA-F]{2})")


def marked(data: bytes) -> bytes | None:
    """The data with its surrogate escapes marked; None if it has none, or marks of its own."""
    if _MARKED.search(data):
        return None
    made = _ESCAPE.sub(lambda match: b"\\ue000" + match[1] if match[1] else match[0], data)
    return None if made == data else made


def unmarked(data: bytes) -> bytes:
    """The surrogate escapes put back."""
    return _MARKED.sub(rb"\\u\1", data) if b"\\ue000" in data else data


def whole_pairs(text: str) -> str:
    """Text whose surrogate halves are joined into characters; a half alone becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def leniently(data: bytes) -> object:
    """Plain data of JSON that may hold lone surrogates. Raises `ValueError`."""
    try:
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


# --- rewriting ---


class Draft:
    """A chunk that is being rewritten: what nobody touches keeps its bytes."""

    __slots__ = ("choice", "delta", "top")

    def __init__(self, data: bytes) -> None:
        self.top = Members.parse(data)
        choices = self.top.raw("choices")
        raws = _RAWS.decode(choices) if choices not in (None, b"null") else []
        self.choice = Members.parse(bytes(raws[0])) if raws else None
        self.delta: Members | None = None
        if self.choice is not None:
            try:
                self.delta = Members.parse(self.choice.raw("delta") or b"")
            except NotAnObject:  # a delta that is null or not there
                self.delta = Members.parse(b"{}")

    @property
    def says(self) -> bool:
        """Whether the delta has anything in it."""
        return self.says_beside()

    def says_beside(self, *names: str) -> bool:
        """Whether the delta has anything in it beside these members."""
        delta = self.delta
        return delta is not None and any(delta.raw(name) not in EMPTY for name in delta.names() if name not in names)

    @property
    def finishes(self) -> bool:
        """Whether the chunk has a finish_reason."""
        return self.choice is not None and (self.choice.raw("finish_reason") or b"") not in EMPTY

    @property
    def unfinished(self) -> dict[str, Raw]:
        """What has to change in the choice so that the chunk has no finish_reason."""
        return {"finish_reason": NULL} if self.finishes else {}

    def encode(self, top: Mapping[str, object], without: tuple[str, ...] = (), **choice: object) -> bytes:
        """The frame, with these members set in the chunk and in its choice."""
        changed = dict(top)
        if self.choice is not None and self.delta is not None:
            body = self.choice.with_members({**choice, "delta": Raw(self.delta.encode())})
            changed["choices"] = Raw(b"[" + body.encode() + b"]")
        return framed(self.top.with_members(changed, without).encode())


def framed(data: bytes) -> bytes:
    """JSON as an event without a name. Line ends can only stand between its tokens, where a space does as well."""
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"data: " + unmarked(data) + b"\n\n"
