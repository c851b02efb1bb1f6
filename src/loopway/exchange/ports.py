"""What the driver is given: how loops are run, a request that came in, and the sink for its answer.

This file must not know how an exchange runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol

import msgspec

from loopway.dialects.base import Dialect, InterimText, UsageMode
from loopway.engine.limits import Limits
from loopway.errors import ClientGone, ExchangeError

StreamMode = Literal["merged", "appended"]
Headers = Sequence[tuple[bytes, bytes]]


class LoopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How loops are run; from the configuration's `loop`."""

    limits: Limits
    stream: StreamMode = "merged"
    interim_text: InterimText = "stream"
    usage: UsageMode = "sum"
    keepalive_seconds: float = 15.0


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the server has checked it.

    Attributes:
        path: The upstream's path for it.
        loop: Whether hooks may see it; false for the endpoints that are only passed on.
        body: Reads the body. Raises `TooLarge` and `ClientGone`.
        headers: The headers that travel upstream, names in lower case.
        client_auth: The client's own key headers, for upstreams that want them.
        trace_headers: The client's trace context.
        loops: `x-max-agentic-loops`, if it was sent.
        stream_mode: `x-loopway-stream`, if it was sent.
        key_models: The model names that the caller's key may use; `*` for all.
    """

    dialect: Dialect
    path: str
    loop: bool
    body: Callable[[], Awaitable[bytes]]
    query: str
    headers: tuple[tuple[bytes, bytes], ...]
    client_auth: tuple[tuple[bytes, bytes], ...]
    trace_headers: dict[str, str]
    loops: str | None
    stream_mode: str | None
    key_name: str
    key_models: tuple[str, ...]

    def may_use(self, model: str) -> bool:
        """Whether the caller's key is for this model."""
        return "*" in self.key_models or model in self.key_models


class Sink(Protocol):
    """Where the answer goes."""

    @property
    def opened(self) -> bool:
        """Whether a head has gone to the client; from then on there is no other status."""
        ...

    @property
    def interrupted(self) -> ExchangeError | ClientGone | None:
        """Why the exchange was cancelled: the client left, its time is over, the gateway shuts down."""
        ...

    async def whole(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """A whole answer in one piece."""
        ...

    async def open(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The head of an answer whose bytes follow. Does nothing if a keepalive has opened it already."""
        ...

    async def write(self, data: bytes) -> None:
        """Bytes of the answer, whole frames. Waits while the client reads slowly. Raises `ClientGone`."""
        ...

    async def close(self) -> None:
        """The answer is complete."""
        ...

    def abort(self) -> None:
        """The answer is not complete and cannot be: cut the connection."""
        ...

    def keep_alive(self, seconds: float, frame: bytes) -> None:
        """From now on, send this frame after so many seconds of silence, also as the first byte; 0 seconds: no more."""
        ...
