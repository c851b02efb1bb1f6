"""R, the yardstick: the least that forwards a request in Python. A bare ASGI function with the aiohttp client.

Every figure of the benchmark is a ratio to it, measured in the same run. It must not know the gateway.
"""

from __future__ import annotations

import os
from typing import Any

import aiohttp

UPSTREAM = os.environ["BENCH_UPSTREAM"]
_session: aiohttp.ClientSession


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Forward a request; the answer goes on chunk by chunk."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
        return
    message = await receive()
    parts = [message["body"]]
    while message.get("more_body"):
        message = await receive()
        parts.append(message["body"])
    body = b"".join(parts)
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    async with _session.post(UPSTREAM + scope["path"], data=body, headers=headers) as answer:
        kept = [(b"content-type", answer.headers["content-type"].encode())]
        if answer.content_length is not None:
            body = await answer.read()
            kept.append((b"content-length", b"%d" % len(body)))
            await send({"type": "http.response.start", "status": answer.status, "headers": kept})
            await send({"type": "http.response.body", "body": body})
            return
        await send({"type": "http.response.start", "status": answer.status, "headers": kept})
        async for chunk in answer.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _live(receive: Any, send: Any) -> None:
    global _session  # noqa: PLW0603 - the one client of the process
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            _session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            await send({"type": "lifespan.startup.complete"})
        else:
            await _session.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
