"""An answer on its way to one client: the head, the frames, the keepalive, and whether the client is still there.

This file must not know what the bytes mean. One per request.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from typing import Any

from loopway.errors import ClientGone, ExchangeError, OutOfTime

Message = MutableMapping[str, Any]
Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]
Headers = Sequence[tuple[bytes, bytes]]

_LOOK_AFTER_SECONDS = 0.1
"""A client is watched once its request has taken this long: the fast ones never pay for it."""
_LAST_WORDS_SECONDS = 2.0
"""How long the last words to a client may take that does not read, once its exchange has been interrupted."""
_STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class Responder:
    """The `Sink` of one HTTP request over ASGI.

    Args:
        receive: Tells when the client has gone, once the body is read.
        send: Takes the answer.
        request_id: Comes back as `x-request-id`.
        closing: Whether the client is asked to open a new connection for its next request.
    """

    def __init__(self, receive: Receive, send: Send, request_id: str, *, closing: bool = False) -> None:
        self._receive = receive
        self._send = send
        self._always: list[tuple[bytes, bytes]] = [(b"x-request-id", request_id.encode())]
        if closing:
            self._always.append((b"connection", b"close"))
        self._opened = False
        self._ending = False  # nothing more may be written
        self._closed = False  # and the end has gone
        self._in_one = False  # the answer is, or was to be, a whole one
        self._interrupted: ExchangeError | ClientGone | None = None
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._end_at = self._watch_at = math.inf
        self._limit = 0.0
        self._writing = False  # the exchange is; a ping waits for its next turn
        self._pinging: asyncio.Task[None] | None = None  # the exchange waits for it
        self._watching: asyncio.Task[None] | None = None
        self._pulse: asyncio.Handle | None = None
        self._last = 0.0
        self._silence = 0.0
        self._ping = b""

    # --- the sink ---

    @property
    def opened(self) -> bool:
        """Whether a head has gone to the client."""
        return self._opened

    @property
    def interrupted(self) -> ExchangeError | ClientGone | None:
        """Why the exchange was cancelled, if it was."""
        return self._interrupted

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer in one piece."""
        self._opened = self._ending = self._in_one = True
        await self._out(
            self._start(status, [*headers, (b"content-length", b"%d" % len(body))]),
            {"type": "http.response.body", "body": body},
        )
        self._closed = True

    async def open(self, status: int, headers: Headers) -> None:
        """The head of an answer whose bytes follow; nothing if it is out already."""
        await self._in_time(self._open(status, headers))

    async def write(self, data: bytes) -> None:
        """Bytes of the answer; nothing if it is cut or complete. Waits while the client reads slowly."""
        if not self._ending:
            await self._out({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self) -> None:
        """The answer is complete."""
        if not (self._closed or self._in_one):
            self._ending = True
            await self._out({"type": "http.response.body", "body": b""})
            self._closed = True

    def abort(self) -> None:
        """The answer cannot be completed: the connection is cut, so that nobody takes it for whole."""
        self._ending = self._closed = True

    def keep_alive(self, seconds: float, frame: bytes) -> None:
        """From now on, send this frame after so many seconds of silence; 0 seconds: no more."""
        if self._pulse is not None:
            self._pulse.cancel()
        self._silence, self._ping = seconds, frame
        self._last = self._loop.time()
        self._pulse = self._loop.call_later(seconds, self._tick) if seconds > 0 else None

    # --- its life ---

    def add(self, headers: Headers) -> None:
        """Headers that the answer has, whatever it is."""
        self._always += headers

    def limit(self, seconds: float) -> None:
        """Cancel the exchange when its time is over."""
        self._limit = seconds
        self._end_at = self._loop.time() + seconds

    def watch(self) -> None:
        """Cancel the exchange when its client leaves. The body must have been read."""
        self._watch_at = self._loop.time() + _LOOK_AFTER_SECONDS

    def look(self, now: float) -> None:
        """Do what is due; called again and again, so that an exchange needs no timers of its own.

        Args:
            now: The time of the event loop, in seconds.
        """
        if now >= self._end_at:
            self._end_at = math.inf
            self.interrupt(OutOfTime(self._limit))
        if now >= self._watch_at:
            self._watch_at = math.inf
            if self._task is not None:
                self._watching = self._loop.create_task(self._wait_for_leaving())

    def interrupt(self, why: ExchangeError | ClientGone) -> None:
        """Cancel the exchange. Only the first reason counts."""
        if self._interrupted is None and not self._closed and self._task is not None:
            self._interrupted = why
            self._task.cancel()

    def release(self) -> None:
        """The exchange is over: no timer and no helper is left."""
        self._task = None
        self._end_at = self._watch_at = math.inf
        for left in (self._pulse, self._watching, self._pinging):
            if left is not None:
                left.cancel()

    # --- inside ---

    def _out(self, *messages: Message) -> Coroutine[Any, Any, None]:
        sending = self._send_all(messages)
        return sending if self._interrupted is None else self._in_time(sending)

    async def _in_time(self, sending: Coroutine[Any, Any, None]) -> None:
        """Send; once the exchange has been interrupted, a client that does not read is not waited for long."""
        if self._interrupted is None:
            await sending
            return
        try:
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await sending
        except TimeoutError as stalled:
            raise ClientGone from stalled

    async def _open(self, status: int, headers: Headers) -> None:
        if self._pinging is not None:
            await asyncio.wait([self._pinging])  # it may be the one that opens
        if not self._opened:
            await self._send_all((self._opening(status, headers),))

    async def _send_all(self, messages: tuple[Message, ...]) -> None:
        if self._pinging is not None:
            await asyncio.wait([self._pinging])
        self._writing = True
        try:
            for message in messages:
                await self._send(message)
        except OSError as gone:
            raise ClientGone from gone
        finally:
            self._writing = False
            self._last = self._loop.time()

    def _start(self, status: int, headers: Headers) -> Message:
        return {"type": "http.response.start", "status": status, "headers": [*headers, *self._always]}

    def _opening(self, status: int, headers: Headers) -> Message:
        self._opened = True
        events = any(name == b"content-type" and b"event-stream" in value for name, value in headers)
        return self._start(status, [*headers, *_STREAM_HEADERS] if events else headers)

    async def _wait_for_leaving(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(ClientGone())

    def _tick(self) -> None:
        if self._ending or self._task is None:
            return
        left = self._last + self._silence - self._loop.time()
        if left <= 0:
            left = self._silence
            if not self._writing and self._pinging is None:
                self._pinging = self._loop.create_task(self._send_ping())
        self._pulse = self._loop.call_later(left, self._tick)

    async def _send_ping(self) -> None:
        try:
            if self._ending or not self._ping:
                return
            self._last = self._loop.time()
            if not self._opened:
                await self._send(self._opening(200, [(b"content-type", b"text/event-stream; charset=utf-8")]))
            await self._send({"type": "http.response.body", "body": self._ping, "more_body": True})
        except OSError as gone:
            left = ClientGone()
            left.__cause__ = gone
            self.interrupt(left)
        finally:
            self._pinging = None
