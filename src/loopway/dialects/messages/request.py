"""A Messages request, as https://docs.anthropic.com/en/api/messages describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from loopway.dialects.request import Request
from loopway.engine.answers import Answer, Answers, Kept
from loopway.engine.reply import Reply


class _Named(msgspec.Struct):
    name: str | None = None
    type: str | None = None


_NAMES = msgspec.json.Decoder(list[_Named])
_RUN_BY_PROVIDER = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_")
"""How the types of tools begin that Anthropic runs itself; a model never calls these as `tool_use`."""


class MessagesRequest(Request):
    """A request in the shape of Anthropic's Messages."""

    __slots__ = ()

    @property
    def thread(self) -> bool:
        """Whether the provider holds the history of this request."""
        return "thread" in self._members and self._members.get("thread") is not None

    @property
    def client_tools(self) -> frozenset[str]:
        """The names of the tools that the client answers itself; what Anthropic runs is none of them."""
        return frozenset(
            tool.name for tool in self._named() if tool.name and not (tool.type or "").startswith(_RUN_BY_PROVIDER)
        )

    def _read_tool_names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self._named() if tool.name)

    def _named(self) -> list[_Named]:
        raw = self._members.raw("tools")
        try:
            return _NAMES.decode(raw) if raw is not None else []
        except msgspec.MsgspecError:
            return []

    def assistant_turn(self, reply: Reply) -> dict[str, Any]:
        """A reply as the turn of a history, exactly."""
        return {"role": "assistant", "content": reply.value()["content"]}

    def _results(self, answers: Sequence[Answer]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [_result(answer) for answer in answers]}]

    def _tool(self, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": name, "description": description, "input_schema": schema}

    def _calls_of(self, message: dict[str, Any]) -> list[tuple[str, str, Any]]:
        content = message.get("content")
        if message.get("role") != "assistant" or not isinstance(content, list):
            return []
        found = [block for block in content if _is(block, "tool_use")]
        return [(_text(block.get("id")), _text(block.get("name")), block.get("input")) for block in found]

    def _restored(self, messages: list[dict[str, Any]], kept: Kept) -> list[dict[str, Any]]:
        wanted = set(kept.client_ids)
        for place, message in enumerate(messages[:-1]):
            answer = messages[place + 1]
            content = answer.get("content")
            if not wanted & set(self._call_ids(message)) or not isinstance(content, list):
                continue
            own = {_text(block.get("tool_use_id")): block for block in content if _is(block, "tool_result")}
            if not wanted & set(own):
                continue
            ours = {one.call.id: _result(one) for one in kept.answers}
            calls = self._call_ids(kept.turns[-1])
            results = [{**ours, **own}[id_] for id_ in calls if id_ in ours or id_ in own]
            rest = [
                block for block in content if not _is(block, "tool_result") or block.get("tool_use_id") not in calls
            ]
            whole = {**answer, "content": [*results, *rest]}
            before = self._before(messages, place, kept.turns[:-1])
            return [*messages[:before], *kept.turns, whole, *messages[place + 2 :]]
        return messages

    def _before(self, messages: list[dict[str, Any]], place: int, turns: list[dict[str, Any]]) -> int:
        """Where the loop began whose turns are kept: a client that saw its searches has made turns of them, too."""
        ids = {id_ for turn in turns for id_ in self._call_ids(turn)}
        while place >= 2:  # noqa: PLR2004 - a call and its result
            made, results = messages[place - 2 : place]
            called = set(self._call_ids(made))
            if not called or not called <= ids or results.get("role") != "user":
                break
            place -= 2
        return place

    def _completed(self, messages: list[dict[str, Any]], place: int, answers: Answers) -> list[dict[str, Any]] | None:
        if place + 1 >= len(messages) or not isinstance(messages[place + 1].get("content"), list):
            return None
        turn, answer = messages[place], messages[place + 1]
        order = [call.id for call in answers.reply.calls]
        made = {block["id"]: block for block in turn["content"] if _is(block, "tool_use")}
        given = {_text(block.get("tool_use_id")): block for block in answer["content"] if _is(block, "tool_result")}
        whole = {block["id"]: block for block in answers.reply.value()["content"] if _is(block, "tool_use")}
        for one in answers.results:
            made.setdefault(one.call.id, whole[one.call.id])
            given.setdefault(one.call.id, _result(one))
        calls = [made[id_] for id_ in order if id_ in made]
        results = [given[id_] for id_ in order if id_ in given]
        others = [block for block in turn["content"] if not _is(block, "tool_use") or block["id"] not in order]
        rest = [b for b in answer["content"] if not _is(b, "tool_result") or b.get("tool_use_id") not in order]
        return [
            *messages[:place],
            {**turn, "content": [*others, *calls]},
            {**answer, "content": [*results, *rest]},
            *messages[place + 2 :],
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


def _result(answer: Answer) -> dict[str, Any]:
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": answer.call.id, "content": answer.content}
    if answer.error:
        result["is_error"] = True
    return result


def _is(block: Any, kind: str) -> bool:
    return isinstance(block, dict) and block.get("type") == kind


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
