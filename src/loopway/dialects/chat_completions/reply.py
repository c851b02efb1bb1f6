"""A Chat Completions reply: read from JSON, or folded from chunks into the same JSON.

This file must not know what is sent to a client. Wire format: https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from loopway.dialects.chat_completions.chunk import TEXTS, leniently, whole_pairs
from loopway.engine.reply import Ending, Reply, ToolCall

ENDINGS: Final[dict[str, Ending]] = {
    "stop": "end",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "max_tokens",
    "content_filter": "refusal",
}

CUT: Final = "the stream was cut"
ERROR: Final = "the upstream reported an error"
UNREADABLE: Final = "a chunk could not be read"

_STREAM_ONLY = frozenset(("obfuscation",))  # padding of chunks; no completion has it


def parse(raw: bytes) -> Reply:
    """Read a `chat.completion`. Raises `ValueError` if it is none."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raw = _strict(raw)
        value = msgspec.json.decode(raw)
    first_message(value)
    return read(value, raw)


def _strict(raw: bytes) -> bytes:
    """JSON without halves of characters, which msgspec does not take. Raises `ValueError` if it is no JSON at all."""
    try:
        return _encoded(leniently(raw))
    except ValueError as wrong:
        raise ValueError(f"a chat completion is JSON, and this is not: {wrong}") from None


def first_message(value: object) -> dict[str, Any]:
    """The message of the first choice. Raises `ValueError` if the value is no chat completion."""
    if not isinstance(value, dict):
        raise ValueError("a chat completion is a JSON object")  # noqa: TRY004 - one kind to catch
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ValueError("a chat completion has a list of choices")
    message = choices[0].get("message") if isinstance(choices[0], dict) else None
    if not isinstance(message, dict):
        raise ValueError("the first choice of a chat completion has a message")  # noqa: TRY004
    return message


def read(value: dict[str, Any], raw: bytes, *, fault: str | None = None, delivered: bool = False) -> Reply:
    """A completion in neutral terms. The value has a message; `raw` is the same as JSON."""
    choice = value["choices"][0]
    message = choice["message"]
    usage = value.get("usage")
    model, identity = value.get("model"), value.get("id")
    return Reply(
        raw=raw,
        calls=_calls(message),
        ending=_ending(choice.get("finish_reason"), message),
        usage=usage if isinstance(usage, dict) else {},
        fault=fault,
        delivered=delivered,
        model=model if isinstance(model, str) else "",
        id=identity if isinstance(identity, str) else "",
    )


def _ending(reason: object, message: Mapping[str, Any]) -> Ending:
    if message.get("refusal") and not message.get("content"):
        return "refusal"
    return ENDINGS.get(reason, "other") if isinstance(reason, str) else "other"


