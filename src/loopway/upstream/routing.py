"""Which upstream answers for a model's name, and which one when that one cannot.

This file must not know a wire format or how a call is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from loopway.errors import BadRequest, Broken, NotFound, Silent, Unreachable, UpstreamError
from loopway.upstream.retry import RETRYABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from loopway.upstream.client import Auth, Headers, Try, Upstream
    from loopway.upstream.response import UpstreamResponse

_LONGEST_NAME_SHOWN = 200


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One configured model.

    Attributes:
        model: The name that clients send.
        upstream: Who answers.
        upstream_model: The name that the upstream gets.
        dialects: The wire formats that the upstream speaks.
        max_agentic_loops: The model's own limit of reruns, or None.
    """

    model: str
    upstream: Upstream
    upstream_model: str
    dialects: frozenset[str]
    max_agentic_loops: int | None = None


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """One call as a route wants it; the parameters of `Upstream.send`."""

    path: str
    body: bytes
    auth: Auth
    query: str = ""
    headers: Headers = ()
    client_auth: Headers = ()
    trace: Mapping[str, str] = {}
    method: str = "POST"


class Router:
    """The configured models.

    Args:
        routes: One for each model.
        fallbacks: By a model's name, the name of the model that is tried when it fails.

    Raises:
        ValueError: A name comes twice, or a fallback names no model.
    """

    def __init__(self, routes: Iterable[Route], fallbacks: Mapping[str, str] | None = None) -> None:
        self._routes: dict[str, Route] = {}
        for route in routes:
            if route.model in self._routes:
                raise ValueError(f"the model {route.model!r} is there twice")
            self._routes[route.model] = route
        self._fallbacks = dict(fallbacks or {})
        for name in (*self._fallbacks, *self._fallbacks.values()):
            if name not in self._routes:
                raise ValueError(f"there is no model {name!r} to fall back from or to")
        self._known: dict[tuple[str, str], tuple[Route, ...]] = {}

    def names(self) -> list[str]:
        """The configured names, in their order."""
        return list(self._routes)

    def routes(self, model: str, dialect: str) -> tuple[Route, ...]:
        """The model's own route, then its fallbacks that speak the dialect, each once.

        Raises:
            NotFound: There is no such model.
            BadRequest: The model's own upstream does not speak the dialect.
        """
        known = self._known.get((model, dialect))
        if known is not None:
            return known
        own = self._routes.get(model)
        if own is None:
            shown = model if len(model) <= _LONGEST_NAME_SHOWN else model[:_LONGEST_NAME_SHOWN] + "…"
            raise NotFound(f"model: there is no model {shown!r}", "$.model")
        if dialect not in own.dialects:
            spoken = ", ".join(sorted(own.dialects))
            raise BadRequest(f"model: {model!r} is served in {spoken}, not in {dialect}", "$.model")
        found = self._known[model, dialect] = tuple(r for r in self._chain(model) if dialect in r.dialects)
        return found

    def _chain(self, model: str) -> Iterable[Route]:
        seen: set[str] = set()
        name: str | None = model
        while name is not None and name not in seen:
            seen.add(name)
            yield self._routes[name]
            name = self._fallbacks.get(name)


async def call(
    routes: Sequence[Route],
    outgoing: Callable[[Route], Outgoing],
    *,
    tried: Callable[[Try], None] | None = None,
    deadline: float | None = None,
) -> tuple[Route, UpstreamResponse]:
    """Send a call to the first route that answers; only before the first byte of an answer is handed on.

    The next route is asked when one is unreachable, silent or answers with no HTTP, or with a status in
    `retry.RETRYABLE` after its own retries. What the last one gives is what comes back, a status or an error.

    Args:
        routes: At least one.
        outgoing: Makes the call for a route; asked once for each route that is tried.
        tried: Told of each try at the route that `outgoing` was asked for last.
        deadline: No further try begins behind this time of the monotonic clock, in seconds.

    Raises:
        Unreachable, Silent, Broken: The last route's failure.
    """
    last = len(routes) - 1
    for number, route in enumerate(routes):
        sent = outgoing(route)
        try:
            response = await route.upstream.send(
                sent.path,
                sent.query,
                sent.headers,
                sent.body,
                auth=sent.auth,
                client_auth=sent.client_auth,
                trace=sent.trace,
                method=sent.method,
                tried=tried,
                deadline=deadline,
            )
        except (Unreachable, Silent, Broken):
            if number == last:
                raise
        else:
            if number == last or response.status not in RETRYABLE:
                return route, response
            await response.aclose()
    raise UpstreamError("", "there is no route to try")
