"""Plain data to Structs; each bad item is told, and hides no other.

This file must not know any key by name, nor what settings mean beside each other.
"""

from __future__ import annotations

import difflib
import json
import math
import types
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from loopway.errors import Problem
from loopway.settings.shape import HookSetting, Secret, Settings
from loopway.settings.source import REFUSED, EnvText, join

_LONGEST_SHOWN = 60
_NUMBERS: Final = (int, float, bool)


class _Kind(msgspec.Struct, frozen=True):
    """A field's type, taken apart."""

    type: Any
    nullable: bool = False
    ge: float | None = None
    le: float | None = None
    gt: float | None = None
    unit: str = ""
    hidden: bool = False

    @property
    def struct(self) -> type[msgspec.Struct] | None:
        """The Struct, if it is one."""
        return self.type if isinstance(self.type, type) and issubclass(self.type, msgspec.Struct) else None

    @property
    def origin(self) -> Any:
        """`list`, `dict`, `Literal`, or None."""
        return get_origin(self.type)

    @property
    def container(self) -> bool:
        """Whether an empty one is a good value, so that null can mean it."""
        return self.origin in (list, dict) or (self.struct is not None and self.type is not HookSetting)


def kind_of(annotation: Any) -> _Kind:
    """Take a field's annotation apart: null allowed, bounds, unit."""
    nullable = False
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        nullable, annotation = True, members[0]
    if get_origin(annotation) is not Annotated:
        return _Kind(annotation, nullable, hidden=annotation is Secret)
    plain, *marks = get_args(annotation)
    made = _Kind(plain, nullable)
    for mark in marks:
        extra = mark.extra or {}
        made = _Kind(
            plain,
            nullable,
            ge=mark.ge,
            le=mark.le,
            gt=mark.gt,
            unit=extra.get("unit", ""),
            hidden=extra.get("hidden", False),
        )
    return made


def wanted(annotation: Any) -> str:
    """What to write for a type, as the end of a sentence."""
    kind = kind_of(annotation)
    return _wanted_kind(kind) + (", or null" if kind.nullable else "")


def _wanted_kind(kind: _Kind) -> str:
    if kind.type is HookSetting:
        return "the dotted path of an instance, or one built-in's name with its settings as a mapping"
    if kind.struct is not None:
        names = ", ".join(field.encode_name for field in msgspec.structs.fields(kind.struct))
        return f"a mapping with keys of these: {names}"
    if kind.origin is list:
        (item,) = get_args(kind.type)
        return f"a list, each item {wanted(item)}"
    if kind.origin is dict:
        return f"a mapping from names, each to {wanted(get_args(kind.type)[1])}"
    if kind.origin is Literal:
        return " or ".join(get_args(kind.type))
    if kind.type is bool:
        return "true or false"
    if kind.type in _NUMBERS:
        return _wanted_number(kind)
    return "a text that is not empty"


def _wanted_number(kind: _Kind) -> str:
    noun = "a whole number" if kind.type is int else "a number"
    if kind.unit:
        noun += f" of {kind.unit}"
    if kind.gt is not None:
        return f"{noun}, above {kind.gt:g}"
    if kind.le is not None:
        return f"{noun} from {kind.ge:g} to {kind.le:g}"
    return f"{noun}, at least {kind.ge:g}"


def found(value: object, *, hidden: bool = False) -> str:  # noqa: PLR0911 - one line per kind
    """What stands there, for a message. Never what came from the environment, nor what may be a secret."""
    if value is None:
        return "null"
    if isinstance(value, EnvText):
        return f"the value of {value.source}" + ("" if value else ", which is empty")
    if value == "" and isinstance(value, str):
        return "an empty text"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        noun = "a text" if isinstance(value, str) else "a whole number" if isinstance(value, int) else "a number"
        if hidden:
            return noun
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else _digits(value)
        return shown if len(shown) <= _LONGEST_SHOWN else f"{noun} that begins with {shown[:_LONGEST_SHOWN]}"
    return f"a {type(value).__name__}"


def _digits(value: float) -> str:
    try:
        return str(value)
    except ValueError:  # the interpreter writes no more than some thousand digits
        return "a very long number"


