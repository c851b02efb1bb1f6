"""A whole completion as the stream that would tell it.

This file must not know why it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from loopway.dialects.chat_completions.reply import first_message
from loopway.dialects.sse import Frame, encode_data

_CHOICE = ("index", "message", "finish_reason", "logprobs")
_LAST = ("role", "content", "tool_calls", "function_call")


def render(value: Mapping[str, Any]) -> list[Frame]:
    """The chunks of a completion: role, reasoning, text, calls, ending, usage. Raises `ValueError` if it is none."""
    value = dict(value)
    message = first_message(value)
    choice = value["choices"][0]
    members = {name: member for name, member in value.items() if name not in ("object", "choices", "usage")}
    head: dict[str, Any] = {"object": "chat.completion.chunk"}
    head |= {name: members.pop(name) for name in ("id", "created", "model") if name in members}

    def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None, **more}]}

    chunks = [chunk({"role": message.get("role") or "assistant"})]
    chunks += [chunk({name: member}) for name, member in message.items() if name not in _LAST]
    if message.get("content") is not None:
        logprobs = {"logprobs": choice["logprobs"]} if choice.get("logprobs") is not None else {}
        chunks.append(chunk({"content": message["content"]}, **logprobs))
    if calls := message.get("tool_calls"):
        chunks.append(chunk({"tool_calls": [{"index": number, **call} for number, call in enumerate(calls)]}))
    if call := message.get("function_call"):
        chunks.append(chunk({"function_call": call}))
    rest = {name: member for name, member in choice.items() if name not in _CHOICE}
    if "logprobs" in choice:
        rest["logprobs"] = None
    reason = choice.get("finish_reason") or ("tool_calls" if calls else "stop")
    chunks.append({**chunk({}, **{**rest, "finish_reason": reason}), **members})
    if value.get("usage") is not None:
        chunks.append({**head, "choices": [], "usage": value["usage"]})
    try:
        frames = [msgspec.json.encode(one) for one in chunks]
    except (TypeError, UnicodeEncodeError, msgspec.MsgspecError, RecursionError) as wrong:
        raise ValueError(f"it is no JSON: {wrong}") from None
    return [Frame(encode_data(data), b"", data) for data in (*frames, b"[DONE]")]
