"""An answer on its way to one client: the head, the frames, the keepalive, and whether the client is still there.

This file must not know what the bytes mean. One per request.
"""

from __future__ import annotations

import asyncio
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
        self._interrupted: ExchangeError | ClientGone | None = None
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._timers: list[asyncio.Handle] = []
        self._pulse: asyncio.Handle | None = None
        self._helpers: set[asyncio.Task[None]] = set()
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
        await self._in_time(self._whole(status, headers, body))

    async def open(self, status: int, headers: Headers) -> None:
        """The head of an answer whose bytes follow; nothing if it is out already."""
        async with self._lock:
            await self._open(status, headers)

    async def write(self, data: bytes) -> None:
        """Bytes of the answer; nothing if it is cut or complete. Waits while the client reads slowly."""
        await self._in_time(self._write(data))

    async def close(self) -> None:
        """The answer is complete."""
        await self._in_time(self._close())

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
        self._timers.append(self._loop.call_later(seconds, self._out_of_time, seconds))

    def watch(self) -> None:
        """Cancel the exchange when its client leaves. The body must have been read."""
        self._timers.append(self._loop.call_later(_LOOK_AFTER_SECONDS, self._look))

    def _out_of_time(self, seconds: float) -> None:
        self.interrupt(OutOfTime(seconds))

    def interrupt(self, why: ExchangeError | ClientGone) -> None:
        """Cancel the exchange. Only the first reason counts."""
        if self._interrupted is None and not self._closed and self._task is not None:
            self._interrupted = why
            self._task.cancel()

    def release(self) -> None:
        """The exchange is over: no timer and no helper is left."""
        self._task = None
        if self._pulse is not None:
            self._pulse.cancel()
        for timer in self._timers:
            timer.cancel()
        for helper in self._helpers:
            helper.cancel()

    # --- inside ---

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

    async def _whole(self, status: int, headers: Headers, body: bytes) -> None:
        async with self._lock:
            self._opened = self._ending = self._closed = True
            await self._start(status, [*headers, (b"content-length", b"%d" % len(body))])
            await self._out({"type": "http.response.body", "body": body})

    async def _write(self, data: bytes) -> None:
        async with self._lock:
            if not self._ending:
                self._last = self._loop.time()
                await self._out({"type": "http.response.body", "body": data, "more_body": True})
                self._last = self._loop.time()

    async def _close(self) -> None:
        async with self._lock:
            if not self._closed:
                self._ending = True
                await self._out({"type": "http.response.body", "body": b""})
                self._closed = True

    async def _start(self, status: int, headers: Headers) -> None:
        await self._out({"type": "http.response.start", "status": status, "headers": [*headers, *self._always]})

    async def _open(self, status: int, headers: Headers) -> None:
        if not self._opened:
            self._opened = True
            events = any(name == b"content-type" and b"event-stream" in value for name, value in headers)
            await self._start(status, [*headers, *_STREAM_HEADERS] if events else headers)

    async def _out(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as gone:
            raise ClientGone from gone

    def _look(self) -> None:
        self._help(self._wait_for_leaving())

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
            if not self._lock.locked():
                self._help(self._send_ping())
        self._pulse = self._loop.call_later(left, self._tick)

    async def _send_ping(self) -> None:
        async with self._lock:
            if self._ending or not self._ping:
                return
            await self._open(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
            self._last = self._loop.time()
            try:
                await self._out({"type": "http.response.body", "body": self._ping, "more_body": True})
            except ClientGone as gone:
                self.interrupt(gone)

    def _help(self, work: Any) -> None:
        helper = self._loop.create_task(work)
        self._helpers.add(helper)
        helper.add_done_callback(self._helpers.discard)