class Decoder:
    """Walks Structs, lists and mappings; one bad item does not hide the others.

    A Struct is always made; `REFUSED` stands in it where its data is bad. msgspec does not look at what
    a constructor gets, so such a Struct can be made, and the checks can read what is good in it.
    """

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems

    def decode(self, data: object) -> Any:
        """The settings, as far as they are good."""
        return self._struct(data, Settings, "")

    def _say(self, path: str, text: str) -> Any:
        self._problems.append(Problem(path, text))
        return REFUSED

    def _value(self, raw: object, annotation: Any, path: str) -> Any:
        kind = kind_of(annotation)
        if raw is REFUSED:
            return REFUSED
        if raw is None and kind.nullable:
            return None
        if kind.type is HookSetting:
            return self._hook(raw, path)
        if kind.struct is not None:
            return self._struct(raw, kind.struct, path)
        if kind.origin is list:
            return self._list(raw, annotation, path)
        if kind.origin is dict:
            return self._dict(raw, annotation, path)
        if kind.type is Secret:
            return self._secret(raw, path)
        return self._leaf(raw, annotation, kind, path)

    def _struct(self, raw: object, kind: type[msgspec.Struct], path: str) -> Any:
        if raw is None:
            raw = {}
        if not isinstance(raw, Mapping):
            return self._say(path, f"is {found(raw, hidden=True)}; write {wanted(kind)}")
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        for key in raw:
            if key not in fields:
                self._unknown(key, list(fields), path)
        values: dict[str, Any] = {}
        for name, field in fields.items():
            spot = join(path, name)
            if field.required and name not in raw:
                values[field.name] = self._say(spot, f"is missing; write {wanted(field.type)}")
            elif name in raw and (field.required or raw[name] is not None or not kind_of(field.type).container):
                values[field.name] = self._value(raw[name], field.type, spot)
        return kind(**values)

    def _unknown(self, key: object, known: list[str], path: str) -> None:
        if not isinstance(key, str):
            self._say(join(path, key), f"a key is {found(key)}, not a text; put it in quotes")
            return
        close = difflib.get_close_matches(key, known, 1)
        advice = f"did you mean {close[0]}?" if close else f"the keys here are: {', '.join(known)}"
        self._say(join(path, key), f"there is no such key (unknown); {advice}")

    def _list(self, raw: object, annotation: Any, path: str) -> Any:
        if not isinstance(raw, (list, tuple)):
            return self._say(path, f"is {found(raw, hidden=True)}; write {wanted(annotation)}")
        (item,) = get_args(kind_of(annotation).type)
        return [self._value(one, item, f"{path}[{index}]") for index, one in enumerate(raw)]

    def _dict(self, raw: object, annotation: Any, path: str) -> Any:
        if not isinstance(raw, Mapping):
            return self._say(path, f"is {found(raw, hidden=True)}; write {wanted(annotation)}")
        _, item = get_args(kind_of(annotation).type)
        made = {}
        for name, one in raw.items():
            spot = join(path, name)
            if not isinstance(name, str):
                self._say(spot, f"a name is {found(name)}, not a text; put it in quotes")
            elif not name or _unprintable(name):
                self._say(spot, "a name is empty or has spaces around it or control characters; write a plain one")
            made[str(name)] = self._value(one, item, spot)
        return made

    def _secret(self, raw: object, path: str) -> Any:
        if not isinstance(raw, str):
            quotes = "" if isinstance(raw, (Mapping, list)) or raw is None else " (put it in quotes)"
            return self._say(path, f"is {found(raw, hidden=True)}; write a text{quotes}, best as ${{NAME}}")
        if not raw:
            return self._say(path, f"is {found(raw)}; write a text that is not empty, best as ${{NAME}}")
        if raw != raw.strip():
            return self._say(path, "has a space or a line break at its beginning or end; take it away")
        if not raw.isascii() or not raw.isprintable():
            return self._say(path, "has a character that no HTTP header can carry; write printable ASCII")
        return Secret(str(raw))

    def _leaf(self, raw: object, annotation: Any, kind: _Kind, path: str) -> Any:
        lenient = kind.type in _NUMBERS and isinstance(raw, EnvText) and raw.whole
        try:
            made = msgspec.convert(raw.strip() if lenient else raw, annotation, strict=not lenient)  # type: ignore[attr-defined]
        except msgspec.ValidationError:
            return self._say(path, self._unfit(raw, annotation, kind))
        if isinstance(made, float) and not math.isfinite(made):
            return self._say(path, self._unfit(raw, annotation, kind))
        if isinstance(made, str):
            if _unprintable(made):
                return self._say(path, "has spaces around it or control characters in it; write it without")
            return str(made)
        return made

    def _unfit(self, raw: object, annotation: Any, kind: _Kind) -> str:
        text = f"is {found(raw, hidden=kind.hidden)}; write {wanted(annotation)}"
        if kind.origin is Literal and isinstance(raw, str) and not isinstance(raw, EnvText):
            close = difflib.get_close_matches(raw, get_args(kind.type), 1)
            return f"{text} (did you mean {close[0]}?)" if close else text
        if kind.type is str and isinstance(raw, (bool, int, float)):
            return f"{text} (put it in quotes)"
        return text

    def _hook(self, raw: object, path: str) -> Any:
        """The shape only; whether there is such a hook is for who imports it to say."""
        advice = "write the dotted path of an instance, or one built-in's name with its settings"
        if isinstance(raw, str) and raw:
            return HookSetting(path=str(raw))
        if not isinstance(raw, Mapping):
            return self._say(path, f"is {found(raw)}; {advice}")
        if len(raw) != 1:
            listed = ", ".join(str(key) for key in raw) or "none"
            return self._say(
                path,
                f"is a mapping with {len(raw)} keys ({listed}), not with one; {advice}",
            )
        ((name, settings),) = raw.items()
        if not isinstance(name, str) or not name:
            return self._say(path, f"has {found(name)} as a built-in's name; {advice}")
        spot = join(path, name)
        if settings is REFUSED:
            return REFUSED
        if settings is not None and not isinstance(settings, Mapping):
            return self._say(spot, f"is {found(settings, hidden=True)}; write the built-in's settings as a mapping")
        settings = dict(settings or {})
        for key in settings:
            if not isinstance(key, str):
                return self._say(join(spot, key), f"a key is {found(key)}, not a text; put it in quotes")
        return HookSetting(builtin=name, settings=settings)


def _unprintable(text: str) -> bool:
    return text != text.strip() or any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in text)
