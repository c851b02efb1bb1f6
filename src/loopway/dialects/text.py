"""The plain text of messages and replies, in either dialect's shape.

This file must not know what the text is for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def text_of_messages(messages: Iterable[Any]) -> str:
    """The text of a list of messages, a line per message and block."""
    return "\n".join(part for message in messages for part in _parts(message))


def text_of_reply(value: dict[str, Any]) -> str:
    """The text of a reply; empty if it has none."""
    choices = value.get("choices")
    if isinstance(choices, list):
        return "\n".join(
            part for choice in choices if isinstance(choice, dict) for part in _parts(choice.get("message"))
        )
    return "\n".join(_parts(value))


def _parts(message: Any) -> list[str]:
    """The texts of a message, of the results of tools and of documents in it, in their order."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [content] if content else []
    parts: list[str] = []
    for block in content if isinstance(content, list) else []:
        if not isinstance(block, dict):
            continue
        if isinstance(block.get("text"), str):
            parts.append(block["text"])
        elif block.get("type") == "tool_result":
            parts += _parts(block)
        elif isinstance(source := block.get("source"), dict) and source.get("type") == "text":
            parts.append(str(source.get("data", "")))
    return parts
