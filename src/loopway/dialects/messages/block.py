"""One content block of a stream: what its events told, and the block that they make.

This file must not know what a message is. The deltas:
https://docs.anthropic.com/en/docs/build-with-claude/streaming#content-block-delta-types
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from loopway.dialects.sse import Frame

NONE = msgspec.Raw(b"")
"""A member that is not there."""

MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Reads an object whose members stay bytes."""


class Block(msgspec.Struct, eq=False):
    """A content block of a stream, as its events told it.

    Attributes:
        index: The upstream's index, -1 if it gave none.
        type: The block's type.
        name: The name of the tool that it calls, if it is a call.
        start: The block as its start told it.
        deltas: Its deltas, in order.
        closed: Whether its stop has come.
        place: The client's index, -1 while the client has not seen it. The splicer's own.
        held: The frames that wait, or None. The splicer's own.
    """

    index: int
    type: str
    name: str
    start: msgspec.Raw
    deltas: list[msgspec.Raw] = msgspec.field(default_factory=list)
    closed: bool = False
    place: int = -1
    held: list[Frame] | None = None


def written(members: dict[str, msgspec.Raw]) -> bytes:
    """A JSON object of its members' own bytes."""
    return b"{" + b",".join(b"%b:%b" % (msgspec.json.encode(name), bytes(raw)) for name, raw in members.items()) + b"}"


def paired(text: str) -> str:
    """Halves of surrogate pairs joined where they met, and replaced where they are alone."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def as_text(value: Any) -> str:
    """The value if it is text, else an empty text."""
    return value if isinstance(value, str) else ""


class _Delta(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    signature: str = ""
    citation: msgspec.Raw = NONE


_DELTAS = msgspec.json.Decoder(list[_Delta])
_LIST = msgspec.json.Decoder(list[msgspec.Raw] | None)
_DELTA_TYPES = frozenset(("text_delta", "thinking_delta", "input_json_delta", "signature_delta", "citations_delta"))


def built(block: Block) -> bytes:
    """The block as a reply without streaming would have it."""
    if not block.deltas:
        return bytes(block.start)
    try:
        deltas = _DELTAS.decode(b"[" + b",".join(block.deltas) + b"]")
        types = {delta.type for delta in deltas}
        if types <= _DELTA_TYPES:
            return written(_grown(MEMBERS.decode(block.start), deltas, types))
    except (ValueError, RecursionError):
        pass
    return _grown_slowly(block)


def _grown(members: dict[str, msgspec.Raw], deltas: list[_Delta], types: set[str]) -> dict[str, msgspec.Raw]:
    if "text_delta" in types:
        _join(members, "text", [delta.text for delta in deltas])
    if "thinking_delta" in types:
        _join(members, "thinking", [delta.thinking for delta in deltas])
    if "signature_delta" in types:  # it comes whole
        last = [delta.signature for delta in deltas if delta.type == "signature_delta"][-1]
        members["signature"] = msgspec.Raw(msgspec.json.encode(last))
    if "citations_delta" in types:
        listed = _LIST.decode(members.get("citations", b"null")) or []
        listed += [delta.citation for delta in deltas if delta.type == "citations_delta"]
        members["citations"] = msgspec.Raw(b"[" + b",".join(listed) + b"]")
    if "input_json_delta" in types:
        text = "".join([delta.partial_json for delta in deltas])
        if text.strip():
            members["input"] = msgspec.Raw(_input(text))
    return members


def _join(members: dict[str, msgspec.Raw], name: str, pieces: list[str]) -> None:
    raw = members.get(name)
    first = as_text(msgspec.json.decode(raw)) if raw else ""
    members[name] = msgspec.Raw(msgspec.json.encode(first + "".join(pieces)))


def _input(text: str) -> bytes:
    """The text of a call's input as JSON: itself, or as a JSON text where it is none."""
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return msgspec.json.encode(text)
    return text.encode()


def _grown_slowly(block: Block) -> bytes:
    """A block with deltas of an unknown type, or with a character that was cut in two.

    What an unknown delta has is joined to what the block has under the same name: text to text, list to list; other
    values replace.
    """
    value: dict[str, Any] = json.loads(bytes(block.start).decode("utf-8", "replace"))
    given = ""
    for raw in block.deltas:
        delta = json.loads(bytes(raw).decode("utf-8", "replace")) if raw else None
        if not isinstance(delta, dict):
            continue
        match delta.pop("type", None), delta:
            case "input_json_delta", {"partial_json": str(piece)}:
                given += piece
            case "citations_delta", {"citation": citation}:
                value["citations"] = [*(value.get("citations") or []), citation]
            case "signature_delta", {"signature": signature}:
                value["signature"] = signature
            case _:
                for name, piece in delta.items():
                    value[name] = _joined(value.get(name), piece)
    if given.strip():
        given = paired(given)
        value["input"] = msgspec.json.decode(_input(given))
    return paired(json.dumps(value, ensure_ascii=False)).encode()


def _joined(earlier: Any, later: Any) -> Any:
    if isinstance(earlier, str) and isinstance(later, str):
        return earlier + later
    if isinstance(earlier, list) and isinstance(later, list):
        return earlier + later
    return earlier if later is None else later
