"""The HTTP surface: paths to exchanges. What each header means on the way in is said here, once.

This file must not know how an exchange runs. The two paths that models answer are plain ASGI inside Litestar: it
routes, they read bytes and write bytes.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from litestar import asgi
from litestar.handlers import ASGIRouteHandler

from loopway.dialects.base import Dialect
from loopway.engine.notes import Began, Ended, Listener, Subject
from loopway.errors import ClientGone, ExchangeError, MethodNotAllowed, NotFound, TooLarge
from loopway.exchange import Driver, Incoming
from loopway.ids import new_id
from loopway.server.admission import Admission
from loopway.server.auth import Keys, bearer
from loopway.server.failures import answer
from loopway.server.respond import Receive, Responder, Send

Scope = Any

_SANE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")
_TRAVELS = frozenset({b"accept", b"user-agent", b"content-type"})
_TRAVELS_PREFIX = (b"anthropic-", b"openai-")
_TRACE = frozenset({b"traceparent", b"tracestate"})


class Head(msgspec.Struct):
    """The headers of a request, sorted by what they are for. Names are in lower case, as ASGI has them."""

    request_id: str
    travel: tuple[tuple[bytes, bytes], ...]
    auth: tuple[tuple[bytes, bytes], ...]
    keys: tuple[bytes, ...]
    trace: dict[str, str]
    length: int | None
    loops: str | None
    stream_mode: str | None
    chunked: bool
    anthropic: bool


def read_head(headers: Iterable[tuple[bytes, bytes]]) -> Head:
    """Sort the headers; what is not named here does not travel."""
    travel: list[tuple[bytes, bytes]] = []
    auth: list[tuple[bytes, bytes]] = []
    keys: list[bytes] = []
    trace: dict[str, str] = {}
    request_id = ""
    length: int | None = None
    loops = stream_mode = None
    chunked = anthropic = False
    for name, value in headers:
        if name in _TRAVELS or name.startswith(_TRAVELS_PREFIX):
            travel.append((name, value))
            anthropic = anthropic or name == b"anthropic-version"
        elif name == b"x-api-key":
            auth.append((name, value))
            keys.append(value.strip())
        elif name == b"authorization":
            auth.append((name, value))
            keys.append(bearer(value))
        elif name == b"content-length":
            length = int(value) if value.isdigit() else None
        elif name == b"transfer-encoding":
            chunked = True
        elif name in _TRACE:
            key, text = name.decode(), value.decode("latin-1")
            trace[key] = f"{trace[key]},{text}" if key in trace else text  # RFC 9110, section 5.3
        elif name == b"x-request-id":
            request_id = value.decode() if _SANE_ID.fullmatch(value) else ""
        elif name == b"x-max-agentic-loops":
            loops = value.decode("latin-1").strip()
        elif name == b"x-loopway-stream":
            stream_mode = value.decode("latin-1").strip()
    return Head(
        request_id=request_id or new_request_id(),
        travel=tuple(travel),
        auth=tuple(auth),
        keys=tuple(keys),
        trace=trace,
        length=length,
        loops=loops,
        stream_mode=stream_mode,
        chunked=chunked,
        anthropic=anthropic,
    )


def new_request_id() -> str:
    """An id for a request that brought none."""
    return f"req_{new_id()}"


class Door:
    """What every endpoint needs: who may come in, how many, how large, and who is told.

    Args:
        timeout_seconds: Most time of one exchange.
        max_body_bytes: Most bytes of a request body.
    """

    def __init__(
        self,
        *,
        keys: Keys,
        admission: Admission,
        listener: Listener,
        timeout_seconds: float,
        max_body_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keys = keys
        self.admission = admission
        self.listener = listener
        self.timeout_seconds = timeout_seconds
        self.max_body_bytes = max_body_bytes
        self.clock = clock

    async def read(self, receive: Receive, head: Head) -> bytes:
        """The whole body. Raises `TooLarge`, and `ClientGone` if it never ends."""
        if head.length is not None and head.length > self.max_body_bytes:
            raise self._too_large()
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message.get("body", b"")
        if len(body) > self.max_body_bytes:
            raise self._too_large()
        if not message.get("more_body"):
            return body
        parts = [body]
        size = len(body)
        while message.get("more_body"):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > self.max_body_bytes:
                raise self._too_large()
            parts.append(part)
        return b"".join(parts)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body has more than {self.max_body_bytes} bytes (server.max_body_bytes)")


def exchange_route(
    dialect: Dialect, door: Door, driver: Driver, *, path: str = "", loop: bool = True
) -> ASGIRouteHandler:
    """The endpoint of one dialect, or one that is only passed on to the model's upstream.

    Args:
        path: Another path than the dialect's own.
        loop: Whether hooks may see it.
    """
    path = path or dialect.path

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        head = read_head(scope["headers"])
        subject = Subject(
            request_id=head.request_id,
            dialect=dialect.name,
            began=door.clock(),
            method=scope["method"],
            route=path,
            traceparent=head.trace.get("traceparent", ""),
            tracestate=head.trace.get("tracestate", ""),
            http=functools.partial(_seen, scope),
        )
        sink = Responder(receive, send, head.request_id, closing=door.admission.draining)
        try:
            if scope["method"] != "POST":
                raise MethodNotAllowed(f"{scope['method']} {path}: send a POST", "POST")
            holder = door.keys.holder(head.keys)
            door.admission.enter(sink)
        except ExchangeError as refused:
            await _refuse(refused, dialect, door, subject, sink)
            return
        subject.key_name = holder.name
        door.listener(subject, Began())
        sink.add(subject.answer_headers)
        sink.limit(door.timeout_seconds)

        async def body() -> bytes:
            read = await door.read(receive, head)
            sink.watch()
            return read

        incoming = Incoming(
            dialect=dialect,
            path=path,
            loop=loop,
            body=body,
            query=scope["query_string"].decode("latin-1"),
            headers=head.travel,
            client_auth=head.auth,
            trace_headers=head.trace,
            loops=head.loops,
            stream_mode=head.stream_mode,
            key_name=holder.name,
            key_models=holder.models,
        )
        try:
            await driver.run(incoming, subject, sink)
        finally:
            sink.release()
            door.admission.leave(sink)
        # An aborted answer is left unfinished: the server then cuts the connection.

    return asgi(path, is_mount=False, copy_scope=False)(serve)


def _seen(scope: Scope) -> dict[str, str | int]:
    """What a trace shows of a request; see `Subject.http`."""
    seen: dict[str, str | int] = {"scheme": scope.get("scheme") or "http", "version": scope.get("http_version") or ""}
    if server := scope.get("server"):
        seen["host"] = server[0]
        if server[1] is not None:
            seen["port"] = server[1]
    if client := scope.get("client"):
        seen["client"] = client[0]
    for name, value in scope["headers"]:
        if name == b"user-agent":
            seen["user_agent"] = value.decode("latin-1")
    return seen


async def _refuse(refused: ExchangeError, dialect: Dialect, door: Door, subject: Subject, sink: Responder) -> None:
    status, headers, body = answer(refused, dialect, subject.request_id)
    await sink.whole(status, headers, body)
    door.listener(
        subject,
        Ended(
            status=status,
            iterations=0,
            seconds=door.clock() - subject.began,
            admitted=False,
            delivered=status,
            error=refused.kind,
            error_text=refused.text,
        ),
    )


def not_found(path: str) -> NotFound:
    """No endpoint has this path."""
    return NotFound(f"there is no {path[:200]!r} here; see GET /v1/models, POST /v1/messages, /v1/chat/completions")
