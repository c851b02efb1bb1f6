"""The settings of the built-in `web_search`: keys, defaults, and what cannot work.

This file must not know how a search is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from loopway.errors import Problem
from loopway.hooks.own_settings import WrongSettings, read_settings
from loopway.hooks.web_search.domains import is_domain

ProviderName = Literal["searxng", "tavily", "brave", "local"]

DEFAULT_ADDRESSES: Mapping[str, str] = {
    "tavily": "https://api.tavily.com",
    "brave": "https://api.search.brave.com",
}
"""Where the public providers are."""

MOST_RESULTS = 20
"""Most results of one search, whatever settings and requests say; Brave's own limit."""

_NEEDS_KEY = ("tavily", "brave")

Text = Annotated[str, msgspec.Meta(min_length=1, description="a text that is not empty")]
Address = Annotated[str, msgspec.Meta(min_length=1, description="an address, as https://host/path")]
Secret = Annotated[
    str, msgspec.Meta(min_length=1, description="the provider's key, as ${NAME}", extra={"hidden": True})
]
ToolName = Annotated[
    str,
    msgspec.Meta(pattern=r"\A[a-zA-Z0-9_-]{1,64}\Z", description="a name of letters, digits, _ and -, at most 64"),
]
Results = Annotated[int, msgspec.Meta(ge=1, le=MOST_RESULTS, description=f"a whole number from 1 to {MOST_RESULTS}")]
Uses = Annotated[int, msgspec.Meta(ge=1, description="a whole number of searches, at least 1")]
Seconds = Annotated[float, msgspec.Meta(gt=0, description="a number of seconds, above 0")]
Names = Annotated[list[Text], msgspec.Meta(description="a list of texts")]
Flag = Annotated[bool, msgspec.Meta(description="true or false")]
Provider = Annotated[ProviderName, msgspec.Meta(description="searxng, tavily, brave or local")]


class WebSearchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `web_search`. The repr shows no key.

    Attributes:
        provider: Who searches.
        base_url: Where its API is; for `local` what stands in front of a file's path in the addresses of results.
        api_key: What it is called with.
        folder: The folder that `local` searches; Loopway's own documentation if it is left out.
        max_results: Results of one search.
        max_uses: Searches in one exchange.
        timeout_seconds: Longest search.
        allowed_domains: Results are of these only.
        blocked_domains: Results are of none of these.
        tool_name: The tool that the model sees.
        models: The model names for which it works; all by default.
        inject: Whether it is offered where the client declared no search.
    """

    provider: Provider
    base_url: Address | None = None
    api_key: Secret | None = None
    folder: Text | None = None
    max_results: Results = 5
    max_uses: Uses = 5
    timeout_seconds: Seconds = 15.0
    allowed_domains: Names | None = None
    blocked_domains: Names = []
    tool_name: ToolName = "web_search"
    models: Names | None = None
    inject: Flag = True

    def __repr__(self) -> str:
        return f"WebSearchSettings({self.provider})"


def read(given: Mapping[str, Any]) -> WebSearchSettings:
    """Read and check. Raises `WrongSettings` with every problem."""
    problems: list[Problem] = []
    made: WebSearchSettings | None = None
    try:
        made = read_settings(WebSearchSettings, given)
    except WrongSettings as wrong:
        problems += wrong.problems
    provider = given.get("provider")
    if provider in get_args(ProviderName):
        problems += _missing(str(provider), given)
    problems += _addresses(given)
    for name in ("allowed_domains", "blocked_domains"):
        problems += _domains(name, given.get(name))
    if problems or made is None:
        raise WrongSettings(*problems)
    return made


def _missing(provider: str, given: Mapping[str, Any]) -> list[Problem]:
    found: list[Problem] = []
    if provider == "searxng" and given.get("base_url") is None:
        found.append(Problem("base_url", "it is missing; write where your SearXNG is, as http://searxng:8080"))
    if provider in _NEEDS_KEY and given.get("api_key") is None:
        found.append(Problem("api_key", f"it is missing; write the key that {provider} gave you, as ${{NAME}}"))
    folder = given.get("folder")
    if folder is not None and provider != "local":
        found.append(Problem("folder", f"{provider} searches no folder; remove it, or write provider: local"))
    elif isinstance(folder, str) and folder and not Path(folder).is_dir():
        found.append(Problem("folder", "there is no such folder; write the path of one"))
    if provider == "local" and given.get("api_key") is not None:
        found.append(Problem("api_key", "local needs no key; remove it"))
    return found


def _addresses(given: Mapping[str, Any]) -> list[Problem]:
    url = given.get("base_url")
    if not isinstance(url, str) or not url:
        return []
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return [Problem("base_url", "it is no address; write it as https://host/path")]
    if not good:
        return [Problem("base_url", "it has no scheme or no host; write it as https://host/path")]
    if parts.username is not None or parts.password is not None:
        return [Problem("base_url", "it holds a user name; write credentials as api_key")]
    if parts.query or parts.fragment:
        return [Problem("base_url", "it has something behind its path; write it as https://host/path")]
    return []


def _domains(name: str, value: object) -> list[Problem]:
    if not isinstance(value, list):
        return []
    return [
        Problem(f"{name}[{number}]", "it is no domain; write it as example.com or example.com/path")
        for number, one in enumerate(value)
        if isinstance(one, str) and one and not is_domain(one)
    ]
