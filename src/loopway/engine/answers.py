"""Tool calls and their results, as a neutral patch. Each dialect renders it into its own messages.

This file must not know what a message looks like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from loopway.engine.reply import Reply, ToolCall


class Answer(msgspec.Struct, frozen=True):
    """The result of one call.

    Attributes:
        call: What was called.
        content: Text, or content blocks in Anthropic's shape.
        error: Whether it tells the model of a failure.
        shown: Blocks that the client sees for this call.
        usage: Counts that are added to the usage that the client sees.
    """

    call: ToolCall
    content: str | list[dict[str, Any]]
    error: bool = False
    shown: tuple[dict[str, Any], ...] = ()
    usage: Mapping[str, Any] = {}


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


class Kept(msgspec.Struct, frozen=True):
    """The server's half of a mixed reply, when the client has answered its own half.

    Attributes:
        client_ids: The ids of the calls that the client got.
        turns: What the history lacks: the turns of the loop, and the full assistant turn as the last.
        answers: The results of the server's calls.
    """

    client_ids: tuple[str, ...]
    turns: list[dict[str, Any]]
    answers: tuple[Answer, ...]


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
