"""No hook watches: bytes in, bytes out. Nothing is parsed, except that a stream which just ends gets an error.

This file must not know the loop.
"""

from __future__ import annotations

from typing import Any

import msgspec

from loopway.dialects.request import Request
from loopway.engine.loop import Decided
from loopway.errors import Broken
from loopway.exchange.calls import as_it_came, coming_back, is_events
from loopway.exchange.ports import Headers
from loopway.exchange.state import Exchange
from loopway.upstream.response import UpstreamResponse

_SMALL = 256 * 1024
"""Bytes of a JSON reply that is passed on in one piece."""
_TAIL = 4096
"""Bytes of the end of a stream that are looked at."""
_COMPLETE = (b'"error"', b'"finish_reason":"', b'"finish_reason": "')
"""What else the end of a complete stream may hold: some servers forget the last event."""


async def pass_through(exchange: Exchange, request: Request) -> None:
    """Send a request to its upstream and its answer to the client."""
    loop = exchange.incoming.loop
    exchange.phase = "upstream"
    began = exchange.clock()
    response = await exchange.calls.send(request, 0)
    try:
        headers = [*coming_back(response.headers), *as_it_came(response.headers)]
        if loop and not request.stream:
            headers.append((b"x-loopway-iterations", b"1"))
        length = _length(response.headers)
        if not request.stream and length is not None and length <= _SMALL:
            body = await exchange.calls.timed(response.read(_SMALL, raw=True))
            exchange.passed_on(_usage_of(body), exchange.clock() - began)
            exchange.first_content()
            await exchange.sink.whole(response.status, headers, body)
        else:
            exchange.phase = "stream"
            if length is not None:
                headers.append((b"content-length", b"%d" % length))
            await _pass_chunks(exchange, response, headers)
            exchange.passed_on({}, exchange.clock() - began)
    finally:
        if loop:
            exchange.decided(Decided(0, "skip"))
        await response.aclose()


async def _pass_chunks(exchange: Exchange, response: UpstreamResponse, headers: Headers) -> None:
    sink = exchange.sink
    events = exchange.subject.stream and is_events(response.headers) and not response.encoded
    last = b""
    try:
        async for chunk in exchange.calls.timed_chunks(response.raw_chunks()):
            if not sink.opened:
                await sink.open(response.status, headers)
                exchange.first_content()
            await sink.write(chunk)
            if events:
                last = chunk[-_TAIL:] if len(chunk) >= _TAIL else (last + chunk)[-_TAIL:]
    except Broken:
        if events:
            await _end_event(exchange, last)
        raise
    if not sink.opened:
        await sink.open(response.status, headers)
    if events and not any(word in last for word in (exchange.dialect.tail, *_COMPLETE)):
        await _end_event(exchange, last)
        raise Broken(exchange.calls.upstream, "the upstream's stream ended before its answer was complete")
    await sink.close()


async def _end_event(exchange: Exchange, last: bytes) -> None:
    """End an event that was cut, so that the error behind it is one of its own."""
    if last and not last.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
        await exchange.sink.write(b"\n\n")


def _length(headers: Headers) -> int | None:
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


class _Usage(msgspec.Struct):
    usage: dict[str, Any] | None = None


_USAGE = msgspec.json.Decoder(_Usage)


def _usage_of(body: bytes) -> dict[str, Any]:
    """The usage of a reply that nobody else reads."""
    try:
        return _USAGE.decode(body).usage or {}
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return {}
