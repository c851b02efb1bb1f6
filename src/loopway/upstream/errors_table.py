"""What broke on the way to a model server, as one of this project's errors: one table, most specific first.

This file must not know when a call is tried again, nor what a body means.

The httpx-aiohttp transport turns most of aiohttp's connection errors into `httpx.ConnectTimeout`, so the
cause of an httpx error decides before the error itself does.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Literal

import aiohttp
import httpx
import msgspec

from loopway.errors import Broken, Silent, Unreachable, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Iterator

Where = Literal["head", "body"]
"""Whether the head of the answer was still awaited, or its body was being read."""

TRANSPORT_ERRORS = (httpx.HTTPError, aiohttp.ClientError, OSError)
"""What a call may raise that this table knows. `OSError` includes `TimeoutError`."""


class _Row(msgspec.Struct, frozen=True):
    errors: tuple[type[BaseException], ...]
    head: type[UpstreamError]
    body: type[UpstreamError]
    text: str
    body_text: str | None = None


_CONNECT = "did not take a connection in time; check base_url and connect_timeout_seconds"
_SILENCE = "sent nothing for longer than read_timeout_seconds"
_NO_HTTP = "answered with something that is no HTTP answer; check that base_url is the address of an HTTP API"
_CLOSED = "closed the connection before it answered"
_CUT = "broke off in the middle of its answer"

_TABLE = (
    _Row(
        (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError),
        Unreachable,
        Broken,
        "has a certificate that is not trusted; check base_url, and ca_file for a private authority",
    ),
    _Row(
        (aiohttp.ClientConnectorSSLError, ssl.SSLError),
        Unreachable,
        Broken,
        "did not agree on TLS; check the scheme and the port of base_url",
        _CUT,
    ),
    _Row(
        (aiohttp.ClientConnectorDNSError,),
        Unreachable,
        Broken,
        "has a host name that does not resolve; check base_url",
    ),
    _Row(
        (aiohttp.ClientProxyConnectionError,),
        Unreachable,
        Broken,
        "is behind a proxy that cannot be reached; check proxy and the *_PROXY variables",
    ),
    _Row(
        (aiohttp.ClientHttpProxyError,),
        Unreachable,
        Broken,
        "is behind a proxy that refused the connection; check proxy and the *_PROXY variables",
    ),
    _Row(
        (aiohttp.ClientConnectorError,),
        Unreachable,
        Broken,
        "cannot be reached; check base_url and that the server is up",
    ),
    _Row((aiohttp.ConnectionTimeoutError,), Silent, Silent, _CONNECT),
    _Row((aiohttp.ServerTimeoutError,), Silent, Silent, _SILENCE),
    _Row((aiohttp.ClientPayloadError,), Broken, Broken, _CUT),
    _Row((aiohttp.ClientResponseError,), Broken, Broken, _NO_HTTP),
    _Row((aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError), Unreachable, Broken, "has no usable base_url"),
    _Row((aiohttp.ClientError,), Unreachable, Broken, _CLOSED, _CUT),
    _Row((httpx.ConnectTimeout, httpx.PoolTimeout), Silent, Silent, _CONNECT),
    _Row((httpx.TimeoutException,), Silent, Silent, _SILENCE),
    _Row((httpx.ProtocolError, httpx.DecodingError), Broken, Broken, _NO_HTTP, _CUT),
    _Row(
        (httpx.ConnectError,),
        Unreachable,
        Broken,
        "cannot be reached; check base_url and that the server is up",
        _CUT,
    ),
    _Row((httpx.HTTPError,), Unreachable, Broken, _CLOSED, _CUT),
    _Row((TimeoutError,), Silent, Silent, _SILENCE),
    _Row((OSError,), Unreachable, Broken, _CLOSED, _CUT),
)


def _candidates(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, httpx.HTTPError) and isinstance(error.__cause__, TRANSPORT_ERRORS):
        yield error.__cause__
    yield error


def translate(upstream: str, error: BaseException, where: Where) -> UpstreamError:
    """The error to raise (`from error`) for one of `TRANSPORT_ERRORS`.

    The text names the upstream and what to check; never an address, a header or a key.
    """
    for candidate in _candidates(error):
        for row in _TABLE:
            if isinstance(candidate, row.errors):
                kind = row.head if where == "head" else row.body
                text = row.body_text if where == "body" and row.body_text else row.text
                return kind(upstream, f"the upstream {upstream!r} {text}")
    return Broken(upstream, f"the upstream {upstream!r} {_CUT}")
