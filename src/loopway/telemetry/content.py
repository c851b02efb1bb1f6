"""Prompts and replies in the shape of `gen_ai.input.messages`, for operators who asked to see them.

Off unless `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` says otherwise. The shape is that of the semantic
conventions v1.41 (a list of `role` and `parts`). This file must not know spans, and fails on no body.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_ON = frozenset({"true", "span_only", "span_and_event"})


def wanted(env: Mapping[str, str] = os.environ) -> bool:
    """Whether prompts and replies are put into spans."""
    return env.get(VARIABLE, "").strip().lower() in _ON


def of_request(body: Mapping[str, Any]) -> dict[str, str]:
    """The attributes of a request: system instructions, messages, tools; each as JSON."""
    made: dict[str, str] = {}
    if system := body.get("system"):
        made["gen_ai.system_instructions"] = _json(_parts(system))
    messages = body.get("messages")
    if isinstance(messages, list):
        made["gen_ai.input.messages"] = _json([_message(one) for one in messages if isinstance(one, dict)])
    if tools := body.get("tools"):
        made["gen_ai.tool.definitions"] = _json(tools)
    return made


def of_reply(value: Mapping[str, Any], finish: str) -> dict[str, str]:
    """The attribute of a reply."""
    choices = value.get("choices")
    if isinstance(choices, list):
        replies = [_message(one.get("message") or {}) for one in choices if isinstance(one, dict)]
    else:
        replies = [_message(value)]
    return {"gen_ai.output.messages": _json([{**one, "finish_reason": finish} for one in replies])}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role") or "assistant"
    if role == "tool":
        answer = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        return {"role": role, "parts": [answer]}
    parts = _parts(message.get("content"))
    if thought := message.get("reasoning_content"):
        parts.insert(0, {"type": "reasoning", "content": thought})
    for call in message.get("tool_calls") or ():
        if isinstance(call, dict):
            named = call.get("function") or {}
            given = named.get("arguments")
            parts.append({"type": "tool_call", "id": call.get("id"), "name": named.get("name"), "arguments": given})
    return {"role": role, "parts": parts}


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    if not isinstance(content, Iterable):
        return []
    return [_part(block) for block in content if isinstance(block, dict)]


def _part(block: dict[str, Any]) -> dict[str, Any]:
    match block.get("type"):
        case "text":
            return {"type": "text", "content": block.get("text")}
        case "thinking":
            return {"type": "reasoning", "content": block.get("thinking")}
        case "tool_use":
            names = ("id", "name")
            return {"type": "tool_call", **{name: block.get(name) for name in names}, "arguments": block.get("input")}
        case "tool_result":
            return {"type": "tool_call_response", "id": block.get("tool_use_id"), "response": block.get("content")}
        case kind:
            return {"type": kind if isinstance(kind, str) else "unknown"}  # an image's bytes help nobody in a trace


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
