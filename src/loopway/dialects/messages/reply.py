"""A Messages reply: read from JSON, or folded from its stream.

This file must not know what the client has been shown, or that there was more than one iteration. The format:
https://docs.anthropic.com/en/api/messages and https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from loopway.dialects.messages.block import MEMBERS, NONE, Block, as_text, built, paired, written
from loopway.dialects.sse import Frame
from loopway.engine.reply import Ending, Reply, ToolCall

_ENDINGS: dict[Any, Ending] = {
    "end_turn": "end",
    "tool_use": "tool_calls",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "refusal": "refusal",
    "stop_sequence": "stop_sequence",
}


# --- a whole reply -------------------------------------------------------------


class _Part(msgspec.Struct):
    type: Any = None
    id: Any = None
    name: Any = None
    input: msgspec.Raw = NONE


class _Message(msgspec.Struct):
    content: list[_Part]
    stop_reason: Any = None
    usage: Any = None
    model: Any = None
    id: Any = None


_MESSAGE = msgspec.json.Decoder(_Message)


def parse(raw: bytes) -> Reply:
    """Read a JSON reply. Raises `ValueError` if it is no object with a list `content`.

    The input of a call is an object; a text in its place is what a stream told and no JSON was (`Fold`), so the call
    is not valid.
    """
    try:
        message = _MESSAGE.decode(raw)
    except msgspec.ValidationError as wrong:
        raise ValueError(f"it is no Messages reply: {wrong}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raw = _repaired(raw)
        return parse(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return Reply(
        raw=raw,
        calls=tuple(_call(part) for part in message.content if part.type == "tool_use"),
        ending=_ending(message.stop_reason),
        usage=message.usage if isinstance(message.usage, dict) else {},
        model=as_text(message.model),
        id=as_text(message.id),
    )


def _repaired(raw: bytes) -> bytes:
    """JSON that msgspec can read, of JSON that it cannot: with half a surrogate pair, or bytes that are no UTF-8.

    Raises `ValueError` if it is no JSON at all.
    """
    try:
        value = json.loads(raw.decode("utf-8", "replace"), parse_constant=_refused)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return paired(json.dumps(value, ensure_ascii=False)).encode()


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _call(part: _Part) -> ToolCall:
    raw = bytes(part.input)
    try:
        arguments = msgspec.json.decode(raw) if raw else {}
    except (ValueError, RecursionError):  # too deep, or text that no tool can be given
        return ToolCall(as_text(part.id), as_text(part.name), None, raw.decode("utf-8", "replace"), valid=False)
    if isinstance(arguments, str):
        return ToolCall(as_text(part.id), as_text(part.name), None, arguments, valid=False)
    if arguments is None or not raw:
        return ToolCall(as_text(part.id), as_text(part.name), {}, "{}")
    return ToolCall(as_text(part.id), as_text(part.name), arguments, raw.decode())


def _ending(stop_reason: Any) -> Ending:
    return _ENDINGS.get(stop_reason, "other") if isinstance(stop_reason, str) else "other"


def _update(members: dict[str, msgspec.Raw], newer: dict[str, msgspec.Raw]) -> None:
    """Newer members win, but null does not take away what was there."""
    for name, raw in newer.items():
        if name not in members or bytes(raw) != b"null":
            members[name] = raw


# --- a stream ------------------------------------------------------------------


class _Event(msgspec.Struct):
    type: str = ""
    index: int = -1
    delta: msgspec.Raw = NONE
    content_block: msgspec.Raw = NONE
    message: msgspec.Raw = NONE
    error: msgspec.Raw = NONE


_EVENT = msgspec.json.Decoder(_Event)
_PART = msgspec.json.Decoder(_Part)
_NO_EVENT = "no event"


class Fold:
    """The events of one stream, kept as bytes until `reply` builds the message that they tell.

    Attributes:
        ended: Whether message_stop has come. Nothing behind it counts.
        error: The data of an error event. Nothing behind it counts, either.
        usage: The usage so far: message_start's, updated by the members of message_delta's that are not null.
        delta: The members of message_delta's `delta`.
        outer: The other members of message_delta.
    """

    __slots__ = ("_blocks", "_malformed", "_message", "_open", "delta", "ended", "error", "outer", "usage")

    def __init__(self) -> None:
        self.ended = False
        self.error: bytes | None = None
        self.usage: dict[str, Any] = {}
        self.delta: dict[str, msgspec.Raw] = {}
        self.outer: dict[str, msgspec.Raw] = {}
        self._message: dict[str, msgspec.Raw] | None = None
        self._blocks: list[Block] = []
        self._open: dict[int, Block] = {}
        self._malformed = False

    def feed(self, frame: Frame) -> tuple[str, Block | None]:
        """Take one event; give its type and, if it belongs to one, its block.

        The type is empty for an event without data (a comment), `wrong` for one that breaks the wire format, and
        `late` for one that belongs to a message and comes behind its end; nobody should be shown these two.
        """
        data = frame.data
        if data is None:
            return "", None
        try:
            event = _EVENT.decode(data)
        except (ValueError, RecursionError):
            event, data = _odd(frame, data)
        kind = event.type
        if not kind or frame.event == b"error":
            bare = not frame.event and len(event.error) > 0
            kind = "error" if bare or frame.event == b"error" else frame.event.decode("utf-8", "replace")
        step = _STEPS.get(kind)
        if step is None:
            return kind, None
        if self.ended or self.error is not None:
            return "late", None
        try:
            return kind, step(self, event, data)
        except (ValueError, KeyError, RecursionError):
            self._malformed = True
            return "wrong", None

    def reply(self, *, delivered: bool = False) -> Reply:
        """The reply, with its fault if the stream was not whole: `error`, `malformed` or `cut`.

        Tool input that is not JSON is in the message as the text that came; its call is not valid.
        """
        reply = parse(self._folded())
        fault = None
        if self.error is not None:
            fault = "error"
        elif self._malformed:
            fault = "malformed"
        elif not self.ended or self._message is None:
            fault = "cut"
        return msgspec.structs.replace(reply, fault=fault, delivered=delivered) if fault or delivered else reply

    # --- one method per event type; what they raise makes the stream malformed ---

    def _message_start(self, event: _Event, _data: bytes) -> None:
        if self._message is not None:
            raise ValueError("a second message_start")
        self._message = MEMBERS.decode(event.message)
        self._used(self._message.get("usage"))

    def _content_block_start(self, event: _Event, _data: bytes) -> Block:
        if self._message is None:
            raise ValueError("a block before message_start")
        part = _PART.decode(event.content_block)
        block = Block(event.index, as_text(part.type), as_text(part.name), event.content_block)
        self._blocks.append(block)
        self._open[event.index] = block
        return block

    def _content_block_delta(self, event: _Event, _data: bytes) -> Block:
        block = self._open[event.index]
        block.deltas.append(event.delta)
        return block

    def _content_block_stop(self, event: _Event, _data: bytes) -> Block:
        block = self._open.pop(event.index)
        block.closed = True
        return block

    def _message_delta(self, event: _Event, data: bytes) -> None:
        if self._message is None:
            raise ValueError("an ending before message_start")
        if event.delta:
            _update(self.delta, MEMBERS.decode(event.delta))
        outer = MEMBERS.decode(data)
        self._used(outer.pop("usage", None))
        outer.pop("type", None)
        outer.pop("delta", None)
        _update(self.outer, outer)

    def _message_stop(self, _event: _Event, _data: bytes) -> None:
        self.ended = True

    def _error(self, _event: _Event, data: bytes) -> None:
        self.error = data

    def _no_event(self, _event: _Event, _data: bytes) -> None:
        raise ValueError("no event")

    # --- the message ---

    def _used(self, raw: msgspec.Raw | None) -> None:
        usage = msgspec.json.decode(raw) if raw else None
        if isinstance(usage, dict):
            self.usage |= {name: value for name, value in usage.items() if value is not None or name not in self.usage}

    def _folded(self) -> bytes:
        members = dict(self._message or {"type": msgspec.Raw(b'"message"'), "role": msgspec.Raw(b'"assistant"')})
        members["content"] = msgspec.Raw(b"[" + b",".join(built(block) for block in self._blocks) + b"]")
        _update(members, self.delta)
        _update(members, self.outer)
        if self.usage:
            members["usage"] = msgspec.Raw(msgspec.json.encode(self.usage))
        raw = written(members)
        try:
            raw.decode()
        except UnicodeDecodeError:
            raw = raw.decode("utf-8", "replace").encode()
        return raw


_STEPS: dict[str, Callable[[Fold, _Event, bytes], Block | None]] = {
    "message_start": Fold._message_start,  # noqa: SLF001 - a table of its own methods
    "content_block_start": Fold._content_block_start,  # noqa: SLF001
    "content_block_delta": Fold._content_block_delta,  # noqa: SLF001
    "content_block_stop": Fold._content_block_stop,  # noqa: SLF001
    "message_delta": Fold._message_delta,  # noqa: SLF001
    "message_stop": Fold._message_stop,  # noqa: SLF001
    "error": Fold._error,  # noqa: SLF001
    _NO_EVENT: Fold._no_event,  # noqa: SLF001
}


def _odd(frame: Frame, data: bytes) -> tuple[_Event, bytes]:
    """An event whose data msgspec refuses: half a surrogate pair is in it, or it is no event of this dialect."""
    try:
        value = json.loads(data.decode("utf-8", "replace"), parse_constant=_refused)
        if isinstance(value, dict) and type(value.get("index", -1)) is int:
            whole = _repaired(data)
            event = _EVENT.decode(whole)
            if event.delta:  # ASCII keeps the halves apart, so that they can meet when the pieces are joined
                event.delta = msgspec.Raw(json.dumps(value["delta"]).encode())
            return event, whole
    except (ValueError, RecursionError):
        pass
    name = frame.event.decode("utf-8", "replace")
    return _Event(_NO_EVENT if not name or name in _STEPS else name), data
