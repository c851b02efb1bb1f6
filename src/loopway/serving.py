"""A gateway's life: listen, be ready, drain, end. One process, or several with one supervisor.

This file must not know what is served. All waits of the shutdown are derived from `server.drain_seconds`.

On SIGTERM or SIGINT: `/readyz` says 503 at once while the listeners stay open, open exchanges go on for
`drain_seconds`, what is left then ends with the dialect's error, telemetry is flushed, the exit code is 0. A second
signal ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import uvicorn

from loopway.app import Gateway

_BACKLOG = 2048
_IDLE_SECONDS = 75
"""How long an idle client connection is kept: longer than the 60 s of common load balancers."""
_FLUSH_SECONDS = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to us and its lifespan to the application it serves."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: Any, *, lifespan: bool) -> _Server:
    config = uvicorn.Config(
        app,
        loop="uvloop" if sys.platform != "win32" else "auto",
        http="httptools",
        ws="none",
        lifespan="on" if lifespan else "off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=1,
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
        self._servers = [(_server(gateway.app, lifespan=True), list(main))]
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
        """Wait for a server to end by itself, which none should."""
        await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    async def drain(self, seconds: float | None = None) -> None:
        """Let open exchanges end, at most `server.drain_seconds`, then close everything."""
        limit = self.gateway.settings.server.drain_seconds if seconds is None else seconds
        await self.gateway.admission.drain(limit)
        for server, _ in self._servers:
            server.should_exit = True
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
) -> None:
    """Serve until a signal, then drain.

    Args:
        gateway: What is served.
        main: Listening sockets for clients.
        admin: Listening sockets for metrics and health.
        ready: Called once requests are taken.
        flush: Sends off what telemetry still holds; may block for some seconds.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)  # the second one: now
        gateway.admission.draining = True
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        async with Serving(gateway, main, admin) as serving:
            gc.collect()
            gc.freeze()  # what start-up made stays for good: the collector need not look at it again
            ready()
            stopping = asyncio.create_task(stop.wait())
            ending = asyncio.create_task(serving.until_it_ends())
            await asyncio.wait([stopping, ending], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            ending.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await asyncio.to_thread(flush)
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def run(work: Any) -> None:
    """Run a coroutine on the event loop that serves best here."""
    if sys.platform == "win32":
        asyncio.run(work)
        return
    import uvloop  # noqa: PLC0415 - not on every platform

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)
