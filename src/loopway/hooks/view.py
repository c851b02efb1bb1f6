"""A reply as hooks read it: attributes and mapping at once, at every level.

This file must not know any dialect.
"""

from __future__ import annotations

from typing import Any, Self


class View(dict[str, Any]):
    """A `dict` whose members read as attributes, too. A member that is not there is an `AttributeError`.

    A member whose name is a method of `dict` (`items`, `keys`, …) is read as `view["items"]`.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def model_dump(self, **_options: Any) -> dict[str, Any]:
        """Plain data, as the SDKs' models give it."""
        return plain(self)  # type: ignore[no-any-return]

    def copy(self) -> Self:
        """A shallow copy that is a view as well."""
        return type(self)(self)


def view(value: Any) -> Any:
    """Plain data as views. Takes the data over: dicts are rebuilt, lists are changed in place."""
    if isinstance(value, dict):
        return View((name, view(item)) for name, item in value.items())
    if isinstance(value, list):
        for number, item in enumerate(value):
            if isinstance(item, (dict, list)):
                value[number] = view(item)
    return value


def plain(value: Any) -> Any:
    """Views as plain data."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def fresh(value: Any) -> Any:
    """A copy of all containers; what is no container is shared."""
    if type(value) is dict:
        return {name: fresh(item) for name, item in value.items()}
    if type(value) is list:
        return [fresh(item) for item in value]
    if type(value) is set:
        return set(value)
    if isinstance(value, View):
        return View((name, fresh(item)) for name, item in value.items())
    return value
