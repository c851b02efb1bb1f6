"""Where an upstream is and how it is reached: its address, its certificates, its proxy, its connections.

This file must not know what is sent, nor what an answer means. It reads the standard proxy variables, once.
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import ssl
import urllib.request
from typing import TYPE_CHECKING

import aiohttp
import httpx
import msgspec

from loopway.errors import ConfigError, Problem
from loopway.upstream.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

LARGEST_HEAD = 64 * 1024
"""Bytes that the header of an answer may have."""

IDLE_SECONDS = 20.0
"""How long an idle connection is kept for the next call."""

MOST_HEADERS = 512
"""Header lines that an answer may have."""

_FRAMING = frozenset({"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2: token
_SKIPPED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One configured upstream, in plain values. Its `repr` shows no key, header or password.

    Attributes:
        name: Its name in the configuration; texts, logs and metrics use it.
        base_url: Where its API begins. A `/v1` at the end is not doubled.
        api_key: What it is called with, or None for no key.
        headers: Added to every call; they win over what the client sent.
        connect_timeout: Seconds for name look-up, connection and TLS together.
        read_timeout: Seconds of silence, before the head and between two pieces of the body.
        max_retries: Further tries, only before the first byte of an answer is handed on.
        ca_file: A PEM file with the certificate authorities to trust in place of the public ones.
        proxy: An HTTP proxy; None means the standard `*_PROXY` and `NO_PROXY` variables.
        forward_client_auth: Call it with the client's own key where the client sent one.
    """

    name: str
    base_url: str
    api_key: str | None = None
    headers: Mapping[str, str] = {}
    connect_timeout: float = 5.0
    read_timeout: float = 300.0
    max_retries: int = 2
    ca_file: str | None = None
    proxy: str | None = None
    forward_client_auth: bool = False

    def __repr__(self) -> str:
        return f"Target(name={self.name!r})"

    def refuse(self, key: str, text: str) -> ConfigError:
        """The error for a value of this target that cannot work."""
        return ConfigError("configuration", [Problem(f"upstreams.{self.name}.{key}", text)])

    def address(self) -> httpx.URL:
        """The parsed `base_url`. Raises `ConfigError`."""
        try:
            url = httpx.URL(self.base_url)
        except httpx.InvalidURL as error:
            raise self.refuse("base_url", "is no address; write it as https://host/path") from error
        if url.scheme not in {"http", "https"} or not url.host:
            raise self.refuse("base_url", "has no scheme or host; write it as https://host/path")
        if url.userinfo:
            raise self.refuse("base_url", "holds a user name; write credentials as api_key or in headers")
        return url


def proxy_of(target: Target) -> str | None:
    """The proxy for this target, or None for a direct way. Raises `ConfigError` for one that is not HTTP."""
    proxy, key = target.proxy, "proxy"
    if proxy is None:
        url = target.address()
        found = urllib.request.getproxies()
        proxy, key = found.get(url.scheme) or found.get("all"), "base_url"
        host = url.host if url.port is None else f"{url.host}:{url.port}"
        if proxy is None or urllib.request.proxy_bypass(host):
            return None
        if "://" not in proxy:
            proxy = f"http://{proxy}"
    try:
        address = httpx.URL(proxy)
    except httpx.InvalidURL as error:
        raise target.refuse(key, "the proxy is no address; write it as http://host:port") from error
    if address.scheme not in {"http", "https"} or not address.host:
        raise target.refuse(key, "the proxy is no HTTP proxy; write http://host:port, or use NO_PROXY")
    return proxy


@functools.cache
def _public_authorities() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def authorities(target: Target) -> ssl.SSLContext:
    """Which certificates are trusted. Raises `ConfigError` for a `ca_file` that cannot be read."""
    if target.ca_file is None:
        return _public_authorities()
    try:
        return ssl.create_default_context(cafile=target.ca_file)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        text = f"{target.ca_file!r} is no readable PEM file with certificates"
        raise target.refuse("ca_file", text) from error


def check_headers(target: Target) -> None:
    """Refuse configured headers that would break the framing of a call. Raises `ConfigError`."""
    for name, value in target.headers.items():
        if name.lower() in _FRAMING:
            raise target.refuse(f"headers.{name}", "belongs to the connection, not to a configuration; remove it")
        if not (_NAME.fullmatch(name) and value.isascii() and (value.isprintable() or not value)):
            raise target.refuse(f"headers.{name}", "is no HTTP header; write one line of printable ASCII")


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that notices a peer that is gone, also when a long answer is awaited without a byte."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    return made


class _Answer(aiohttp.ClientResponse):
    """An answer whose reader is always woken when the connection goes.

    aiohttp 3.14 leaves the reader of a body waiting for ever, without its read time-out, when its C parser meets a
    chunk size that is no number.
    """

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        await super().start(connection)
        content, protocol = self.content, connection.protocol
        closed = None if protocol is None else protocol.closed
        if closed is None or content.is_eof():
            return self

        def gone(closed: asyncio.Future[None]) -> None:
            if not closed.cancelled():
                closed.exception()  # it is known now
            if not content.is_eof() and content.exception() is None:
                content.set_exception(aiohttp.ClientPayloadError("the connection was lost in the body"))

        def whole() -> None:
            closed.remove_done_callback(gone)

        closed.add_done_callback(gone)
        content.on_eof(whole)
        return self


class _Connector(aiohttp.TCPConnector):
    """Connections on which nothing came while nothing was asked.

    aiohttp keeps such bytes for whoever asks next, which would be given somebody else's answer.
    """

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        while (found := await super()._get(key, traces)) is not None:
            if found.protocol is not None and not found.protocol.should_close:
                return found
            found.close()
        return None


def open_pool(target: Target) -> httpx.AsyncBaseTransport:
    """The connections to one upstream, opened when the first call needs one.

    There is no limit on their number, the gateway's own admission bounds it. No cookies, netrc or redirects.
    Raises `ConfigError` for certificates, headers or a proxy that cannot work.
    """
    check_headers(target)
    proxy = proxy_of(target)
    trusted = authorities(target)

    def session() -> aiohttp.ClientSession:
        connector = _Connector(limit=0, ssl=trusted, keepalive_timeout=IDLE_SECONDS, socket_factory=_socket)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=proxy,
            skip_auto_headers=_SKIPPED,
            max_line_size=LARGEST_HEAD,
            max_field_size=LARGEST_HEAD,
            max_headers=MOST_HEADERS,
            auto_decompress=False,
            response_class=_Answer,
        )

    return Transport(trusted, session, connect_timeout=target.connect_timeout, read_timeout=target.read_timeout)
