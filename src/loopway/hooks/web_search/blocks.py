"""The blocks of Anthropic's own search: made for clients that declared it, and read when they come back.

This file must not know how a search is made. An upstream knows none of these blocks: in a history they become the
tool call and the result that they were.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from loopway.hooks.web_search.hits import ErrorCode, Hit, for_client, for_model, from_client, is_ours

NAME = "web_search"
"""The name that these blocks have, whatever our tool is called."""

_PREFIX = "srvtoolu_lw_"
_THEIRS = "srvtoolu_"
_ID = re.compile(r"[a-zA-Z0-9_-]{1,100}")
_CITATION = "web_search_result_location"


# --- for clients ---------------------------------------------------------------


def shown(call_id: str, query: object, hits: Sequence[Hit] | ErrorCode) -> tuple[dict[str, Any], ...]:
    """A search as the client sees it: the call, and its results or the code of its failure."""
    id_ = _PREFIX + (call_id if _ID.fullmatch(call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:24])
    content: Any = (
        {"type": "web_search_tool_result_error", "error_code": hits} if isinstance(hits, str) else for_client(hits)
    )
    asked = {"query": query} if isinstance(query, str) else {}
    return (
        {"type": "server_tool_use", "id": id_, "name": NAME, "input": asked},
        {"type": "web_search_tool_result", "tool_use_id": id_, "content": content},
    )


# --- from clients --------------------------------------------------------------


def taken_back(messages: Any, tool_name: str, *, every: bool) -> Any:
    """A history in which searches are calls of a tool with their results; the same list if there are none.

    Args:
        messages: Those of a Messages request.
        tool_name: What the tool is called.
        every: Whether searches that Anthropic's own made are changed as well.
    """
    if not isinstance(messages, list) or not any(_has_search(one) for one in messages):
        return messages
    made: list[Any] = []
    for message in messages:
        if not _has_search(message):
            _append(made, message)
            continue
        for turn in _turns(message, tool_name, every=every):
            _append(made, turn)
    return made


def _has_search(message: object) -> bool:
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return False
    content = message.get("content")
    return isinstance(content, list) and any(_is_call(one) or _is(one, "web_search_tool_result") for one in content)


def _is(block: object, kind: str) -> bool:
    return isinstance(block, Mapping) and block.get("type") == kind


def _is_call(block: object) -> bool:
    return _is(block, "server_tool_use") and isinstance(block, Mapping) and block.get("name") == NAME


def _append(made: list[Any], message: Any) -> None:
    """Add a turn; results go into the user's turn behind them, in front of what it says."""
    last = made[-1] if made else None
    if isinstance(last, _Results) and isinstance(message, Mapping) and message.get("role") == "user":
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if isinstance(content, list):
            made[-1] = {**message, "content": [*last["content"], *content]}
            return
    made.append(message)


class _Results(dict[str, Any]):
    """A user's turn of results alone."""


def _turns(message: Mapping[str, Any], tool_name: str, *, every: bool) -> list[dict[str, Any]]:
    """A turn with searches as the turns that it was made of: up to the calls, the results, what came behind."""
    content: list[Any] = message["content"]
    results = {one.get("tool_use_id"): one for one in content if _is(one, "web_search_tool_result")}
    meant = {id_ for id_, one in results.items() if every or _is_own(id_) or is_ours(one.get("content"))}
    meant |= {one.get("id") for one in content if _is_call(one) and (every or _is_own(one.get("id")))}
    turns: list[dict[str, Any]] = []
    own: list[Any] = []
    answers: list[Any] = []

    def cut() -> None:
        if answers:
            turns.append({**message, "content": list(own)})
            turns.append(_Results({"role": "user", "content": list(answers)}))
            own.clear()
            answers.clear()

    for block in content:
        if _is_call(block) and block.get("id") in meant:
            answer = results.get(block.get("id"))
            if answer is not None:  # else its result is lost, and it goes, too
                own.append(_call(block, tool_name))
                answers.append(_result(answer))
        elif not _is(block, "web_search_tool_result") or block.get("tool_use_id") not in meant:
            cut()
            own.append(_uncited(block) if every else block)
    cut()
    if own:
        turns.append({**message, "content": own})
    return turns


def _is_own(id_: object) -> bool:
    return isinstance(id_, str) and id_.startswith(_PREFIX)


def _call(block: Mapping[str, Any], tool_name: str) -> dict[str, Any]:
    given = block.get("input")
    asked = given if isinstance(given, dict) else {}
    made = {"type": "tool_use", "id": _id(block.get("id")), "name": tool_name, "input": asked}
    return _marked(made, block)


def _result(block: Mapping[str, Any]) -> dict[str, Any]:
    content = block.get("content")
    made: dict[str, Any] = {"type": "tool_result", "tool_use_id": _id(block.get("tool_use_id"))}
    if isinstance(content, list):
        made["content"] = for_model(from_client(content))
    else:
        code = content.get("error_code") if isinstance(content, Mapping) else None
        made |= {"content": f"The search failed: {code if isinstance(code, str) else 'unavailable'}", "is_error": True}
    return _marked(made, block)


def _marked(made: dict[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """With the cache mark of the block that it is made of."""
    if block.get("cache_control") is not None:
        made["cache_control"] = block["cache_control"]
    return made


def _id(value: object) -> str:
    """The id that the call had, or one made of a foreign id."""
    text = value if isinstance(value, str) else ""
    for prefix, before in ((_PREFIX, ""), (_THEIRS, "toolu_")):
        rest = text.removeprefix(prefix)
        if text.startswith(prefix) and _ID.fullmatch(rest):
            return before + rest
    return "toolu_" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:24]


def _uncited(block: Any) -> Any:
    """A text without citations of searches: what they point to is not there any more."""
    if not _is(block, "text") or not isinstance(block.get("citations"), list):
        return block
    kept = [one for one in block["citations"] if not _is(one, _CITATION)]
    rest = {name: value for name, value in block.items() if name != "citations"}
    return {**rest, "citations": kept} if kept else rest
