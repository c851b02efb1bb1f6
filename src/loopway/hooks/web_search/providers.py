"""Search providers over HTTP, each in its real shape: SearXNG, Tavily, Brave.

This file must not know who asks. Only the configuration says which host is called.

* https://docs.searxng.org/dev/search_api.html
* https://docs.tavily.com/documentation/api-reference/endpoint/search
* https://api-dashboard.search.brave.com/api-reference/web/search/get
"""

from __future__ import annotations

import asyncio
import functools
import html
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import aiohttp
import httpx
import httpx_aiohttp
import msgspec

from loopway.hooks.web_search.domains import Domains
from loopway.hooks.web_search.hits import Hit, SearchFailed, hit
from loopway.hooks.web_search.settings import DEFAULT_ADDRESSES, MOST_RESULTS, WebSearchSettings

LARGEST_ANSWER = 4 * 1024 * 1024
"""Bytes of a provider's answer."""
LONGEST_QUERY = 400
"""Characters of a query: Brave's limit, and Tavily's."""

_CONNECT_SECONDS = 5.0
_SITES_IN_QUERY = 3
_TAVILY_DOMAINS = 150
_TOO_MANY = (429, 432, 433)  # the latter two: a plan of Tavily's is used up


class Location(msgspec.Struct, frozen=True):
    """Where the user is, as far as the client says it."""

    city: str = ""
    region: str = ""
    country: str = ""
    timezone: str = ""

    def __str__(self) -> str:
        return ", ".join(part for part in (self.city, self.region, self.country) if part)


class Wish(msgspec.Struct, frozen=True):
    """What is asked of a provider beside the query."""

    count: int
    domains: Domains = Domains()
    location: Location = Location()


class Provider(Protocol):
    """Searches."""

    longest_query: int
    """Characters that a query may have."""

    async def search(self, query: str, wish: Wish) -> list[Hit]:
        """The results, the best first. Raises `SearchFailed`."""
        ...

    async def start(self) -> None:
        """Make ready."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


class _OverHttp:
    """What the providers share: one client, bounded answers, failures in plain words."""

    longest_query = LONGEST_QUERY
    name = ""

    def __init__(self, settings: WebSearchSettings) -> None:
        self._base = (settings.base_url or DEFAULT_ADDRESSES.get(settings.provider, "")).rstrip("/")
        self._key = settings.api_key
        self._seconds = settings.timeout_seconds
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Nothing is called before the first search."""

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            trusted = _public_authorities()
            proxy = _proxy_of(self._base)

            def session() -> aiohttp.ClientSession:
                connector = aiohttp.TCPConnector(ssl=trusted)
                return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), proxy=proxy)

            self._client = httpx.AsyncClient(
                transport=httpx_aiohttp.AiohttpTransport(verify=trusted, client=session),
                timeout=httpx.Timeout(self._seconds, connect=min(_CONNECT_SECONDS, self._seconds)),
                follow_redirects=False,
                trust_env=False,
                headers={"accept": "application/json", "accept-encoding": "identity", "user-agent": "loopway"},
            )
        return self._client

    async def _ask(self, method: str, path: str, **more: Any) -> Any:
        """The decoded answer. Raises `SearchFailed`."""
        try:
            async with asyncio.timeout(self._seconds):
                async with self._opened().stream(method, self._base + path, **more) as answer:
                    if answer.status_code != httpx.codes.OK:
                        raise self._refused(answer.status_code)
                    body = bytearray()
                    async for chunk in answer.aiter_bytes():
                        body += chunk
                        if len(body) > LARGEST_ANSWER:
                            raise SearchFailed("unavailable", "The search gave an answer that is too large.")
        except (httpx.HTTPError, OSError, TimeoutError) as wrong:
            # httpx_aiohttp calls every lost connection a time-out; what lies below it knows better.
            if isinstance(wrong, TimeoutError) or isinstance(wrong.__cause__, TimeoutError):
                text = f"The search gave no answer within {self._seconds:g} seconds."
            else:
                text = "The search cannot be reached."
            raise SearchFailed("unavailable", text) from wrong
        try:
            return msgspec.json.decode(bytes(body))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise SearchFailed("unavailable", "The search gave an answer that is no JSON.") from None

    def _refused(self, status: int) -> SearchFailed:
        if status in _TOO_MANY:
            return SearchFailed("too_many_requests", "The search has had too many requests; try again later.")
        return SearchFailed("unavailable", f"The search failed with status {status}.")


