"""Reads the settings of a built-in hook into its Struct, and tells every problem with its key.

This file must not know any built-in. A field's `Meta(description=…)` says what to write; `extra={"hidden": True}` says
that no message may show what stands there.
"""

from __future__ import annotations

import difflib
import json
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from loopway.errors import Problem

S = TypeVar("S", bound=msgspec.Struct)

_LONGEST_SHOWN = 60


class WrongSettings(ValueError):
    """Settings of a built-in that cannot work. Paths of problems begin at the built-in."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{problem.path}: {problem.text}" for problem in problems))


def read_settings(kind: type[S], given: Mapping[Any, Any]) -> S:
    """Settings as their Struct; what is left out has its default.

    Raises:
        WrongSettings: Every unknown key, missing key and wrong value at once.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    hints = typing.get_type_hints(kind, include_extras=True)
    problems: list[Problem] = []
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name not in fields:
            close = difflib.get_close_matches(str(name), fields, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(fields)}"
            problems.append(Problem(str(name), f"there is no such key; {hint}"))
            continue
        hint = hints[fields[name].name]
        try:
            made[fields[name].name] = _converted(value, hint)
        except (msgspec.ValidationError, TypeError):
            problems.append(Problem(str(name), f"it is {_shown(value, hint)}; write {_wanted(hint)}"))
    problems += [
        Problem(name, f"it is missing; write {_wanted(hints[field.name])}")
        for name, field in fields.items()
        if field.required and name not in given
    ]
    if problems:
        raise WrongSettings(*problems)
    return kind(**made)


def _converted(value: Any, hint: Any) -> Any:
    """A value as its type. A text that is wholly an environment variable's may be a number or a boolean."""
    lax = bool(getattr(value, "whole", False))
    if isinstance(value, str):
        value = str(value)
    elif isinstance(value, list):
        value = [str(item) if isinstance(item, str) else item for item in value]
    try:
        return msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError:
        if not lax:
            raise
        return msgspec.convert(value, hint, strict=False)


def _marks(hint: Any) -> list[msgspec.Meta]:
    """The marks of a type, also of the members of a union."""
    found = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, msgspec.Meta)]
    for member in typing.get_args(hint):
        if not isinstance(member, msgspec.Meta):
            found += _marks(member)
    return found


def _wanted(hint: Any) -> str:
    return next((mark.description for mark in _marks(hint) if mark.description), "another value")


def _shown(value: Any, hint: Any) -> str:
    """What stands there, for a message; never a secret, nor what came from the environment."""
    source = getattr(value, "source", None)
    if isinstance(source, str):
        return f"the value of {source}"
    if any((mark.extra or {}).get("hidden") for mark in _marks(hint)):
        return f"a {type(value).__name__}"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
