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
from typing import Any

import uvicorn

from loopway.app import Gateway

_BACKLOG = 2048
_IDLE_SECONDS = 75
"""How long an idle client connection is kept: longer than the 60 s of common load balancers."""
_FLUSH_SECONDS = 5.0


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
        admin: Listening sockets for metrics and health; none puts them on the main port only.
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

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)

    servers = [(_server(gateway.app, lifespan=True), main)]
    if admin:
        servers.append((_server(gateway.admin, lifespan=False), admin))
    running = [asyncio.create_task(server.serve(sockets=list(sockets))) for server, sockets in servers]
    stopping = asyncio.create_task(stop.wait())
    while not all(server.started for server, _ in servers):
        done, _ = await asyncio.wait(running, timeout=0.005, return_when=asyncio.FIRST_COMPLETED)
        if done:
            break
    else:
        gc.collect()
        gc.freeze()  # what start-up made stays for good: the collector need not look at it again
        ready()
    await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
    gateway.admission.draining = True
    await gateway.admission.drain(gateway.settings.server.drain_seconds)
    for server, _ in servers:
        server.should_exit = True
    results = await asyncio.gather(*running, return_exceptions=True)
    stopping.cancel()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FLUSH_SECONDS):
            await asyncio.to_thread(flush)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def run(work: Any) -> None:
    """Run a coroutine on the event loop that serves best here."""
    if sys.platform == "win32":
        asyncio.run(work)
        return
    import uvloop  # noqa: PLC0415 - not on every platform

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)
