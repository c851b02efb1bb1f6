"""Which addresses a search may give: domains that are allowed and domains that are blocked.

This file must not know who asked for them. A domain covers its subdomains; a path behind it is a prefix, up to its
first `*`. https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/web-search-tool
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self
from urllib.parse import urlsplit

import msgspec

_DOMAIN = re.compile(r"[^\s/:@?#]+\.[^\s/:@?#.]+(/[^\s?#]*)?|localhost(/[^\s?#]*)?")


def is_domain(text: str) -> bool:
    """Whether a text is a domain, with a path or without; no scheme, no port."""
    return _DOMAIN.fullmatch(text) is not None


class Domains(msgspec.Struct, frozen=True):
    """A filter of addresses.

    Attributes:
        allowed: An address must be of one of these; None allows all.
        blocked: No address may be of one of these.
    """

    allowed: tuple[str, ...] | None = None
    blocked: tuple[str, ...] = ()

    def narrowed(self, allowed: Sequence[str] | None, blocked: Sequence[str]) -> Self:
        """This filter and another one: an address has to pass both."""
        both = self.allowed
        if allowed is not None:
            both = tuple(allowed) if both is None else _common(both, allowed)
        return type(self)(both, tuple(dict.fromkeys((*self.blocked, *blocked))))

    def lets(self, url: str) -> bool:
        """Whether an address passes. One that is no http address passes only where nothing is filtered."""
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").lower()
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or not host:
            return False
        place = host + (parts.path or "/")
        if any(_covers(one, place) for one in self.blocked):
            return False
        return self.allowed is None or any(_covers(one, place) for one in self.allowed)


def _covers(domain: str, place: str) -> bool:
    """Whether a domain covers `host/path`."""
    host, _, path = domain.partition("/")
    host = host.lower()
    own, _, rest = place.partition("/")
    return (own == host or own.endswith("." + host)) and rest.startswith(path.partition("*")[0])


def _common(ours: Sequence[str], theirs: Sequence[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for one in ours:
        for other in theirs:
            if _covers(one, other):
                found.setdefault(other)
            elif _covers(other, one):
                found.setdefault(one)
    return tuple(found)
