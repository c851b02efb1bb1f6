"""OpenAI's Chat Completions as a `Dialect`.

This file must not know any other dialect, or who drives it. https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loopway.dialects.base import DialectName, Keep, UsageMode
from loopway.dialects.chat_completions import errors
from loopway.dialects.chat_completions.final import final
from loopway.dialects.chat_completions.render import render
from loopway.dialects.chat_completions.reply import parse
from loopway.dialects.chat_completions.request import ChatRequest
from loopway.dialects.chat_completions.splice import DONE, ChatSplicer
from loopway.dialects.sse import Frame
from loopway.engine.reply import Reply
from loopway.errors import ExchangeError


class ChatCompletions:
    """The wire format of `/v1/chat/completions`."""

    name: DialectName = "chat_completions"
    path = "/v1/chat/completions"
    provider = "openai"
    call_type = "acompletion"
    full_status = 503
    ping = b": ping\n\n"  # clients of this dialect choke on an event that is no chunk
    tail = DONE

    def request(self, body: bytes) -> ChatRequest:
        """Decode a request."""
        return ChatRequest.decode(body)

    def reply(self, raw: bytes) -> Reply:
        """Read a `chat.completion`."""
        return parse(raw)

    def render(self, value: Mapping[str, Any]) -> list[Frame]:
        """A whole completion as the chunks that would tell it."""
        return render(value)

    def splicer(self, *, usage: UsageMode, include_usage: bool) -> ChatSplicer:
        """A splicer for one exchange."""
        return ChatSplicer(usage=usage, include_usage=include_usage)

    def final(
        self,
        reply: Reply,
        *,
        keep: Keep,
        interim: Sequence[Reply] = (),
        usage: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The JSON answer made of the last reply."""
        return final(reply, keep=keep, interim=interim, usage=usage)

    def shown(
        self,
        blocks: Sequence[Mapping[str, Any]],  # noqa: ARG002 - this dialect has none
        usage: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The usage of tools as a reply that says nothing."""
        choice = {"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": "stop"}
        about = {"id": "chatcmpl-shown", "object": "chat.completion", "created": 0, "model": ""}
        return {**about, "choices": [choice], "usage": dict(usage) or None}

    def error_body(self, error: ExchangeError, request_id: str) -> bytes:
        """An error as a JSON body."""
        return errors.body(error, request_id)

    def error_event(self, error: ExchangeError, request_id: str) -> bytes:
        """An error inside a stream."""
        return errors.event(error, request_id)

    def tokens(self, usage: Mapping[str, Any]) -> dict[str, int]:
        """A usage object by neutral names; `prompt_tokens` has the cached ones in it already."""
        found = {
            "input": usage.get("prompt_tokens"),
            "output": usage.get("completion_tokens"),
            "cache_read": _detail(usage, "prompt_tokens_details", "cached_tokens"),
            "reasoning": _detail(usage, "completion_tokens_details", "reasoning_tokens"),
        }
        return {name: count for name, count in found.items() if type(count) is int and count > 0}


def _detail(usage: Mapping[str, Any], details: str, name: str) -> Any:
    held = usage.get(details)
    return held.get(name) if isinstance(held, Mapping) else None


CHAT_COMPLETIONS: Final = ChatCompletions()
