"""A gateway's life: listen, be ready, drain, end. One process, or several with one supervisor.

This file must not know what is served. All waits of the shutdown are derived from `server.drain_seconds`.

On SIGTERM or SIGINT: `/readyz` says 503 at once while the listeners stay open, idle connections are closed, new
requests are sent away, open exchanges go on for `drain_seconds`, what is left then ends with the dialect's error,
telemetry is flushed, the exit code is 0. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import json
import os
import signal
import socket
import struct
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, Self

import httptools
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from loopway.app import Gateway

_BACKLOG = 2048
_IDLE_SECONDS = 75
"""How long an idle client connection is kept: longer than the 60 s of common load balancers."""
_HEAD_SECONDS = 30
"""How long the head of a request may take to come in."""
_LARGEST_HEAD = 64 * 1024
"""Bytes that a request's head may have, and so may what stands behind a piece of its body. One read more passes."""
_TICKS_PER_LOOK = 50
"""Connections are looked at once in so many of uvicorn's ticks, which are a tenth of a second."""
_LEAST_TAKEN = 64 * 1024
"""Bytes of a complete answer that a client takes in `_IDLE_SECONDS`, if it takes it at all."""
_LINGER_SECONDS = 2.0
"""How long a connection whose last answer is out waits for the rest of its request."""
_CLOSE_SECONDS = 1
"""How long a server waits for its connections when all exchanges are over."""
_FLUSH_SECONDS = 5.0
_ALLOCATIONS = 20_000
"""How many objects more than were freed make the collector look. An exchange makes no cycles that live long, but at
Python's own 700 some tens of exchanges at once, or the spans that wait to be sent, are looked at again and again."""
AFTER_DRAIN_SECONDS = 10.0
"""The end is at most so long after `drain_seconds`: last errors and clean-up hooks (3 s), connections, the flush."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Unbound(OSError):
    """An address could not be listened on; the text says which and why."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `Unbound`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(_BACKLOG)
            made.setblocking(False)
        except OSError:
            made.close()
            raise
    except OSError as wrong:
        raise Unbound(f"cannot listen on {host}:{port}: {wrong.strerror or wrong}") from wrong
    return made