def _calls(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    found = message.get("tool_calls")
    calls = [_call(call) for call in found if isinstance(call, dict)] if isinstance(found, list) else []
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        calls.append(_function("", legacy))
    return tuple(calls)


def _call(call: Mapping[str, Any]) -> ToolCall:
    identity = _text(call.get("id"))
    custom = call.get("custom")
    if isinstance(custom, dict):
        given = _text(custom.get("input"))
        return ToolCall(identity, _text(custom.get("name")), given, given)
    function = call.get("function")
    return _function(identity, function if isinstance(function, dict) else {})


def _function(identity: str, function: Mapping[str, Any]) -> ToolCall:
    name = _text(function.get("name"))
    given = function.get("arguments")
    if given is None:
        return ToolCall(identity, name, {}, "")
    if not isinstance(given, str):  # some servers send an object
        return ToolCall(identity, name, given, msgspec.json.encode(given).decode())
    if not given.strip():
        return ToolCall(identity, name, {}, given)
    try:
        return ToolCall(identity, name, msgspec.json.decode(given), given)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ToolCall(identity, name, None, given, valid=False)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _encoded(value: object) -> bytes:
    """JSON of plain data; halves of a surrogate pair that came apart are one character again."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return whole_pairs(json.dumps(value, ensure_ascii=False, separators=(",", ":"))).encode()


# --- the fold ---


class CallKeys:
    """Says of each fragment to which call of its reply it belongs; calls are numbered as they come."""

    __slots__ = ("_by_id", "_by_index", "_ids", "_last")

    def __init__(self) -> None:
        self._by_index: dict[int, int] = {}
        self._by_id: dict[str, int] = {}
        self._ids: list[str] = []
        self._last = -1

    def of(self, index: object, identity: object, name: object) -> int:
        """The number of a fragment's call.

        By index; a known index with another id and a name of its own is a new call (Gemini numbers parallel calls all
        0). Without an index a new id, or a name without an id, is a new call (Mistral); all else continues the last.
        """
        known = _text(identity)
        if isinstance(index, int):
            number = self._by_index.get(index)
            if number is None or (known and name and self._ids[number] not in ("", known)):
                number = self._by_index[index] = self._new(known)
        elif known:
            number = self._by_id.get(known, -1)
            if number < 0 and not name and self._last >= 0 and not self._ids[self._last]:
                number = self._last  # the id of a call that began without one
            elif number < 0:
                number = self._new(known)
        elif name or self._last < 0:
            number = self._new("")
        else:
            number = self._last
        if known and not self._ids[number]:
            self._ids[number] = known
            self._by_id[known] = number
        self._last = number
        return number

    def _new(self, identity: str) -> int:
        self._ids.append(identity)
        if identity:
            self._by_id[identity] = len(self._ids) - 1
        return len(self._ids) - 1


class Fold:
    """Chunks in, one `chat.completion` out. Keeps bytes; all decoding is done in `reply`."""

    __slots__ = ("_kept", "_run", "fault", "finished")

    def __init__(self) -> None:
        self._kept: list[bytes | tuple[str | int, list[str]]] = []
        self._run: list[str] | None = None
        self.fault: str | None = None
        self.finished = False
        """Whether a finish_reason came; a server may forget its `[DONE]`."""

    def add(self, data: bytes) -> None:
        """One chunk."""
        self._kept.append(data)
        self._run = None

    def add_text(self, of: str | int, text: str) -> None:
        """One chunk that is otherwise like the one before it.

        Args:
            of: The member of the delta that has the text, or the number of the call whose arguments it belongs to.
            text: The text.
        """
        if self._run is None:
            self._run = []
            self._kept.append((of, self._run))
        self._run.append(text)

    def reply(self, *, delivered: bool = False) -> Reply:
        """All chunks as one reply."""
        completion = _Completion()
        fault = self.fault
        for kept in self._kept:
            if isinstance(kept, tuple):
                completion.text(*kept)
                continue
            try:
                completion.chunk(leniently(kept))
            except ValueError:
                fault = fault or UNREADABLE
        raw = _encoded(completion.value())
        fault = fault or (None if self.finished else CUT)
        return read(msgspec.json.decode(raw), raw, fault=fault, delivered=delivered)


def _dicts(value: object) -> list[dict[str, Any]]:
    """The objects of a list; what has another shape is passed over, as the splicer does."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


class _Completion:
    """A completion as it grows. Null never replaces a value."""

    def __init__(self) -> None:
        self._top: dict[str, Any] = {}
        self._choice: dict[str, Any] = {}
        self._message: dict[str, Any] = {}
        self._pieces: dict[str, list[str]] = {}
        self._nulls: set[str] = set()
        self._calls: dict[int, dict[str, Any]] = {}
        self._keys = CallKeys()

    def text(self, name: str | int, pieces: list[str]) -> None:
        """Pieces of a text, or of the arguments of a call, in a row."""
        if isinstance(name, int):
            body = self._calls[name]["function"]
            body["arguments"] = (body.get("arguments") or "") + "".join(pieces)
        elif name in self._message:  # a text that was no plain text before
            for piece in pieces:
                self._grow(self._message, name, piece)
        else:
            self._pieces.setdefault(name, []).extend(pieces)

    def chunk(self, chunk: Any) -> None:
        """One chunk as plain data."""
        if not isinstance(chunk, dict):
            return
        for name, value in chunk.items():
            if name == "choices" or name in _STREAM_ONLY:
                continue
            if (name in ("id", "created", "model") and self._top.get(name)) or name == "object":
                continue  # the first that says something is the stream's
            if value is not None or name not in self._top:
                self._top[name] = value
        for choice in _dicts(chunk.get("choices")):
            if choice.get("index") in (0, None):
                self._add(choice)

    def _add(self, choice: dict[str, Any]) -> None:
        for name, value in choice.items():
            if name in ("delta", "index"):
                continue
            if name == "logprobs" and isinstance(value, dict):
                self._grow(self._choice, name, value)
            elif value is not None or name not in self._choice:
                self._choice[name] = value
        delta = choice.get("delta")
        for name, value in delta.items() if isinstance(delta, dict) else ():
            if name == "role":
                if value:
                    self._message.setdefault(name, value)
            elif name == "tool_calls":
                for fragment in _dicts(value):
                    self._fragment(fragment)
            elif name in TEXTS:
                self._text(name, value)
            else:
                self._grow(self._message, name, value)

    def _text(self, name: str, value: Any) -> None:
        if value is None:
            self._nulls.add(name)
        elif isinstance(value, str) and name not in self._message:
            self._pieces.setdefault(name, []).append(value)
        else:  # content parts, or text behind them
            if name in self._pieces:
                self._message[name] = "".join(self._pieces.pop(name))
            self._grow(self._message, name, value)

    def _fragment(self, fragment: dict[str, Any]) -> None:
        body = fragment.get("function") or fragment.get("custom")
        called = body.get("name") if isinstance(body, dict) else None
        number = self._keys.of(fragment.get("index"), fragment.get("id"), called)
        call = self._calls.setdefault(number, {})
        for name, value in fragment.items():
            if name == "index":
                continue
            if name in ("function", "custom"):
                if not isinstance(value, dict):
                    continue
                grown = call.setdefault(name, {})
                for key, piece in value.items():
                    if key == "name":
                        grown[key] = grown.get(key) or piece
                    else:
                        self._grow(grown, key, piece)
            elif name in ("id", "type"):
                call[name] = call.get(name) or value
            elif value is not None or name not in call:
                call[name] = value

    def _grow(self, into: dict[str, Any], name: str, value: Any) -> None:
        """Strings and lists that come in pieces are joined, objects member by member; of all else the last wins."""
        before = into.get(name)
        if before is None:
            # null keeps its place until a value comes
            into[name] = value
        elif value is None:
            pass
        elif isinstance(before, str) and isinstance(value, str):
            into[name] = before if name == "id" else before + value
        elif isinstance(before, list) and isinstance(value, list):
            before.extend(value)
        elif isinstance(before, list) and isinstance(value, str):
            _add_text(before, value)
        elif isinstance(before, str) and isinstance(value, list):
            into[name] = [{"type": "text", "text": before}, *value] if before else value
        elif isinstance(before, dict) and isinstance(value, dict):
            for key, piece in value.items():
                self._grow(before, key, piece)
        else:
            into[name] = value

    def value(self) -> dict[str, Any]:
        """The completion."""
        grown = dict.fromkeys(sorted(self._nulls)) | self._message
        grown |= {name: "".join(pieces) for name, pieces in self._pieces.items()}
        message = {
            "role": grown.pop("role", "assistant"),
            "content": grown.pop("content", None) or None,
            **grown,
        }
        if self._calls:
            message["tool_calls"] = [_whole(self._calls[number]) for number in sorted(self._calls)]
        top = dict(self._top)
        choice = dict(self._choice)
        reason = choice.pop("finish_reason", None)
        usage = top.pop("usage", None)
        made: dict[str, Any] = {}
        if "id" in top:
            made["id"] = top.pop("id")
        made["object"] = "chat.completion"
        made |= {name: top.pop(name) for name in ("created", "model") if name in top}
        made["choices"] = [{"index": 0, "message": message, **choice, "finish_reason": reason}]
        if usage is not None:
            made["usage"] = usage
        return {**made, **top}


def _whole(call: dict[str, Any]) -> dict[str, Any]:
    """A call with the members that every whole call has."""
    kind = "custom" if "custom" in call and "function" not in call else "function"
    body = {"name": "", "input" if kind == "custom" else "arguments": "", **call.get(kind, {})}
    if body.get("arguments", "") is None:
        body["arguments"] = ""
    return {**call, "id": call.get("id") or "", "type": call.get("type") or kind, kind: body}


def _add_text(parts: list[Any], text: str) -> None:
    """Text behind content parts (Mistral's reasoning models change over from parts to text)."""
    if not text:
        return
    last = parts[-1] if parts else None
    if isinstance(last, dict) and last.get("type") == "text" and isinstance(last.get("text"), str):
        last["text"] += text
    else:
        parts.append({"type": "text", "text": text})
