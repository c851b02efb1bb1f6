"""A reply as hooks read it: attributes and mapping at once, at every level.

This file must not know any dialect.
"""

from __future__ import annotations

from typing import Any, Self

_NONE_IF_ABSENT = frozenset({"tool_calls"})
"""Members that hooks test with `or []`, as the SDKs' models let them."""


class View(dict[str, Any]):
    """A `dict` whose members read as attributes, too. A member that is not there is an `AttributeError`.

    A member whose name is a method of `dict` (`items`, `keys`, …) is read as `view["items"]`. As in the SDKs' models,
    `tool_calls` of a message without any is None.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            if name in _NONE_IF_ABSENT:
                return None
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(name) from None

    def model_dump(self, *, exclude_none: bool = False, **_options: Any) -> dict[str, Any]:
        """Plain data, as the SDKs' models give it; `exclude_none` leaves out members that are null, at every level."""
        data: dict[str, Any] = plain(self)
        return _without_none(data) if exclude_none else data

    def copy(self) -> Self:
        """A shallow copy that is a view as well."""
        return type(self)(self)


DEEPEST = 200
"""Levels of objects and lists that hooks are shown. What they do with them (copy, dump) takes some frames a level."""


class TooDeep(ValueError):
    """What hooks were to see has more than `DEEPEST` levels."""

    def __init__(self) -> None:
        super().__init__(f"it is nested more than {DEEPEST} levels deep, which no hook is shown")


def view(value: Any, levels: int = DEEPEST) -> Any:
    """Plain data as views. Takes the data over: dicts are rebuilt, lists are changed in place. Raises `TooDeep`."""
    if isinstance(value, dict):
        if not levels:
            raise TooDeep
        return View((name, view(item, levels - 1)) for name, item in value.items())
    if isinstance(value, list):
        if not levels:
            raise TooDeep
        for number, item in enumerate(value):
            if isinstance(item, (dict, list)):
                value[number] = view(item, levels - 1)
    return value


def plain(value: Any) -> Any:
    """Views as plain data."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value


def fresh(value: Any) -> Any:
    """A copy of all containers; what is no container is shared."""
    if type(value) is dict:
        return {name: fresh(item) for name, item in value.items()}
    if type(value) is list:
        return [fresh(item) for item in value]
    if type(value) is tuple:
        return tuple(fresh(item) for item in value)
    if type(value) is set:
        return set(value)
    if isinstance(value, View):
        return View((name, fresh(item)) for name, item in value.items())
    return value
