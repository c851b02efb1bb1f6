"""Dotted paths and built-ins to hook instances, with every refusal.

This file must not know when a hook is asked. Built-ins are an explicit table; nothing is discovered.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from loopway.errors import Problem
from loopway.hooks import mcp
from loopway.hooks.base import HOOK_METHODS, AgenticLoopHook, overrides
from loopway.hooks.compression import compression
from loopway.hooks.own_settings import WrongSettings
from loopway.hooks.rules import Rule, checked_rule
from loopway.hooks.tools import ToolSource
from loopway.hooks.web_search import web_search

BUILT_INS: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "compression": compression,
    "mcp": mcp.make,
    "web_search": web_search,
}
"""Built-in hooks by the name that the configuration uses, each made from its settings."""


class Unusable(ValueError):
    """What a path names is no hook; the text says what was found and what to write."""


def built_in(name: str, settings: dict[str, Any], path: str, problems: list[Problem]) -> object | None:
    """Make a built-in hook, or add the problem."""
    make = BUILT_INS.get(name)
    if make is None:
        known = ", ".join(sorted(BUILT_INS)) or "none in this version"
        problems.append(
            Problem(
                path,
                f"{name!r} is no built-in hook (there are: {known}); a hook of your own is a dotted path",
            )
        )
        return None
    try:
        return make(settings)
    except WrongSettings as wrong:
        problems += [Problem(f"{path}.{name}.{problem.path}", problem.text) for problem in wrong.problems]
        return None
    except ValueError as wrong:
        problems.append(Problem(f"{path}.{name}", str(wrong)))
        return None


def load(dotted: str, folder: Path | None, adapt: Callable[[object], object] = lambda instance: instance) -> object:
    """Import what a dotted path names, with the configuration's folder on `sys.path`.

    Raises `Unusable` if that is no hook instance. `adapt` may turn a foreign instance into a hook first.
    """
    _look_in(folder)
    return checked(adapt(_found(dotted)), dotted)


def load_rule(dotted: str, folder: Path | None) -> Rule:
    """Import a rule. Raises `Unusable` if the path names no function of that kind."""
    _look_in(folder)
    try:
        return checked_rule(_found(dotted), dotted)
    except Unusable:
        raise
    except ValueError as wrong:
        raise Unusable(str(wrong)) from None


def _look_in(folder: Path | None) -> None:
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()


def _found(dotted: str) -> object:
    parts = dotted.split(".")
    if not all(part.isidentifier() for part in parts):
        raise Unusable(f"{dotted!r} is no dotted path; write module.instance")
    if len(parts) == 1:
        raise Unusable(f"{dotted!r} names no instance; write {dotted}.NAME_OF_THE_INSTANCE")
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        module = _imported(name, dotted)
        if module is None:
            continue
        value: object = module
        for attribute in parts[length:]:
            there = hasattr(value, attribute)
            value = getattr(value, attribute) if there else _submodule(value, attribute, dotted)
        return value
    raise Unusable(f"there is no module {parts[0]!r} (for {dotted!r}) beside the configuration or on the Python path")


def _submodule(value: object, attribute: str, dotted: str) -> object:
    """A module inside a package that nobody imported yet, or the refusal."""
    if isinstance(value, types.ModuleType):
        module = _imported(f"{value.__name__}.{attribute}", dotted) if hasattr(value, "__path__") else None
        if module is not None:
            return module
        there = [name for name in vars(value) if not name.startswith("_")]
        close = get_close_matches(attribute, there, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise Unusable(f"the module {value.__name__!r} has no {attribute!r} (for {dotted!r}){hint}")
    raise Unusable(f"{type(value).__name__} has no {attribute!r} (for {dotted!r})")


def _imported(name: str, dotted: str) -> types.ModuleType | None:
    """Import a module; None if there is none of this name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (name == missing.name or name.startswith(missing.name + ".")):
            return None
        raise Unusable(
            f"the module {name!r} (for {dotted!r}) imports {missing.name!r}, which is not installed"
        ) from missing
    except (Exception, SystemExit) as wrong:  # a module's own code may raise anything
        text = f"{type(wrong).__name__}: {wrong}".splitlines()[0]
        raise Unusable(f"the module {name!r} (for {dotted!r}) cannot be imported: {text}") from wrong


