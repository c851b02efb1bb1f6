"""Tool calls and their results, as a neutral patch. Each dialect renders it into its own messages.

This file must not know what a message looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from loopway.engine.reply import Reply, ToolCall


class Answer(msgspec.Struct, frozen=True):
    """The result of one call: text, or the dialect's own content blocks."""

    call: ToolCall
    content: str | list[dict[str, Any]]
    error: bool = False


class Answers(msgspec.Struct, frozen=True):
    """One answer per call of a reply, in call order.

    Attributes:
        reply: The reply whose assistant turn is echoed exactly.
        results: The answers, in call order.
        choice_none: Keep the tools but let the model call none.
    """

    reply: Reply
    results: tuple[Answer, ...]
    choice_none: bool = False


REPEATED = (
    "Not run: this call was already made in this exchange with the same arguments, and its result is above. "
    "Use that result, or call with other arguments."
)
NO_MORE = "Not run: the limit of tool calls of this exchange is reached. Answer with what you have."


def refusing(reply: Reply, text: str, *, choice_none: bool = False) -> Answers:
    """Answer every call of a reply with the same error text."""
    return Answers(reply, tuple(Answer(call, text, error=True) for call in reply.calls), choice_none)


def in_order(reply: Reply, results: Sequence[Answer]) -> Answers:
    """Answers sorted into call order."""
    place = {call.id: number for number, call in enumerate(reply.calls)}
    return Answers(reply, tuple(sorted(results, key=lambda answer: place.get(answer.call.id, len(place)))))
