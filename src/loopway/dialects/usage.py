"""Sums of usage objects. The rule is CONTRACT section 6.6: each field apart, cache fields and input tokens too.

This file must not know the fields of any dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def added(total: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """Two usage objects as one, recursively; neither is changed.

    Numbers add up, nested objects add member by member, lists are joined, null counts as absent. Of other values
    (text, booleans, two different kinds) the later one wins.
    """
    made = dict(total)
    for name, value in one.items():
        made[name] = _sum(made[name], value) if name in made else value
    return made


def _sum(earlier: Any, later: Any) -> Any:
    if later is None:
        return earlier
    if _is_number(earlier) and _is_number(later):
        return earlier + later
    if isinstance(earlier, Mapping) and isinstance(later, Mapping):
        return added(earlier, later)
    if isinstance(earlier, list) and isinstance(later, list):
        return [*earlier, *later]
    return later


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
