"""One upstream: sends a call, tries again where that is safe, hands out the answer as it comes.

This file must not know a wire format, a model's name, the settings or the gateway's clients. It speaks the
httpx transport interface, so that an instrumentation or a test can stand between it and the sockets.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Literal

import httpx
import msgspec
from multidict import CIMultiDict

from loopway._version import __version__
from loopway.errors import BadRequest, Broken, Unreachable, UpstreamError
from loopway.upstream.errors_table import TRANSPORT_ERRORS, translate
from loopway.upstream.pool import LARGEST_HEAD, Target, open_pool
from loopway.upstream.response import UpstreamResponse
from loopway.upstream.retry import RETRYABLE, backoff, pause_after_status
from loopway.upstream.transport import Address, Sent

__all__ = ["USER_AGENT", "Auth", "Headers", "Target", "Try", "Upstream", "UpstreamResponse", "open_pool"]

Auth = Literal["x-api-key", "bearer"]
"""How an upstream's own key travels: Anthropic's header, or OpenAI's."""

Headers = Sequence[tuple[bytes, bytes]]
"""Header lines, names in lower case."""

USER_AGENT = f"loopway/{__version__}".encode()
"""What an upstream sees if the client named itself by nothing."""

_NEVER = frozenset(
    {
        b"accept-encoding",
        b"authorization",
        b"connection",
        b"content-length",
        b"cookie",
        b"host",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-api-key",
    }
)
_CACHED = 64
"""Addresses, and heads, that are kept. Clients send the same ones again and again."""
_LONGEST_CACHED_QUERY = 100
_HIGHEST_STATUS = 599
_NOTHING: Mapping[str, str] = {}


class Try(msgspec.Struct, frozen=True):
    """One try of a call.

    Attributes:
        status: The status that came, or 0 if no head came.
        seconds: From the start of the try to its head or its failure.
        error_kind: The `kind` of the error that it ended in, "cancelled", or None if a head came.
    """

    status: int
    seconds: float
    error_kind: str | None = None