def checked(value: object, dotted: str) -> object:
    """A hook instance as it is. Raises `Unusable`, each kind with a sentence of its own."""
    if inspect.isclass(value):
        example = dotted.rpartition(".")[0] or "module"
        raise Unusable(
            f"{dotted!r} is a class; name an instance: add `hook = {value.__name__}()` to the module "
            f"and write {example}.hook"
        )
    if isinstance(value, types.ModuleType):
        raise Unusable(f"{dotted!r} is a module; name a hook instance inside it: {dotted}.NAME_OF_THE_INSTANCE")
    own = [method for method in HOOK_METHODS if overrides(value, method)]
    if not own and isinstance(value, ToolSource):
        return value
    if not own:
        raise Unusable(
            f"{dotted!r} is an instance of {type(value).__name__}, which has none of the hook methods; "
            f"derive from loopway.AgenticLoopHook and override async_should_run_agentic_loop and "
            f"async_build_agentic_loop_plan"
        )
    for method in own:
        if not _is_async(getattr(value, method)):
            raise Unusable(f"{dotted!r}: {method} of {type(value).__name__} is not `async def`; write async def")
        _check_signature(value, method, dotted)
    _check_names(value, dotted)
    gates = [method for method in own if "should_run" in method]
    behind = [method for method in own if method not in gates and method != "async_pre_call_hook"]
    if behind and not gates:
        raise Unusable(
            f"{dotted!r}: {type(value).__name__} has {behind[0]} but no gate, so it would never be asked; "
            f"override async_should_run_agentic_loop as well"
        )
    return value


def _is_async(method: Any) -> bool:
    """Whether calling it gives an awaitable: `async def`, also behind a partial or a callable object."""
    while isinstance(method, functools.partial):
        method = method.func
    if inspect.iscoroutinefunction(method):
        return True
    return inspect.iscoroutinefunction(getattr(method, "__call__", None))  # noqa: B004 - its kind is asked


def _check_signature(value: object, method: str, dotted: str) -> None:
    """A hook method is called with all its parameters, by their names."""
    names = list(inspect.signature(getattr(AgenticLoopHook, method)).parameters)[1:]
    try:
        inspect.signature(getattr(value, method)).bind(**dict.fromkeys(names))
    except TypeError as wrong:
        kind = type(value).__name__
        raise Unusable(
            f"{dotted!r}: {method} of {kind} cannot be called: {wrong}; it gets {', '.join(names)}, by name"
        ) from None
    except ValueError:
        return  # a signature that cannot be read


def _check_names(value: object, dotted: str) -> None:
    names: object = getattr(value, "server_fulfilled_tool_names", frozenset())
    good = isinstance(names, (frozenset, set)) and all(isinstance(name, str) and name for name in names)
    if not good:
        raise Unusable(
            f"{dotted!r}: server_fulfilled_tool_names of {type(value).__name__} is a {type(names).__name__}; "
            f"write a frozenset of tool names, as frozenset({{'my_tool'}})"
        )


def decides(hook: object) -> bool:
    """Whether a hook has any hook method of its own; a source of tools need not."""
    return any(overrides(hook, method) for method in HOOK_METHODS)


def names_of(hooks: Sequence[object]) -> frozenset[str]:
    """All tools that only the server runs, as far as they are known before anything has started."""
    names: set[str] = set()
    for hook in hooks:
        names |= getattr(hook, "server_fulfilled_tool_names", frozenset())
        if isinstance(hook, ToolSource):
            names |= {tool.name for tool in hook.tools()}
    return frozenset(names)
