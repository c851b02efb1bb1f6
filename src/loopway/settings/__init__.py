"""The configuration: its shape, its defaults, and every refusal, all found before anything starts.

This package must not know what a hook is, who reads a setting, or any shape of file but its own: a
translator, which the caller passes, makes this shape of another one.

The road, and the file of each step::

    YAML text -> plain data -> environment read    source.py
              -> translated, if it is not our shape   (a translator)
              -> Structs                            decode.py, into those of shape.py
              -> seen together                      checks.py

Each step adds to one list of problems and goes on as far as the data allows, so that an operator sees all
of them at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loopway.errors import ConfigError, Problem
from loopway.settings.checks import Checks, good
from loopway.settings.decode import Decoder, found, wanted
from loopway.settings.shape import (
    LAST_PORT,
    AuthSettings,
    DialectName,
    HookSetting,
    KeySettings,
    LoopSettings,
    ModelSettings,
    Port,
    Secret,
    ServerSettings,
    Settings,
    TelemetrySettings,
    Text,
    UpstreamSettings,
)
from loopway.settings.source import REFUSED, Environment, EnvText, file_text, yaml_data

__all__ = [
    "REFUSED",
    "AuthSettings",
    "DialectName",
    "Draft",
    "EnvText",
    "HookSetting",
    "KeySettings",
    "LoopSettings",
    "ModelSettings",
    "Secret",
    "ServerSettings",
    "Settings",
    "TelemetrySettings",
    "Translation",
    "Translator",
    "UpstreamSettings",
    "at_address",
    "from_mapping",
    "load",
    "read",
    "read_mapping",
]


class Translation(msgspec.Struct, frozen=True, kw_only=True):
    """Another shape of file in this one.

    Attributes:
        data: The same in the shape of `Settings`, as plain data; `REFUSED` where a problem has been told.
        warnings: What is not honoured but changes no answer.
        problems: What cannot be honoured.
        paths: Key paths of this shape to those of the file, so that problems name what the operator wrote.
            The longest one that fits counts.
    """

    data: dict[str, Any]
    warnings: list[Problem] = []
    problems: list[Problem] = []
    paths: dict[str, str] = {}


Translator = Callable[[Mapping[str, Any], Mapping[str, str]], Translation | None]
"""Gets the data of a file, with the environment read, and the environment. Gives its translation, or None
if the file has another shape."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What was read, good or not. The caller may add what it finds itself (hooks), then refuse all.

    Attributes:
        source: The file, as messages name it.
        folder: Its folder, where hooks and files are looked for.
        settings: The settings, or None if there are problems.
        hooks: The well formed entries of `hooks` with their key paths, whatever is wrong elsewhere.
        problems: Everything that is wrong.
        warnings: What is not honoured but changes no answer.
    """

    source: str
    folder: Path
    settings: Settings | None
    hooks: tuple[tuple[str, HookSetting], ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    def checked(self, more: Iterable[Problem] = ()) -> Settings:
        """The settings. Raises `ConfigError` with all problems, and those that the caller found."""
        problems = (*self.problems, *more)
        if problems or self.settings is None:
            raise ConfigError(self.source, problems)
        return self.settings


def load(path: Path, environ: Mapping[str, str] | None = None, *, translators: Sequence[Translator] = ()) -> Settings:
    """Read and check a file. Raises `ConfigError` with every problem."""
    return read(path, environ, translators=translators).checked()


def from_mapping(
    data: object,
    source: str = "config",
    environ: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
    translators: Sequence[Translator] = (),
) -> Settings:
    """Check plain data. Raises `ConfigError` with every problem."""
    return read_mapping(data, source, environ, folder=folder, translators=translators).checked()


def read(path: Path, environ: Mapping[str, str] | None = None, *, translators: Sequence[Translator] = ()) -> Draft:
    """Read a file, and collect its problems. Raises `ConfigError` only if there is no data at all.

    Args:
        path: The YAML file.
        environ: What `${NAME}` reads; the process environment by default.
        translators: Asked in order whether the file has their shape.
    """
    source = str(path)
    data, problems = yaml_data(file_text(path), source)
    folder = path.resolve().parent
    return _draft(data, source, environ, folder=folder, translators=translators, problems=problems)


def read_mapping(
    data: object,
    source: str = "config",
    environ: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
    translators: Sequence[Translator] = (),
) -> Draft:
    """Like `read`, for plain data. `folder` is where relative paths start; the current one by default."""
    folder = folder or Path.cwd()
    return _draft(data, source, environ, folder=folder, translators=translators, problems=[])


def at_address(
    settings: Settings, *, host: str | None = None, port: int | None = None, source: str = "command line"
) -> Settings:
    """The settings with another address, as flags give it. Raises `ConfigError` if it cannot be."""
    server = settings.server
    problems: list[Problem] = []
    if port is not None and not 0 <= port <= LAST_PORT:
        problems.append(Problem("--port", f"is {port}; write {wanted(Port)}"))
    if host is not None and not host:
        problems.append(Problem("--host", f"is empty; write {wanted(Text)}"))
    if port and port == server.admin_port:
        problems.append(
            Problem("--port", f"is {port}, which is server.admin_port as well; give one of them another number")
        )
    if problems:
        raise ConfigError(source, problems)
    server = msgspec.structs.replace(
        server, host=server.host if host is None else host, port=server.port if port is None else port
    )
    return msgspec.structs.replace(settings, server=server)


def _draft(
    data: object,
    source: str,
    environ: Mapping[str, str] | None,
    *,
    folder: Path,
    translators: Sequence[Translator],
    problems: list[Problem],
) -> Draft:
    environ = os.environ if environ is None else environ
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        text = f"the whole of it is {found(data, hidden=True)}; write {wanted(Settings)}"
        raise ConfigError(source, [*problems, Problem("", text)])
    plain: dict[str, Any] = Environment(environ, problems).read(data, "")
    warnings: list[Problem] = []
    paths: dict[str, str] = {}
    for translator in translators:
        translation = translator(plain, environ)
        if translation is not None:
            plain, paths = translation.data, translation.paths
            problems.extend(translation.problems)
            warnings.extend(translation.warnings)
            break
    more: list[Problem] = []
    settings: Settings = Decoder(more).decode(plain)
    Checks(settings, folder, more).run()
    problems.extend(Problem(_written(problem.path, paths), problem.text) for problem in more)
    return Draft(
        source=source,
        folder=folder,
        settings=None if problems else settings,
        hooks=tuple((_written(f"hooks[{index}]", paths), hook) for index, hook in good(settings.hooks)),
        problems=tuple(dict.fromkeys(problems)),
        warnings=tuple(warnings),
    )


def _written(path: str, paths: Mapping[str, str]) -> str:
    """A key path as the operator wrote it."""
    for ours in sorted(paths, key=len, reverse=True):
        rest = path.removeprefix(ours)
        if path.startswith(ours) and (not rest or rest[0] in ".["):
            return paths[ours] + rest
    return path
