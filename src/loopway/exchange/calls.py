"""One exchange's calls of models: what is sent, what comes back of the head, and the time spent waiting.

This file must not know why a model is called.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from loopway.dialects.request import Request
from loopway.engine.notes import CallBegan, CallEnded, CallFailed, FirstChunk, Note
from loopway.errors import Refused
from loopway.exchange.ports import Headers, Incoming
from loopway.upstream.client import Auth, Try
from loopway.upstream.response import UpstreamResponse
from loopway.upstream.routing import Outgoing, Route, Router
from loopway.upstream.routing import call as send_call

LARGEST_REPLY = 64 * 1024 * 1024
"""Bytes that one JSON reply of an upstream may have where it has to be read whole."""
LARGEST_ERROR = 1024 * 1024
"""Bytes of an upstream's error body that go back to the client."""

_ERROR_STATUS = 400
_COMING_BACK = frozenset({b"request-id", b"retry-after", b"retry-after-ms", b"x-should-retry"})
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What no header value may hold (RFC 9110, section 5.5); a server would refuse the whole answer for it."""
_COMING_BACK_PREFIX = (b"anthropic-", b"openai-", b"x-ratelimit-", b"ratelimit")

T = TypeVar("T")


class Calls:
    """The calls of one exchange.

    Attributes:
        seconds: Time spent waiting for upstreams.
        made: How many calls there were.
        route: Where the last call went.
    """

    def __init__(
        self,
        router: Router,
        incoming: Incoming,
        tell: Callable[[Note], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._incoming = incoming
        self._tell = tell
        self._clock = clock
        self._auth: Auth = "x-api-key" if incoming.dialect.name == "messages" else "bearer"
        self.seconds = 0.0
        self.route: Route | None = None
        self._open: _Open | None = None
        self._request: Request
        self._depth = 0
        self.made = 0

    @property
    def model(self) -> str:
        """The model name that the last upstream got."""
        return self.route.upstream_model if self.route is not None else ""

    @property
    def upstream(self) -> str:
        """The name of the upstream that was called last."""
        return self.route.upstream.name if self.route is not None else ""

    async def send(self, request: Request, depth: int) -> UpstreamResponse:
        """Call the model. The response must be closed by the caller.

        Raises:
            Refused: The upstream answered with an error status.
            UpstreamError: It did not answer.
        """
        self._request, self._depth, self.made = request, depth, depth + 1
        routes = self._router.routes(request.model, self._incoming.dialect.name)
        began = self._clock()
        try:
            self.route, response = await send_call(routes, self._outgoing, tried=self._tried)
        finally:
            self.seconds += self._clock() - began
        if response.status < _ERROR_STATUS:
            return response
        try:
            body = await self.timed(response.read(LARGEST_ERROR))
        finally:
            await response.aclose()
        raise Refused(self.upstream, response.status, coming_back(response.headers, b"content-type"), body)

    def _outgoing(self, route: Route) -> Outgoing:
        """The call as a route wants it."""
        incoming, request, upstream = self._incoming, self._request, route.upstream
        self.failed()
        self.route = route
        self._open = _Open(self._depth, self._clock())
        trace = dict(incoming.trace_headers)
        self._tell(
            CallBegan(
                self._depth,
                upstream.name,
                route.upstream_model,
                upstream.host,
                upstream.port,
                request.parameters,
                trace,
                request.data,
            )
        )
        return Outgoing(
            path=incoming.path,
            query=incoming.query,
            headers=incoming.headers,
            body=request.body(route.upstream_model),
            auth=self._auth,
            client_auth=incoming.client_auth,
            trace=trace,
        )

    def _tried(self, one: Try) -> None:
        if self._open is not None:
            self._open.error = one.error_kind or (str(one.status) if one.status >= _ERROR_STATUS else "")
        self._tell(CallEnded(self._depth, self.upstream, one.status, one.seconds, one.error_kind))

    def answered(self) -> None:
        """The open call has its reply."""
        self._open = None

    def failed(self, error: str = "") -> None:
        """A call that is still open ended without a reply; `error` says why if its last try does not."""
        if self._open is not None:
            lost, self._open = self._open, None
            seconds = self._clock() - lost.began
            self._tell(CallFailed(lost.depth, self.upstream, self.model, seconds, lost.error or error or "other"))

    async def timed(self, waiting: Awaitable[T]) -> T:
        """Wait for an upstream, and count the time."""
        began = self._clock()
        try:
            return await waiting
        finally:
            self.seconds += self._clock() - began

    async def timed_chunks(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The chunks of an upstream; only the waiting for them is counted."""
        clock, call = self._clock, self._open
        began = clock()
        first = True
        async for chunk in chunks:
            now = clock()
            self.seconds += now - began
            if first:
                first = False
                if call is not None:
                    self._tell(FirstChunk(call.depth, self.upstream, self.model, now - call.began))
            yield chunk
            began = clock()
        self.seconds += clock() - began


class _Open:
    """A call that has no reply yet."""

    __slots__ = ("began", "depth", "error")

    def __init__(self, depth: int, began: float) -> None:
        self.depth = depth
        self.began = began
        self.error = ""


def coming_back(headers: Headers, *and_these: bytes) -> list[tuple[bytes, bytes]]:
    """The headers of an upstream's answer that the client gets.

    Args:
        headers: All of them, names in lower case.
        and_these: Names of those that say how to read its bytes (`content-type`), where these are passed on.
    """
    return [
        (name, value)
        for name, value in headers
        if (name in and_these or name in _COMING_BACK or name.startswith(_COMING_BACK_PREFIX))
        and not _CONTROL.search(value)
    ]


def is_events(headers: Headers) -> bool:
    """Whether an answer is a stream of events."""
    return any(name == b"content-type" and value.lower().startswith(b"text/event-stream") for name, value in headers)
