"""What is left of R with a client made of httptools alone: no time-outs, TLS, proxies, chunks, limits or retries.

It shows what the HTTP client costs, and is no client for anything else. Only answers with a length are read.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any
from urllib.parse import urlsplit

import httptools

UPSTREAM = urlsplit(os.environ["BENCH_UPSTREAM"])
HEAD = (
    f"HTTP/1.1\r\nhost: {UPSTREAM.netloc}\r\ncontent-type: application/json\r\naccept-encoding: identity\r\n"
).encode()
_idle: list[_Connection] = []


class _Connection(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self._done.set_result(self._parser.get_status_code())

    async def ask(self, path: bytes, body: bytes) -> int:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []
        self._done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(b"POST %b %bcontent-length: %d\r\n\r\n%b" % (path, HEAD, len(body), body))
        return await self._done


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Forward a request."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    message = await receive()
    if _idle:
        connection = _idle.pop()
    else:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, UPSTREAM.hostname, UPSTREAM.port)
    status = await connection.ask(scope["raw_path"], message["body"])
    body = b"".join(connection.body)
    kept = [(name, value) for name, value in connection.headers if name == b"content-type"]
    _idle.append(connection)
    kept.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": kept})
    await send({"type": "http.response.body", "body": body})
