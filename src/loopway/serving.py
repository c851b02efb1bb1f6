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
import os
import signal
import socket
import struct
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from loopway.app import Gateway

_BACKLOG = 2048
_IDLE_SECONDS = 75
"""How long an idle client connection is kept: longer than the 60 s of common load balancers."""
_LINGER_SECONDS = 2.0
"""How long a connection whose last answer is out waits for the rest of its request."""
_CLOSE_SECONDS = 1
"""How long a server waits for its connections when all exchanges are over."""
_FLUSH_SECONDS = 5.0
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
    """One client connection, which knows how to end without losing a request or an answer."""

    server_state: _State

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._in_head = False
        self._lingering: asyncio.TimerHandle | None = None

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        if self.server_state.draining:
            self._make_last()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._lingering is not None:
            self.transport.close()

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
