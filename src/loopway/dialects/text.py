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
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [content] if content else []
    if not isinstance(content, list):
        return []
    return [block["text"] for block in content if isinstance(block, dict) and isinstance(block.get("text"), str)]