class Searxng(_OverHttp):
    """A SearXNG of your own; its `search.formats` must have `json`."""

    async def search(self, query: str, wish: Wish) -> list[Hit]:
        """The results."""
        asked = {"q": _with_sites(query, wish.domains), "format": "json"}
        headers = {"authorization": f"Bearer {self._key}"} if self._key else None
        found = await self._ask("GET", "/search", params=asked, headers=headers)
        return [
            hit(one.get("title"), one.get("url"), one.get("content"), one.get("publishedDate"))
            for one in _results(found, "results")
        ]

    def _refused(self, status: int) -> SearchFailed:
        if status == httpx.codes.FORBIDDEN:
            return SearchFailed("unavailable", "The search refuses JSON (SearXNG: search.formats must have json).")
        return super()._refused(status)


class Tavily(_OverHttp):
    """Tavily's `POST /search`."""

    async def search(self, query: str, wish: Wish) -> list[Hit]:
        """The results."""
        asked: dict[str, Any] = {"query": query, "max_results": wish.count, "search_depth": "basic"}
        if wish.domains.allowed is not None:
            asked["include_domains"] = _hosts(wish.domains.allowed)[:_TAVILY_DOMAINS]
        if blocked := [one for one in wish.domains.blocked if "/" not in one]:
            asked["exclude_domains"] = blocked[:_TAVILY_DOMAINS]
        headers = {"authorization": f"Bearer {self._key}"}
        found = await self._ask("POST", "/search", json=asked, headers=headers)
        return [
            hit(one.get("title"), one.get("url"), one.get("content"), one.get("published_date"))
            for one in _results(found, "results")
        ]


class Brave(_OverHttp):
    """Brave's `GET /res/v1/web/search`."""

    async def search(self, query: str, wish: Wish) -> list[Hit]:
        """The results."""
        filtered = wish.domains.allowed is not None or wish.domains.blocked
        asked: dict[str, Any] = {
            "q": _with_sites(query, wish.domains),
            "count": MOST_RESULTS if filtered else wish.count,
            "text_decorations": "false",
            "extra_snippets": "true",
            "result_filter": "web",
        }
        where = wish.location
        if len(where.country) == len("US") and where.country.isascii():
            asked["country"] = where.country.upper()
        headers = {"x-subscription-token": self._key or ""}
        for name, value in (("city", where.city), ("state-name", where.region), ("timezone", where.timezone)):
            if value and value.isascii() and value.isprintable():
                headers[f"x-loc-{name}"] = value
        found = await self._ask("GET", "/res/v1/web/search", params=asked, headers=headers)
        web = found.get("web") if isinstance(found, Mapping) else None
        return [
            hit(
                _unescaped(one.get("title")),
                one.get("url"),
                "\n".join([_unescaped(one.get("description")), *_texts(one.get("extra_snippets"))]),
                one.get("page_age") or one.get("age"),
            )
            for one in _results(web or {}, "results")
        ]


def _results(found: Any, name: str) -> list[Mapping[str, Any]]:
    """The list of results in an answer. Raises `SearchFailed` if it is no answer of a search."""
    if not isinstance(found, Mapping):
        raise SearchFailed("unavailable", "The search gave an answer that is none.")
    results = found.get(name, [])
    return [one for one in results if isinstance(one, Mapping)] if isinstance(results, list) else []


def _texts(value: object) -> list[str]:
    return [_unescaped(one) for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _unescaped(value: object) -> str:
    return html.unescape(value) if isinstance(value, str) else ""


def _hosts(domains: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(one.partition("/")[0] for one in domains))


def _with_sites(query: str, domains: Domains) -> str:
    """A query that names the few domains that are allowed; what comes is filtered all the same."""
    hosts = _hosts(domains.allowed or ())
    if not hosts or len(hosts) > _SITES_IN_QUERY:
        return query
    longer = f"{query} {' OR '.join(f'site:{host}' for host in hosts)}"
    return longer if len(longer) <= LONGEST_QUERY else query


@functools.cache
def _public_authorities() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _proxy_of(url: str) -> str | None:
    """The proxy that the standard variables name for an address."""
    address = httpx.URL(url)
    found = urllib.request.getproxies()
    proxy = found.get(address.scheme) or found.get("all")
    if proxy is None or urllib.request.proxy_bypass(address.netloc.decode()):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
