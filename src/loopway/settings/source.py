"""The text of a file as plain data, with the environment read into it.

This file must not know which keys there are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import yaml

from loopway.errors import ConfigError, Problem

if TYPE_CHECKING:
    from pathlib import Path


def file_text(path: Path) -> str:
    """The text of a file. Raises `ConfigError`."""
    source = str(path)
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        text = "there is no such file; write it, or name another one with --config or LOOPWAY_CONFIG"
    except IsADirectoryError:
        text = "this is a folder; name the file in it"
    except UnicodeDecodeError as wrong:
        text = f"the file is not UTF-8 (at byte {wrong.start}); save it as UTF-8"
    except OSError as wrong:
        text = f"the file cannot be read: {wrong.strerror or type(wrong).__name__}"
    except ValueError:
        text = "the file cannot be read: this is no path"
    raise ConfigError(source, [Problem("", text)])


class _Yaml(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, but a date stays the text that it was."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as in the base class
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def yaml_data(text: str, source: str) -> tuple[object, list[Problem]]:
    """The data of a YAML text, and the keys that stand twice in it. Raises `ConfigError`."""
    problems: list[Problem] = []
    try:
        loader = _Yaml(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, problems
            _duplicates(node, "", problems, {}, ())
            return loader.construct_document(node), problems
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        spot = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        said = f"{spot}this is no valid YAML: {wrong.problem or wrong.context}"
    except yaml.reader.ReaderError as wrong:
        line = text.count("\n", 0, wrong.position) + 1
        column = wrong.position - text.rfind("\n", 0, wrong.position)
        said = f"line {line}, column {column}: this is no valid YAML: {wrong.reason}"
    except _EndlessError as wrong:
        said = str(wrong)
    except RecursionError:
        said = "this is no usable YAML: it is nested too deeply"
    except (ValueError, TypeError, KeyError, AttributeError) as wrong:
        # PyYAML's own constructors raise these for a tag, as !!int, whose text does not fit.
        said = f"this is no valid YAML: a tag has a value that does not fit it ({type(wrong).__name__})"
    raise ConfigError(source, [*problems, Problem("", " ".join(said.split()))])


class _EndlessError(ValueError):
    """An alias that holds itself."""


def _duplicates(
    node: yaml.Node, path: str, problems: list[Problem], seen: dict[int, None], above: tuple[int, ...]
) -> None:
    if id(node) in above:
        raise _EndlessError(f"line {node.start_mark.line + 1}: this is no usable YAML: an alias holds itself")
    if id(node) in seen:
        return
    seen[id(node)] = None
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _duplicates(item, f"{path}[{index}]", problems, seen, above)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            named = isinstance(key, yaml.ScalarNode)
            spot = join(path, key.value if named else "?")
            line = key.start_mark.line + 1
            if named and (key.tag, key.value) in lines:
                first = lines[key.tag, key.value]
                told = f"this key is duplicate: it stands in line {first} and in line {line}; keep one of them"
                problems.append(Problem(spot, told))
            elif named:
                lines[key.tag, key.value] = line
            _duplicates(value, spot, problems, seen, above)


class EnvText(str):
    """A text that came from the environment, wholly or in part; no message shows it."""

    __slots__ = ("source", "whole")
    source: str
    """What stood in the file, as ${NAME}."""
    whole: bool
    """Whether nothing else stood there: a number or a boolean may then be read from it."""

    def __new__(cls, text: str, source: str, *, whole: bool) -> EnvText:  # noqa: PYI034 - typing.Self, spelt out
        """Mark a text."""
        made = super().__new__(cls, text)
        made.source = source
        made.whole = whole
        return made


class _Refused:
    """Stands where a problem has been told already; whatever meets it passes over it."""

    def __repr__(self) -> str:
        return "REFUSED"

    def __deepcopy__(self, memo: object) -> _Refused:
        return self


REFUSED: Final[Any] = _Refused()
"""Stands in data or settings where a problem has been told already; nothing more is said of it."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PART = re.compile(r"\$\$\{|\$\{(?P<inside>[^}]*)(?P<close>\}?)")
_WHOLE = re.compile(r"\$\{[^}]*\}")
_OS = "os.environ/"


class Environment:
    """Reads `${NAME}`, `${NAME:-default}` and `os.environ/NAME` in every text of plain data."""

    def __init__(self, environ: Mapping[str, str], problems: list[Problem]) -> None:
        self._environ = environ
        self._problems = problems

    def read(self, value: object, path: str) -> Any:
        """The data with its texts read; `REFUSED` where a variable is missing."""
        if isinstance(value, Mapping):
            return {key: self.read(item, join(path, key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.read(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, str) and not isinstance(value, EnvText):
            return self._text(value, path)
        return value

    def _text(self, text: str, path: str) -> object:
        if text.startswith(_OS):
            found = self._variable(text.removeprefix(_OS), None, text, path)
            return found if found is REFUSED else EnvText(found, text, whole=True)
        if "${" not in text:
            return text
        good = True
        read: list[str] = []
        end = 0
        for part in _PART.finditer(text):
            read.append(text[end : part.start()])
            end = part.end()
            inside = part["inside"]
            if inside is None:
                read.append("${")
                continue
            found = REFUSED
            if not part["close"]:
                self._say(path, "has a ${ without its }; write ${NAME}, or $${ for the two characters themselves")
            elif "${" in inside:
                self._say(path, "has one ${…} inside another, which is not read; give the default as plain text")
            else:
                name, mark, default = inside.partition(":-")
                found = self._variable(name, default if mark else None, "${" + name + "}", path)
            good = good and found is not REFUSED
            read.append("" if found is REFUSED else found)
        if not good:
            return REFUSED
        made = "".join([*read, text[end:]])
        if all(part["inside"] is None for part in _PART.finditer(text)):
            return made
        whole = _WHOLE.fullmatch(text) is not None
        if whole and not made and ":-" in text:
            return None  # ${NAME:-} says that it may be left out
        shown = ", ".join(
            "${" + part["inside"].partition(":-")[0] + "}" for part in _PART.finditer(text) if part["inside"]
        )
        return EnvText(made, shown, whole=whole)

    def _variable(self, name: str, default: str | None, shown: str, path: str) -> Any:
        if not _NAME.fullmatch(name):
            self._say(path, f"{shown!r} names no variable; write ${{NAME}}, ${{NAME:-default}} or os.environ/NAME")
            return REFUSED
        found = self._environ.get(name)
        if not found and default is not None:
            return default
        if found is None:
            self._say(path, f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
            return REFUSED
        return found

    def _say(self, path: str, text: str) -> None:
        self._problems.append(Problem(path, text))


_PLAIN = re.compile(r"[A-Za-z0-9_*](?:[A-Za-z0-9_*/:@+-]*[A-Za-z0-9_*])?")


def join(path: str, key: object) -> str:
    """The path of a key; a key that is no plain word is quoted."""
    if not isinstance(key, str) or not _PLAIN.fullmatch(key):
        return f"{path}[{json.dumps(str(key))}]"
    return f"{path}.{key}" if path else key
