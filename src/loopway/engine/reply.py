"""A model's reply in neutral terms, with the dialect's own bytes beside it.

This file must not know how a reply looks on the wire.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Ending = Literal["end", "tool_calls", "max_tokens", "refusal", "stop_sequence", "other"]
"""How a reply ended. `tool_calls` is what the model server said; whether there are any, `Reply.calls` says."""


class ToolCall(msgspec.Struct, frozen=True):
    """One tool call of a reply.

    Attributes:
        id: The model server's id; never part of what makes two calls the same.
        name: The tool's name.
        arguments: The parsed arguments; None where `valid` is false.
        raw: The arguments as they came, JSON text (Messages: the encoded `input`).
        valid: Whether the arguments are JSON. No arguments at all count as `{}`.
    """

    id: str
    name: str
    arguments: Any
    raw: str
    valid: bool = True


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One whole reply of a model.

    Attributes:
        raw: The reply as one JSON document of its dialect. A stream is folded into the document that the same
            upstream would have sent without streaming.
        calls: Its tool calls, in order.
        ending: How it ended.
        usage: The dialect's own usage object; empty if none came.
        fault: Why it is no whole reply (a cut, an error), else None.
        delivered: A call of the client's own tools has already gone to the client.
        model: The model that the server says has answered.
        id: The server's own id of the reply.
    """

    raw: bytes
    calls: tuple[ToolCall, ...] = ()
    ending: Ending = "end"
    usage: dict[str, Any] = msgspec.field(default_factory=dict)
    fault: str | None = None
    delivered: bool = False
    model: str = ""
    id: str = ""

    @property
    def broken(self) -> str | None:
        """Why no tool may run on this reply, or None."""
        if self.fault:
            return self.fault
        if self.ending in ("max_tokens", "refusal"):
            return self.ending
        if not all(call.valid for call in self.calls):
            return "invalid_arguments"
        return None

    def value(self) -> dict[str, Any]:
        """The reply as fresh plain data; whoever asks may change it."""
        decoded = msgspec.json.decode(self.raw)
        return decoded if isinstance(decoded, dict) else {}
