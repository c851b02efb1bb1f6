"""The history of a request, read for the halves of mixed replies that are kept: whatever a client sends in it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from loopway.dialects.chat_completions.request import ChatRequest
from loopway.dialects.messages.request import MessagesRequest

DEEP = "[" * 900 + "]" * 900


def chat(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(calls)}


def block(**more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", **more}]}


@pytest.mark.parametrize(
    ("turn", "ids"),
    [
        (chat({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}), [("a",)]),
        (chat({"id": "a", "type": "function", "function": "f"}), []),
        (chat({"id": "a", "type": "custom", "custom": ["f"]}), []),
        (chat({"id": "a"}, None, 3), []),
        (chat({"id": 1, "function": {"name": "f"}}), []),
        (chat({"id": "a", "function": {"name": ["f"], "arguments": DEEP}}), [("a",)]),
        ({"role": "assistant", "tool_calls": "none"}, []),
    ],
)
def test_turns_of_chat_completions(turn: dict[str, Any], ids: list[Any]) -> None:
    """Calls that have the shape of calls are found; others are the upstream's to refuse."""
    body = msgspec.json.encode({"model": "m", "messages": [turn]})
    assert [found for found, _ in ChatRequest.decode(body).history()] == ids


@pytest.mark.parametrize(
    ("turn", "ids"),
    [
        (block(id="a", name="f", input={}), [("a",)]),
        (block(id="a", name=3, input=msgspec.Raw(DEEP.encode())), [("a",)]),
        ({"role": "assistant", "content": ["tool_use", None]}, []),
        ({"role": "user", "content": [{"type": "tool_use", "id": "a"}]}, []),
    ],
)
def test_turns_of_messages(turn: dict[str, Any], ids: list[Any]) -> None:
    """Blocks that have the shape of calls are found; others are the upstream's to refuse."""
    body = msgspec.json.encode({"model": "m", "messages": [turn]})
    assert [found for found, _ in MessagesRequest.decode(body).history()] == ids
