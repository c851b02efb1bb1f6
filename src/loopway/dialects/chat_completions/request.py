"""A Chat Completions request.

This file must not know what a reply of it looks like on the wire. https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from loopway.dialects.request import Request
from loopway.engine.answers import Answers


class _Named(msgspec.Struct):
    name: str | None = None


class _Tool(msgspec.Struct):
    function: _Named | None = None
    custom: _Named | None = None
    name: str | None = None


_TOOLS = msgspec.json.Decoder(list[_Tool])
_FUNCTIONS = msgspec.json.Decoder(list[_Named])


class ChatRequest(Request):
    """A request in the shape of OpenAI's Chat Completions."""

    __slots__ = ()

    @property
    def single(self) -> bool:
        """Whether one choice is asked for."""
        return self._members.get("n") in (None, 1)

    @property
    def include_usage(self) -> bool:
        """Whether the client asked for the usage chunk."""
        options = self._members.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    def _read_tool_names(self) -> frozenset[str]:
        names: set[str] = set()
        try:
            if (raw := self._members.raw("tools")) is not None:
                for tool in _TOOLS.decode(raw):
                    names |= {part.name for part in (tool.function, tool.custom) if part and part.name}
            if (raw := self._members.raw("functions")) is not None:
                names |= {function.name for function in _FUNCTIONS.decode(raw) if function.name}
        except msgspec.MsgspecError:
            pass  # the upstream says what is wrong with them
        return frozenset(names)

    def _turns(self, answers: Answers) -> list[dict[str, Any]]:
        message = answers.reply.value()["choices"][0]["message"]
        # What a reply has and a request may not: the API refuses these on the way back in.
        turn = {name: value for name, value in message.items() if name not in ("annotations", "audio") or value}
        if isinstance(audio := turn.get("audio"), dict):
            turn["audio"] = {"id": audio.get("id")}
        results: list[dict[str, Any]] = []
        for answer in answers.results:
            if not answer.call.id and "function_call" in message:
                told: dict[str, Any] = {"role": "function", "name": answer.call.name}
            else:
                told = {"role": "tool", "tool_call_id": answer.call.id}
            results.append({**told, "content": answer.content})
        return [turn, *results]

    def _loosen(self, changed: dict[str, Any], removed: list[str]) -> None:
        choice = self._members.get("tool_choice")
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            allowed = choice.get("allowed_tools")
            if isinstance(allowed, dict) and allowed.get("mode") == "required":
                changed["tool_choice"] = {**choice, "allowed_tools": {**allowed, "mode": "auto"}}
        elif isinstance(choice, dict) or choice == "required":
            removed.append("tool_choice")
        if isinstance(self._members.get("function_call"), dict):
            removed.append("function_call")

    def _choice_none(self) -> Any:
        return "none"

    def _chosen(self, params: Mapping[str, Any]) -> bool:
        return params.get("tool_choice") is not None or params.get("function_call") is not None

    def _max_tokens_member(self) -> str:
        # The newer name where the request itself uses it; local servers know only the older one.
        return "max_completion_tokens" if "max_completion_tokens" in self._members else "max_tokens"
