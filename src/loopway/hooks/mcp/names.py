"""Which tools of an MCP server are offered, and under which names.

This file must not know the SDK, nor what a tool does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from loopway.hooks.mcp.settings import ServerSettings

_LONGEST = 64
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")


def offered(server: str, settings: ServerSettings, own: Iterable[str]) -> dict[str, str]:
    """The offered names of a server's tools by its own names, in its order.

    A name that a model server would refuse is mended: other characters become `_`, it is cut at 64, and of two that
    are the same then the second gets a number. What the operator has renamed keeps the name that he gave.
    """
    prefix = settings.prefix if settings.prefix is not None else f"{server}_"
    chosen = [name for name in dict.fromkeys(own) if _is_offered(name, settings)]
    taken = {settings.rename[name] for name in chosen if name in settings.rename}
    names: dict[str, str] = {}
    for name in chosen:
        new = settings.rename.get(name)
        if new is None:
            new = _unlike(mended(prefix + name), taken)
            taken.add(new)
        names[name] = new
    return names


def mended(name: str) -> str:
    """A name with the characters and the length that every model server takes."""
    return _NOT_IN_A_NAME.sub("_", name)[:_LONGEST] or "_"


def in_order(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """A new list in the order of the old one, what is new behind it: the prompt caches of upstreams depend on it."""
    there = dict.fromkeys(now)
    return [*(name for name in before if name in there), *(name for name in there if name not in set(before))]


def _is_offered(name: str, settings: ServerSettings) -> bool:
    if settings.allow is not None and not _is_among(name, settings.allow):
        return False
    return not _is_among(name, settings.deny) and not _is_among(name, settings.ask_first)


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _unlike(name: str, taken: set[str]) -> str:
    number, made = 1, name
    while made in taken:
        number += 1
        tail = f"_{number}"
        made = name[: _LONGEST - len(tail)] + tail
    return made
