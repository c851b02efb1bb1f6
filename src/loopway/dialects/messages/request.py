"""A Messages request. https://docs.anthropic.com/en/api/messages"""

from __future__ import annotations

from typing import Any

import msgspec

from loopway.dialects.request import Request
from loopway.engine.answers import Answers


class _Named(msgspec.Struct):
    name: str | None = None


_NAMES = msgspec.json.Decoder(list[_Named])


class MessagesRequest(Request):
    """A request in the shape of Anthropic's Messages."""

    __slots__ = ()

    @property
    def thread(self) -> bool:
        """Whether the provider holds the history of this request."""
        return "thread" in self._members and self._members.get("thread") is not None

    def _read_tool_names(self) -> frozenset[str]:
        raw = self._members.raw("tools")
        if raw is None:
            return frozenset()
        try:
            return frozenset(tool.name for tool in _NAMES.decode(raw) if tool.name)
        except msgspec.MsgspecError:
            return frozenset()

    def _turns(self, answers: Answers) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        for answer in answers.results:
            result: dict[str, Any] = {"type": "tool_result", "tool_use_id": answer.call.id, "content": answer.content}
            if answer.error:
                result["is_error"] = True
            results.append(result)
        return [
            {"role": "assistant", "content": answers.reply.value()["content"]},
            {"role": "user", "content": results},
        ]

    def _loosen(self, changed: dict[str, Any], removed: list[str]) -> None:
        choice = self._members.get("tool_choice")
        if not isinstance(choice, dict) or choice.get("type") not in ("tool", "any"):
            return
        if "disable_parallel_tool_use" in choice:
            changed["tool_choice"] = {
                "type": "auto",
                "disable_parallel_tool_use": choice["disable_parallel_tool_use"],
            }
        else:
            removed.append("tool_choice")

    def _choice_none(self) -> Any:
        return {"type": "none"}
