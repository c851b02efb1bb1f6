"""A Chat Completions request.

This file must not know what a reply of it looks like on the wire. https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from loopway.dialects.request import Request
from loopway.engine.answers import Answer, Answers, Kept
from loopway.engine.reply import Reply


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

    def offering(self, tools: Sequence[tuple[str, str, Mapping[str, Any]]]) -> Self:
        """The request with more tools behind its own; not where it uses the older `functions`, which bar `tools`."""
        return self if "functions" in self._members else super().offering(tools)

    def assistant_turn(self, reply: Reply) -> dict[str, Any]:
        """A reply as the turn of a history, exactly."""
        message = reply.value()["choices"][0]["message"]
        # What a reply has and a request may not: empty, the API refuses these on the way back in.
        turn = {name: value for name, value in message.items() if name not in ("annotations", "audio") or value}
        if isinstance(audio := turn.get("audio"), dict):
            turn["audio"] = {"id": audio.get("id")}
        return turn

    def _turns(self, answers: Answers) -> list[dict[str, Any]]:
        """The assistant turn and its results. Calls without an id get one, or no result could name them."""
        turn = self.assistant_turn(answers.reply)
        results = self._results(answers.results)
        made = turn.get("tool_calls")
        if isinstance(made, list) and len(made) == len(results):
            for number, (one, result) in enumerate(zip(made, results, strict=True)):
                if not one.get("id"):
                    one["id"] = f"call_{number}"
                    result.clear()
                    given = answers.results[number]
                    result.update(role="tool", tool_call_id=one["id"], content=_text_of(given))
        return [turn, *results]

    def _results(self, answers: Sequence[Answer]) -> list[dict[str, Any]]:
        return [_result(answer) for answer in answers]

    def _tool(self, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}

    def _calls_of(self, message: dict[str, Any]) -> list[tuple[str, str, Any]]:
        calls = message.get("tool_calls")
        if message.get("role") != "assistant" or not isinstance(calls, list):
            return []
        found: list[tuple[str, str, Any]] = []
        for call in calls:
            if isinstance(call, dict) and isinstance(call.get("id"), str):
                function = call.get("function") or call.get("custom")
                if isinstance(function, dict):
                    given = function.get("arguments", function.get("input"))
                    found.append((call["id"], str(function.get("name", "")), _read(given)))
        return found

    def _restored(self, messages: list[dict[str, Any]], kept: Kept) -> list[dict[str, Any]]:
        wanted = set(kept.client_ids)
        for place, message in enumerate(messages):
            if not wanted & set(self._call_ids(message)):
                continue
            own, behind = _results_behind(messages, place)
            if not wanted & set(own):
                continue
            given = {**{one.call.id: _result(one) for one in kept.answers}, **own}
            results = [given[id_] for id_ in self._call_ids(kept.turns[-1]) if id_ in given]
            return [*messages[:place], *kept.turns, *results, *messages[behind:]]
        return messages

    def _completed(self, messages: list[dict[str, Any]], place: int, answers: Answers) -> list[dict[str, Any]] | None:
        given, behind = _results_behind(messages, place)
        if not given:
            return None
        turn = messages[place]
        made = {call["id"]: call for call in turn["tool_calls"]}
        whole = {call["id"]: call for call in self.assistant_turn(answers.reply)["tool_calls"]}
        for one in answers.results:
            made.setdefault(one.call.id, whole[one.call.id])
            given.setdefault(one.call.id, _result(one))
        order = [call.id for call in answers.reply.calls]
        calls = [made[id_] for id_ in order if id_ in made]
        results = [given[id_] for id_ in order if id_ in given]
        return [*messages[:place], {**turn, "tool_calls": calls}, *results, *messages[behind:]]

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


def _result(answer: Answer) -> dict[str, Any]:
    if not answer.call.id:  # the older function_call has none
        return {"role": "function", "name": answer.call.name, "content": _text_of(answer)}
    return {"role": "tool", "tool_call_id": answer.call.id, "content": _text_of(answer)}


def _text_of(answer: Answer) -> str:
    """Content blocks as the text that this dialect's tool messages can carry. It has no error mark; a word says it."""
    mark = "Error: " if answer.error else ""
    if isinstance(answer.content, str):
        return mark + answer.content
    parts = [
        block["text"] if isinstance(block.get("text"), str) else f"[{block.get('type', 'content')}, not shown]"
        for block in answer.content
    ]
    return mark + "\n".join(parts)


def _results_behind(messages: list[dict[str, Any]], place: int) -> tuple[dict[str, dict[str, Any]], int]:
    """The tool messages right behind a turn by the id that they answer, and where they end."""
    own: dict[str, dict[str, Any]] = {}
    end = place + 1
    while end < len(messages) and messages[end].get("role") == "tool":
        own[str(messages[end].get("tool_call_id"))] = messages[end]
        end += 1
    return own, end


def _read(arguments: Any) -> Any:
    """Arguments as data, so that a client may write their JSON in its own way."""
    try:
        return msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    except (msgspec.MsgspecError, RecursionError):
        return arguments