class _State(ServerState):
    """What the connections of a server share.

    Attributes:
        draining: Each connection ends with the answer that it waits for; one that waits for none is closed.
        closing: So are the new ones that have not sent anything yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.draining = False
        self.closing = False


class _Connection(HttpToolsProtocol):
    """One client connection, which knows how to end without losing a request or an answer.

    uvicorn bounds neither the size of a head nor the time that it takes, and gives up on a body behind an `Upgrade`.
    """

    server_state: _State

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._in_head = False
        self._upgrading = False
        self._framing = 0  # bytes that have come since the last piece of a body, or the last end of a head
        self._waits_for: object = self
        self._waits_since = 0.0
        self._lingering: asyncio.TimerHandle | None = None
        self._unsent, self._unsent_since = 0, 0.0

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._framing += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay(data[upgrade.args[0] :])
        except httptools.HttpParserError as wrong:
            large = isinstance(wrong.__context__, _HeadTooLarge)
            self._refuse(*(_TOO_LARGE if large else (400, "this is no valid HTTP request")))
        else:
            if self._framing > _LARGEST_HEAD:
                self._refuse(*_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._upgrading = True
            return
        self._in_head = False
        if self._framing > _LARGEST_HEAD:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > _LARGEST_HEAD:
                raise _HeadTooLarge
        self._framing = 0
        super().on_headers_complete()
        if self.server_state.draining:
            self._make_last()

    def on_body(self, body: bytes) -> None:
        self._framing = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        self._framing = 0
        super().on_message_complete()
        if self._lingering is not None:
            self.transport.close()

    def look(self, now: float) -> None:
        """End if a head does not come in, or if nothing was ever asked, or nothing is any more.

        Where an answer is complete or cut, end also if its client does not take it.
        """
        if self._stalls(now):
            self.transport.abort()
            return
        answered = self.cycle is not None and self.cycle.response_complete and self.timeout_keep_alive_task is None
        if not (self._in_head or self.cycle is None or answered):
            self._waits_for = self
        elif self._waits_for is not self.scope:
            self._waits_for, self._waits_since = self.scope, now
        elif now - self._waits_since >= (_HEAD_SECONDS if self._in_head else _IDLE_SECONDS):
            if self._in_head:
                self._refuse(408, f"the head of the request took more than {_HEAD_SECONDS} seconds")
            else:
                self.transport.close()

    def _stalls(self, now: float) -> bool:
        """Whether what is left of an answer waits in vain: less than `_LEAST_TAKEN` of it went in `_IDLE_SECONDS`."""
        unsent = self.transport.get_write_buffer_size()
        under_way = self.cycle is not None and not self.cycle.response_complete and not self.transport.is_closing()
        if not unsent or under_way:
            self._unsent = 0
        elif not self._unsent or unsent <= self._unsent - _LEAST_TAKEN:
            self._unsent, self._unsent_since = unsent, now
        else:
            return now - self._unsent_since >= _IDLE_SECONDS
        return False

    def _stay(self, rest: bytes) -> None:
        """Answer a request for another protocol in this one, as RFC 9110, section 7.8 lets a server do.

        The parser takes what is behind such a head for the other protocol, so the request is read again without it.
        Java's HTTP client asks for h2c in each request, with its body behind it.
        """
        self._upgrading = False
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(400, "CONNECT: this server is no proxy")
            return
        lines = [b"%b %b HTTP/1.1" % (method, self.url)]
        for name, value in self.headers:
            if name == b"connection":
                value = b"close" if b"close" in value.lower() else b"keep-alive"  # noqa: PLW2901 - what is left of it
            if name not in {b"upgrade", b"http2-settings"}:
                lines.append(b"%b: %b" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self._framing = 0
        self.data_received(b"\r\n".join([*lines, b"", rest]))

    def _refuse(self, status: int, text: str) -> None:
        """Answer what is no request of any dialect, in a shape that both can read, and end."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            error = {"type": "invalid_request_error", "message": text, "param": None, "code": None}
            body = json.dumps({"type": "error", "error": error}).encode()
            head = "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.format(status, HTTPStatus(status).phrase, len(body)).encode() + body)
        self.transport.close()  # behind a part of an answer nothing can be said

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End as soon as nothing is under way: a request that is coming is answered first."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._make_last()
        elif self._in_head or self._unread():
            return
        elif self.cycle is not None or self.server_state.closing:
            self.transport.close()

    def end(self) -> None:
        """Close behind the last answer, once its request has come in.

        Closed earlier, the kernel would reset the connection, and the client could lose the answer.
        """
        if not (self.cycle.response_complete and self.cycle.more_body):
            self.transport.close()
        elif self._lingering is None:
            self._lingering = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _make_last(self) -> None:
        self.cycle.keep_alive = False
        self.cycle.transport = _LastAnswer(self)  # type: ignore[assignment]

    def _unread(self) -> bool:
        """Whether bytes wait in the kernel."""
        buffer = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
        return bool(struct.unpack("i", buffer)[0])


class _HeadTooLarge(Exception):
    """A head has more than `_LARGEST_HEAD` bytes."""


_TOO_LARGE = (431, f"the head of the request has more than {_LARGEST_HEAD} bytes")


