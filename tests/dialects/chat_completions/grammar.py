"""What a valid stream of Chat Completions is, and the message that it tells; written apart from the code under test.

This file must not know how the splicer works. https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loopway.dialects.sse import Frame

HEAD = ("id", "object", "created", "model")
TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class ChatGrammar:
    """The grammar, and a folder."""

    def breaches(self, frames: Sequence[Frame], *, ended: bool) -> list[str]:
        bad: list[str] = []
        head: dict[str, Any] = {}
        names: dict[int, str] = {}
        seen = {"role": 0, "finish_reason": 0, "usage": 0, "done": 0}
        for frame in frames:
            if frame.data == b"[DONE]":
                seen["done"] += 1
            if frame.data in (None, b"[DONE]"):
                continue
            chunk = json.loads(frame.data or b"")
            if seen["done"]:
                bad.append("a chunk behind [DONE]")
            if chunk.get("id"):
                bad += [
                    f"{name} is {chunk.get(name)!r}, not {head[name]!r}"
                    for name in HEAD
                    if head.setdefault(name, chunk.get(name)) != chunk.get(name)
                ]
            elif head or chunk.get("choices"):
                bad.append("a chunk without an id")
            if chunk.get("usage"):
                seen["usage"] += 1
                if chunk["choices"] or not seen["finish_reason"]:
                    bad.append("the usage is not in a chunk of its own behind the finish_reason")
            for choice in chunk["choices"]:
                bad += _choice(choice, seen, names)
        bad += [f"{count} times {name}" for name, count in seen.items() if count > 1]
        if ended:
            bad += [f"no {name}" for name in ("role", "finish_reason", "done") if not seen[name]]
        return bad

    def fold(self, frames: Sequence[Frame]) -> dict[str, Any]:
        told: dict[str, Any] = {}
        message: dict[str, Any] = {"content": None}
        calls: dict[int, dict[str, Any]] = {}
        for chunk in _chunks(frames):
            told |= {name: chunk[name] for name in ("id", "created", "model") if name in chunk}
            if chunk.get("usage"):
                told["usage"] = chunk["usage"]
            for choice in chunk["choices"]:
                told["finish_reason"] = choice.get("finish_reason")
                for name, piece in (choice.get("delta") or {}).items():
                    if name == "tool_calls":
                        for one in piece:
                            _grow(calls.setdefault(one["index"], {}), one)
                    elif name == "function_call":
                        _grow(message.setdefault(name, {}), piece)
                    elif name in TEXTS:
                        if piece:
                            message[name] = (message.get(name) or "") + piece
                    else:
                        message[name] = piece
        message |= {name: _paired(message[name]) for name in TEXTS if message.get(name)}
        if calls:
            message["tool_calls"] = [calls[number] for number in sorted(calls)]
        return {**told, "message": message}

    def calls(self, message: Mapping[str, Any]) -> list[str]:
        told = message["message"]
        bodies = [call.get("function") or call["custom"] for call in told.get("tool_calls", [])]
        return [body["name"] for body in (*bodies, *filter(None, [told.get("function_call")]))]

    def text(self, frames: Sequence[Frame]) -> str:
        return "".join(
            (choice.get("delta") or {}).get("content") or "" for chunk in _chunks(frames) for choice in chunk["choices"]
        )

    def ending(self, frame: Frame) -> bool:
        if frame.data == b"[DONE]":
            return True
        chunk = json.loads(frame.data) if frame.data else {}
        finishing = any(choice.get("finish_reason") for choice in chunk.get("choices", []))
        return bool(chunk.get("usage")) or finishing


def _chunks(frames: Sequence[Frame]) -> Iterator[dict[str, Any]]:
    for frame in frames:
        if frame.data is not None and frame.data != b"[DONE]":
            yield json.loads(frame.data)


def _choice(choice: dict[str, Any], seen: dict[str, int], names: dict[int, str]) -> list[str]:
    bad: list[str] = []
    delta = choice.get("delta") or {}
    if seen["finish_reason"]:
        bad.append("a choice behind the finish_reason")
    seen["role"] += "role" in delta
    seen["finish_reason"] += bool(choice.get("finish_reason"))
    for one in delta.get("tool_calls") or []:
        index, body = one.get("index"), one.get("function") or one.get("custom") or {}
        if index in names:
            if one.get("id") or body.get("name"):
                bad.append(f"a later fragment of call {index} has an id or a name")
        elif index != len(names):
            bad.append(f"call {index} is number {len(names)}")
        elif not (one.get("id") and one.get("type") and body.get("name")):
            bad.append(f"the first fragment of call {index} does not say what it is")
        names.setdefault(index, body.get("name") or "")
    return bad


def _grow(into: dict[str, Any], piece: Mapping[str, Any]) -> None:
    for name, value in piece.items():
        if name == "index":
            continue
        if isinstance(value, Mapping):
            _grow(into.setdefault(name, {}), value)
        elif name in ("arguments", "input"):
            into[name] = into.get(name, "") + (value or "")
        else:
            into[name] = into.get(name) or value


def _paired(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


CHAT_GRAMMAR = ChatGrammar()
