"""What makes two tool calls the same.

Names and canonical arguments do; ids, key order, thinking and signatures do not. This file must not know who asks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from loopway.engine.reply import ToolCall

_DEEPEST = 40
_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=lambda odd: f"<{type(odd).__name__}>"
)
_IDS = frozenset({"id", "tool_use_id", "call_id", "tool_call_id", "index", "signature", "cache_control"})


def fingerprint(context: object, calls: Iterable[ToolCall]) -> str:
    """The fingerprint of what a hook claimed: 64 hex digits.

    Made of the tool calls in the gate's context; of the reply's calls, if the context names none; of the context
    itself, if there are none at all.
    """
    named = list(_calls_in(context, 0))
    if named and any(name for name, _ in named):
        return _digest(["calls", *sorted(_canonical(pair) for pair in named)])
    if own := [(call.name, call.arguments if call.valid else call.raw) for call in calls]:
        if named:  # a context of bare ids and inputs: which tool it was, the reply knows
            return _digest(["inputs", *sorted(_canonical(pair) for pair in named), *sorted({n for n, _ in own})])
        return _digest(["calls", *sorted(_canonical(pair) for pair in own)])
    return _digest(["context", _canonical(_without_ids(context, 0))])


def _calls_in(value: object, depth: int) -> Iterable[tuple[str, Any]]:
    """The tool calls inside a gate's context, in either dialect's shape, as (name, arguments)."""
    if depth > _DEEPEST:
        return
    if isinstance(value, ToolCall):
        yield value.name, value.arguments if value.valid else value.raw
    elif isinstance(value, Mapping):
        call = _as_call(value)
        if call is not None:
            yield call
            return
        for item in value.values():
            yield from _calls_in(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _calls_in(item, depth + 1)


def _as_call(value: Mapping[Any, Any]) -> tuple[str, Any] | None:
    function = value.get("function")
    if isinstance(function, Mapping) and isinstance(function.get("name"), str):
        return function["name"], _parsed(function.get("arguments"))
    custom = value.get("custom")
    if isinstance(custom, Mapping) and isinstance(custom.get("name"), str):
        return custom["name"], custom.get("input")
    name = value.get("name")
    for member in ("input", "arguments"):
        if member in value and (isinstance(name, str) or "id" in value or value.get("type") == "tool_use"):
            given = value[member]
            return name if isinstance(name, str) else "", _parsed(given) if member == "arguments" else given
    return None


def _parsed(arguments: Any) -> Any:
    """Arguments as data: Chat Completions has them as JSON text, and an empty text means none."""
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _without_ids(value: object, depth: int) -> Any:
    if depth > _DEEPEST:
        return None
    if isinstance(value, Mapping):
        return {str(k): _without_ids(v, depth + 1) for k, v in value.items() if k not in _IDS}
    if isinstance(value, (list, tuple)):
        return [_without_ids(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_canonical(_without_ids(item, depth + 1)) for item in value)
    return value


def _canonical(value: Any) -> str:
    """JSON with sorted keys; 1 and 1.0 are the same number; what JSON has no word for goes by its type."""
    return _CANONICAL.encode(_numbers(value, 0))


def _numbers(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return repr(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(k): _numbers(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_numbers(item, depth + 1) for item in value]
    return value


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\x00".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