class Upstream:
    """One model server and the connections to it.

    Args:
        target: Where it is and how it is called.
        transport: Stands between this and the sockets, for instrumentation (around `open_pool(target)`) and
            tests.
        sleep: Waits so many seconds between two tries.
        draw: A random number in [0, 1), for the pauses.

    Raises:
        ConfigError: The target's address, headers, certificates or proxy cannot work.
    """

    def __init__(
        self,
        target: Target,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.target = target
        self.name = target.name
        address = target.address()
        self.host: str = address.host
        self.port: int | None = address.port
        query = address.query.decode("ascii")
        self._base = str(address.copy_with(query=None, fragment=None)).rstrip("/")
        self._query = query
        self._transport = transport if transport is not None else open_pool(target)
        self._sleep = sleep
        self._draw = draw
        self._extra = [(name.lower().encode(), value.encode()) for name, value in target.headers.items()]
        self._ours = _NEVER | {name for name, _ in self._extra}
        self._addresses: dict[tuple[str, str], Address] = {}
        self._heads: dict[tuple[Headers, Auth, bool], CIMultiDict[str]] = {}
        self._timeouts = {
            "timeout": {
                "connect": target.connect_timeout,
                "pool": target.connect_timeout,
                "read": target.read_timeout,
            }
        }

    def __repr__(self) -> str:
        return f"Upstream({self.name!r})"

    async def send(
        self,
        path: str,
        query: str,
        headers: Headers,
        body: bytes,
        *,
        auth: Auth,
        client_auth: Headers = (),
        trace: Mapping[str, str] = _NOTHING,
        method: str = "POST",
        tried: Callable[[Try], None] | None = None,
        deadline: float | None = None,
    ) -> UpstreamResponse:
        """Send a call; the answer's head is there when this returns.

        Tried again, up to `max_retries` times: no connection or one that broke before the head, and the
        statuses in `retry.RETRYABLE`. Never after a silence, since the call may be running. An answer with
        such a status that is left in the end comes back as any other answer.

        Args:
            path: As `/v1/messages`.
            query: Without the question mark; it travels as it is.
            headers: What travels of the client's headers, with lower-case names. Keys, cookies and what
                belongs to a connection are left out here in any case.
            body: The whole body.
            auth: How the upstream's key travels.
            client_auth: The client's own key headers; used only if the target forwards them.
            trace: The trace context; another one in each call.
            method: The HTTP method.
            tried: Told of each try.
            deadline: No further try begins behind this time of the monotonic clock, in seconds.

        Raises:
            Unreachable: No connection, or it broke before the head.
            Silent: No connection or no head in time.
            Broken: The answer is no HTTP, or a redirect.
            BadRequest: The query string cannot be part of an address.
        """
        address = self._address(path, query)
        fields = self._head(headers, body, auth, client_auth)
        for name, value in trace.items():
            if name not in fields:
                fields[name] = value
        tries = 0
        while True:
            tries += 1
            request = Sent(method, address, fields, body, self._timeouts)
            pause: float | None
            try:
                response = await self._try(request, tried)
            except Unreachable:
                pause = backoff(tries, self._draw())
                if not self._may_wait(tries, pause, deadline):
                    raise
            else:
                if response.status not in RETRYABLE:
                    return response
                pause = pause_after_status(
                    response.status, dict(response.headers), tries=tries, draw=self._draw(), now=time.time()
                )
                if pause is None or not self._may_wait(tries, pause, deadline):
                    return response
                await response.aclose()
            await self._sleep(pause)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()

    def _may_wait(self, tries: int, pause: float, deadline: float | None) -> bool:
        if tries > self.target.max_retries:
            return False
        return deadline is None or time.monotonic() + pause < deadline

    async def _try(self, request: Sent, tried: Callable[[Try], None] | None) -> UpstreamResponse:
        began = time.monotonic()
        status = 0
        error_kind: str | None = "internal_error"
        try:
            try:
                answer = await self._transport.handle_async_request(request)
            except TRANSPORT_ERRORS as error:
                raise translate(self.name, error, "head") from error
            response = UpstreamResponse(self.name, answer)
            status = response.status
            wrong = _wrong(response)
            if wrong is not None:
                await response.aclose()
                raise Broken(self.name, f"the upstream {self.name!r} {wrong}")
            error_kind = None
        except asyncio.CancelledError:
            error_kind = "cancelled"
            raise
        except UpstreamError as error:
            error_kind = error.kind
            raise
        finally:
            if tried is not None:
                tried(Try(status, time.monotonic() - began, error_kind))
        return response

    def _address(self, path: str, query: str) -> Address:
        known = self._addresses.get((path, query))
        if known is not None:
            return known
        whole = "&".join(part for part in (self._query, query) if part)
        doubled = self._base.endswith("/v1") and path.startswith("/v1/")
        text = self._base + (path.removeprefix("/v1") if doubled else path)
        try:
            made = Address(f"{text}?{whole}" if whole else text)
        except httpx.InvalidURL as error:
            raise BadRequest("the query string cannot be part of an address") from error
        if len(query) <= _LONGEST_CACHED_QUERY:
            if len(self._addresses) >= _CACHED:
                self._addresses.clear()
            self._addresses[path, query] = made
        return made

    def _head(self, headers: Headers, body: bytes, auth: Auth, client_auth: Headers) -> CIMultiDict[str]:
        """The header fields of a call, for its own use."""
        if self.target.forward_client_auth and client_auth:  # clients' keys are not kept
            return _fields(self._lines(headers, body, auth, client_auth))
        key = (tuple(headers), auth, bool(body))
        known = self._heads.get(key)
        if known is None:
            known = _fields(self._lines(headers, body, auth, ()))
            if len(self._heads) >= _CACHED:
                self._heads.clear()
            self._heads[key] = known
        return known.copy()

    def _lines(self, headers: Headers, body: bytes, auth: Auth, client_auth: Headers) -> list[tuple[bytes, bytes]]:
        ours = self._ours
        lines = [line for line in headers if line[0] not in ours]
        names = {name for name, _ in lines}
        lines += self._extra
        names.update(name for name, _ in self._extra)
        if b"accept-encoding" not in names:
            lines.append((b"accept-encoding", b"identity"))
        if body and b"content-type" not in names:
            lines.append((b"content-type", b"application/json"))
        if b"user-agent" not in names:
            lines.append((b"user-agent", USER_AGENT))
        if self.target.forward_client_auth and client_auth:
            lines += [line for line in client_auth if line[0] not in names]
        elif self.target.api_key is not None:
            line = _key_line(auth, self.target.api_key)
            if line[0] not in names:
                lines.append(line)
        return lines


def _fields(lines: Sequence[tuple[bytes, bytes]]) -> CIMultiDict[str]:
    """Header lines as aiohttp wants them; bytes that are no UTF-8 are read as Latin-1."""
    fields: CIMultiDict[str] = CIMultiDict()
    for name, value in lines:
        try:
            fields.add(name.decode("ascii"), value.decode())
        except UnicodeDecodeError:
            fields.add(name.decode("latin-1"), value.decode("latin-1"))
    return fields


def _key_line(auth: Auth, key: str) -> tuple[bytes, bytes]:
    if auth == "x-api-key":
        return b"x-api-key", key.encode()
    return b"authorization", b"Bearer " + key.encode()


def _wrong(response: UpstreamResponse) -> str | None:
    """Why a head is no answer, or None."""
    if response.head_size > LARGEST_HEAD:
        return f"sent a header of more than {LARGEST_HEAD} bytes"
    if not HTTPStatus.OK <= response.status <= _HIGHEST_STATUS:
        return f"answered with status {response.status}, which is no answer"
    if HTTPStatus.MULTIPLE_CHOICES <= response.status < HTTPStatus.BAD_REQUEST:
        return f"answered with a redirect ({response.status}); set its base_url to the address it points to"
    return None