class _LastAnswer:
    """The transport as a connection's last answer sees it: closing it waits for the request."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing

    def close(self) -> None:
        self._connection.end()


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to us and its lifespan to the application it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state: _State = _State()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_LOOK == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                connection.look(now)  # type: ignore[union-attr]
        return await super().on_tick(counter)

    def drain(self) -> None:
        """Close idle connections; each of the others ends with its next answer."""
        self.server_state.draining = True
        for connection in list(self.server_state.connections):
            connection.shutdown()

    def close(self) -> None:
        """End."""
        self.server_state.draining = self.server_state.closing = True
        self.should_exit = True


def _server(app: Any, *, lifespan: bool) -> _Server:
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=_Connection,
        ws="none",
        lifespan="on" if lifespan else "off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
    )
    return _Server(config)


class Serving:
    """A gateway that listens: an async context manager. Leaving it drains.

    Args:
        gateway: What is served.
        main: Listening sockets for clients.
        admin: Listening sockets for metrics and health; none leaves them on the main port only.
    """

    def __init__(self, gateway: Gateway, main: Sequence[socket.socket], admin: Sequence[socket.socket] = ()) -> None:
        self.gateway = gateway
        self._main = _server(gateway.app, lifespan=True)
        self._servers = [(self._main, list(main))]
        if admin:
            self._servers.append((_server(gateway.admin, lifespan=False), list(admin)))
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._running = [asyncio.create_task(server.serve(sockets=sockets)) for server, sockets in self._servers]
        while not all(server.started for server, _ in self._servers):
            done, _ = await asyncio.wait(self._running, timeout=0.005, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                raise RuntimeError("a server ended before it had started")
        return self

    async def __aexit__(self, *_exit: object) -> None:
        await self.drain()

    async def until_it_ends(self) -> None:
        """Wait for a server to end by itself, which none should. Raises `RuntimeError` then."""
        await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        raise RuntimeError("a server ended by itself")

    def start_draining(self) -> None:
        """Be ready no more, send new requests away, close idle connections. Exchanges go on."""
        self.gateway.admission.draining = True
        self._main.drain()

    def stop_listening(self) -> None:
        """Give the addresses free, as another process may want them."""
        for server, sockets in self._servers:
            for listening in getattr(server, "servers", ()):  # none before it has started
                listening.close()
            for one in sockets:
                one.close()

    async def drain(self, seconds: float | None = None) -> None:
        """Let open exchanges end, at most `server.drain_seconds`, then close everything."""
        limit = self.gateway.settings.server.drain_seconds if seconds is None else seconds
        self.start_draining()
        await self.gateway.admission.drain(limit)
        for server, _ in self._servers:
            server.close()
        for result in await asyncio.gather(*self._running, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result


async def serve(
    gateway: Gateway,
    main: Sequence[socket.socket],
    admin: Sequence[socket.socket] = (),
    *,
    ready: Callable[[], None] = lambda: None,
    flush: Callable[[], None] = lambda: None,
    supervisor: socket.socket | None = None,
) -> None:
    """Serve until a signal, then drain.

    Args:
        gateway: What is served.
        main: Listening sockets for clients.
        admin: Listening sockets for metrics and health.
        ready: Called once requests are taken.
        flush: Sends off what telemetry still holds; may block, and is left behind after some seconds.
        supervisor: A byte from here is the order to drain, its end says that the supervisor is dead. With it SIGINT
            means nothing, and a second signal is the supervisor's business: who sends one to a whole group of
            processes reaches each worker twice.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    serving = Serving(gateway, main, admin)

    def on_signal() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, _end_at_once if supervisor is None else signal.SIG_IGN)
        begin()

    def on_word(supervisor: socket.socket) -> None:
        loop.remove_reader(supervisor.fileno())
        if not supervisor.recv(1):
            serving.stop_listening()
        begin()

    def begin() -> None:
        if not stop.is_set():
            serving.start_draining()
            stop.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    if supervisor is not None:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        loop.add_reader(supervisor.fileno(), on_word, supervisor)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # a supervisor starts its workers with them blocked
    async with serving:
        gc.collect()
        gc.freeze()  # what start-up made stays for good: the collector need not look at it again
        gc.set_threshold(_ALLOCATIONS)
        if not stop.is_set():
            ready()
        stopping = asyncio.create_task(stop.wait())
        ending = asyncio.create_task(serving.until_it_ends())
        done, _ = await asyncio.wait([stopping, ending], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        ending.cancel()
        if ending in done:
            ending.result()
    await _in_time(flush)


def _end_at_once(*_: object) -> None:
    os._exit(1)


async def _in_time(flush: Callable[[], None]) -> None:
    """Flush, on a thread that nothing waits for when it takes too long."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def work() -> None:
        try:
            flush()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it was too late
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=work, name="telemetry-flush", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FLUSH_SECONDS):
            await done.wait()


def run(work: Any) -> None:
    """Run a coroutine on the event loop that serves best here."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)
