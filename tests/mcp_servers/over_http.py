"""MCP servers over HTTP in this process, on real sockets: started, stopped and started again in no time.

This file must not know what a test wants of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from mcp_servers import tools_server


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Requests:
    """An ASGI application in front of the server's.

    Args:
        app: The server's.
        old: Whether it is a server from before 2026-07-28, which knows the handshake alone.
        refuses: Answers every request with this status instead.
    """

    def __init__(self, app: Any, *, old: bool, refuses: int) -> None:
        self._app = app
        self._old = old
        self._refuses = refuses
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.headers.append(headers)
        status = self._refuses or (400 if self._old and headers.get("mcp-method") == "server/discover" else 0)
        if status:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app(scope, receive, send)


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def served(
    port: int | None = None, *, old: bool = False, refuses: int = 0
) -> AsyncIterator[tuple[str, Requests]]:
    """A server's address, and what it has been asked."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port or 0))
    app = Requests(tools_server.made().streamable_http_app(), old=old, refuses=refuses)
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=0)
    server = _Quiet(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    listening.listen()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", app
    finally:
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # as if it were killed: nobody gets another byte
        server.should_exit = True
        await task
