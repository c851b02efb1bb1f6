"""Anthropic's Messages, to the protocol of `dialects/base.py`.

This file must not know how the driver uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopway.dialects.base import DialectName, Keep, UsageMode
from loopway.dialects.messages import errors
from loopway.dialects.messages.render import final, render
from loopway.dialects.messages.reply import parse
from loopway.dialects.messages.request import MessagesRequest
from loopway.dialects.messages.splice import MessagesSplicer
from loopway.dialects.sse import Frame
from loopway.engine.reply import Reply
from loopway.errors import ExchangeError


class Messages:
    """The dialect; see `dialects.base.Dialect` for what each member promises."""

    name: DialectName = "messages"
    path = "/v1/messages"
    provider = "anthropic"
    call_type = "anthropic_messages"
    full_status = 529
    """Anthropic's own status for an overloaded server."""
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    tail = b"message_stop"

    def request(self, body: bytes) -> MessagesRequest:
        """Decode a request. Raises `errors.BadRequest` with the JSON path."""
        return MessagesRequest.decode(body)

    def reply(self, raw: bytes) -> Reply:
        """Read a JSON reply. Raises `ValueError` if it is no Messages reply."""
        return parse(raw)

    def render(self, value: Mapping[str, Any]) -> list[Frame]:
        """A whole reply as the stream that would tell it. Raises `ValueError` if it is no Messages reply."""
        return render(value)

    def splicer(self, *, usage: UsageMode, include_usage: bool) -> MessagesSplicer:  # noqa: ARG002 - it always is
        """A splicer for one exchange. Messages streams always tell their usage."""
        return MessagesSplicer(usage=usage)

    def final(
        self, reply: Reply, *, keep: Keep, interim: Sequence[Reply] = (), usage: Mapping[str, Any] | None = None
    ) -> bytes:
        """The JSON answer made of the last reply."""
        return final(reply, keep=keep, interim=interim, usage=usage)

    def shown(self, blocks: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> dict[str, Any]:
        """Blocks of tools as a reply."""
        about = {"id": "msg_shown", "type": "message", "role": "assistant", "model": "", "content": list(blocks)}
        return {**about, "stop_reason": "end_turn", "stop_sequence": None, "usage": dict(usage)}

    def error_body(self, error: ExchangeError, request_id: str) -> bytes:
        """An error as a JSON body in Anthropic's shape."""
        return errors.body(error, request_id)

    def error_event(self, error: ExchangeError, request_id: str) -> bytes:
        """An error as an `event: error`."""
        return errors.event(error, request_id)

    def tokens(self, usage: Mapping[str, Any]) -> dict[str, int]:
        """A usage object by neutral names; what is absent or zero is left out.

        Anthropic's `input_tokens` are those that no cache was involved in, so both cache fields are added.
        """
        found: dict[str, int] = {}
        for member, kinds in _COUNTS:
            number = usage.get(member)
            if type(number) is int and number > 0:
                for kind in kinds:
                    found[kind] = found.get(kind, 0) + number
        details = usage.get("output_tokens_details")
        if isinstance(details, Mapping) and type(number := details.get("thinking_tokens")) is int and number > 0:
            found["reasoning"] = number
        return found


_COUNTS = (
    ("input_tokens", ("input",)),
    ("cache_read_input_tokens", ("input", "cache_read")),
    ("cache_creation_input_tokens", ("input", "cache_creation")),
    ("output_tokens", ("output",)),
)

MESSAGES = Messages()
