"""A whole Messages reply, written out: as the stream that would tell it, and as the JSON answer of an exchange.

This file must not know where the reply came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from loopway.dialects.base import Keep
from loopway.dialects.members import Members
from loopway.dialects.sse import Frame, encode
from loopway.engine.reply import Reply

_NO_ID = "msg_override"
_IN_DELTA = ("container", "stop_details")
_BESIDE_DELTA = ("context_management",)
_WITH_INPUT = ("tool_use", "server_tool_use", "mcp_tool_use")


# --- as a stream ---------------------------------------------------------------


def render(value: Mapping[str, Any]) -> list[Frame]:
    """A whole reply as the events of a stream; what every message has and this one lacks is added.

    Raises `ValueError` if it has no list `content` of objects, or is no JSON.
    """
    content = value.get("content")
    if not isinstance(content, list) or not all(isinstance(block, Mapping) for block in content):
        raise ValueError("a Messages reply has a list of blocks in `content`")
    try:
        return [_frame(data) for data in _events(value, content)]
    except (TypeError, RecursionError) as wrong:
        raise ValueError(f"the reply is no JSON: {wrong}") from None


def _frame(data: dict[str, Any]) -> Frame:
    encoded = msgspec.json.encode(data)
    name: str = data["type"]
    return Frame(encode(name, encoded), name.encode(), encoded)


def _events(value: Mapping[str, Any], content: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    usage = value.get("usage") if isinstance(value.get("usage"), Mapping) else None
    usage = usage or {"input_tokens": 0, "output_tokens": 0}
    start = {"id": _NO_ID, "type": "message", "role": "assistant", "model": "", **value}
    for name in (*_IN_DELTA, *_BESIDE_DELTA):
        start.pop(name, None)
    start |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(content):
        begun, deltas = _told(block)
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": _reason(value, content), "stop_sequence": value.get("stop_sequence")}
    delta |= {name: value[name] for name in _IN_DELTA if name in value}
    beside = {name: value[name] for name in _BESIDE_DELTA if name in value}
    yield {"type": "message_delta", "delta": delta, "usage": usage, **beside}
    yield {"type": "message_stop"}


def _reason(value: Mapping[str, Any], content: list[Mapping[str, Any]]) -> Any:
    if value.get("stop_reason") is not None:
        return value["stop_reason"]
    return "tool_use" if any(block.get("type") == "tool_use" for block in content) else "end_turn"


def _told(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as its start and its deltas."""
    begun = dict(block)
    deltas: list[dict[str, Any]] = []
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        begun["text"] = ""
        if isinstance(block.get("citations"), list):
            begun["citations"] = []
            deltas += [{"type": "citations_delta", "citation": citation} for citation in block["citations"]]
        if block["text"]:
            deltas.append({"type": "text_delta", "text": block["text"]})
    elif kind == "thinking" and isinstance(block.get("thinking"), str):
        begun["thinking"] = ""
        if block["thinking"]:
            deltas.append({"type": "thinking_delta", "thinking": block["thinking"]})
        if isinstance(block.get("signature"), str):
            begun["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif kind in _WITH_INPUT and block.get("input") is not None:
        begun["input"] = {}
        deltas.append({"type": "input_json_delta", "partial_json": msgspec.json.encode(block["input"]).decode()})
    return begun, deltas


# --- as the JSON answer --------------------------------------------------------


def final(reply: Reply, *, keep: Keep, interim: Sequence[Reply], usage: Mapping[str, Any] | None) -> bytes:
    """The JSON answer made of the last reply; see `dialects.base.Dialect.final`."""
    members = Members.parse(reply.raw)
    blocks = _blocks(reply)
    kept = [block for block in blocks if block.type != "tool_use" or keep(block.text("name"))]
    front = [block for earlier in interim for block in _blocks(earlier) if block.type != "tool_use"]
    changed: dict[str, Any] = {}
    if front or len(kept) < len(blocks):
        changed["content"] = msgspec.Raw(b"[" + b",".join([block.raw for block in (*front, *kept)]) + b"]")
    if members.get("stop_reason") == "tool_use" and not any(block.type == "tool_use" for block in kept):
        changed["stop_reason"] = "end_turn"
    if usage is not None and usage != reply.usage:
        changed["usage"] = usage
    return members.with_members(changed).encode() if changed else reply.raw


class _Block:
    __slots__ = ("_members", "raw", "type")

    def __init__(self, raw: msgspec.Raw) -> None:
        self.raw = bytes(raw)
        self._members = Members.parse(self.raw)
        self.type = self.text("type")

    def text(self, name: str) -> str:
        value = self._members.get(name)
        return value if isinstance(value, str) else ""


class _Content(msgspec.Struct):
    content: list[msgspec.Raw]


_CONTENT = msgspec.json.Decoder(_Content)


def _blocks(reply: Reply) -> list[_Block]:
    return [_Block(raw) for raw in _CONTENT.decode(reply.raw).content]
