"""What clients declare when they want a search: Anthropic's typed tool, and Chat Completions' `web_search_options`.

This file must not know how a search is made. It reads and changes request bodies as plain data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from loopway.errors import Rejected
from loopway.hooks.web_search.domains import Domains, is_domain
from loopway.hooks.web_search.providers import Location
from loopway.hooks.web_search.settings import MOST_RESULTS

_TYPED = "web_search_"
_OPTIONS = "web_search_options"
_SIZES = {"low": 0.5, "medium": 1.0, "high": 2.0}
"""What `search_context_size` makes of the number of results."""


class Declared(msgspec.Struct, frozen=True):
    """A client's declaration of a search.

    Attributes:
        typed: Whether it is Anthropic's typed tool: its client gets the blocks of Anthropic's own search.
        max_uses: Most searches, or None.
        domains: The addresses that results may have.
        location: Where the user is.
        results: What the configured number of results is multiplied with.
    """

    typed: bool
    max_uses: int | None = None
    domains: Domains = Domains()
    location: Location = Location()
    results: float = 1.0

    def count(self, configured: int) -> int:
        """How many results a search gives."""
        return max(1, min(MOST_RESULTS, math.ceil(configured * self.results)))


def is_typed(tool: object) -> bool:
    """Whether a tool of a Messages request is Anthropic's own search, of any version."""
    return isinstance(tool, Mapping) and isinstance(tool.get("type"), str) and tool["type"].startswith(_TYPED)


def name_of(tool: object) -> str:
    """The name of a tool in either dialect; empty if it has none."""
    if not isinstance(tool, Mapping):
        return ""
    inner = tool.get("function")
    name = (inner if isinstance(inner, Mapping) else tool).get("name")
    return name if isinstance(name, str) else ""


def take_from_messages(data: dict[str, Any], function: dict[str, Any]) -> Declared | None:
    """Put the plain function where the typed tool stands; None if there is none.

    Raises:
        Rejected: The declaration is wrong; the text has its JSON path.
    """
    tools = data.get("tools")
    places = [at for at, tool in enumerate(tools) if is_typed(tool)] if isinstance(tools, list) else []
    if not isinstance(tools, list) or not places:
        return None
    if len(places) > 1:
        raise Rejected(f"$.tools[{places[1]}]: it is a second web search; declare one")
    (place,) = places
    tool = tools[place]
    declared = _of_typed(tool, f"$.tools[{place}]")
    made = {**function, "description": with_location(function["description"], declared.location)}
    if tool.get("cache_control") is not None:
        made["cache_control"] = tool["cache_control"]
    data["tools"] = [*tools[:place], made, *tools[place + 1 :]]
    choice = data.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "tool" and choice.get("name") == tool.get("name"):
        data["tool_choice"] = {**choice, "name": function["name"]}
    return declared


def _of_typed(tool: Mapping[str, Any], path: str) -> Declared:
    most = tool.get("max_uses")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise Rejected(f"{path}.max_uses: write a whole number, at least 1")
    allowed = _domains(tool.get("allowed_domains"), f"{path}.allowed_domains")
    blocked = _domains(tool.get("blocked_domains"), f"{path}.blocked_domains")
    if allowed and blocked:
        raise Rejected(f"{path}: it has allowed_domains and blocked_domains; write one of them")
    location = tool.get("user_location")
    return Declared(
        typed=True,
        max_uses=most,
        domains=Domains(tuple(allowed) if allowed else None, tuple(blocked)),
        location=_location(location, f"{path}.user_location"),
    )


def _domains(value: object, path: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise Rejected(f"{path}: write a list of domains")
    for number, one in enumerate(value):
        if not isinstance(one, str) or not is_domain(one):
            raise Rejected(f"{path}[{number}]: write a domain without https://, as example.com or example.com/path")
    return value


def _location(value: object, path: str) -> Location:
    if value is None:
        return Location()
    if not isinstance(value, Mapping):
        raise Rejected(f"{path}: write an object")
    given = {name: value.get(name) for name in ("city", "region", "country", "timezone")}
    return Location(**{name: " ".join(text.split())[:100] for name, text in given.items() if isinstance(text, str)})


def take_from_chat(data: dict[str, Any]) -> Declared | None:
    """Take `web_search_options` out of a request; None if there are none.

    Raises:
        Rejected: The options are wrong; the text has their JSON path.
    """
    options = data.pop(_OPTIONS, None)
    if options is None:
        return None
    path = f"$.{_OPTIONS}"
    if not isinstance(options, Mapping):
        raise Rejected(f"{path}: write an object")
    size = options.get("search_context_size") or "medium"
    if not isinstance(size, str) or size not in _SIZES:
        raise Rejected(f"{path}.search_context_size: write low, medium or high")
    where = options.get("user_location")
    inner = where.get("approximate", where) if isinstance(where, Mapping) else where
    return Declared(typed=False, location=_location(inner, f"{path}.user_location"), results=_SIZES[size])


def with_location(description: str, location: Location) -> str:
    """A tool's description that says where the user is."""
    return f"{description} The user is in {location}." if str(location) else description
