"""No hook watches: bytes in, bytes out. Nothing is parsed, except that a stream which just ends gets an error.

This file must not know the loop.
"""

from __future__ import annotations

import asyncio
import contextlib

from loopway.dialects.glimpse import Ends, Glimpse, glimpse
from loopway.dialects.request import Request
from loopway.engine.loop import Decided
from loopway.errors import Broken, ClientGone, UpstreamError
from loopway.exchange.calls import coming_back, is_events
from loopway.exchange.ports import Headers
from loopway.exchange.state import Exchange
from loopway.upstream.response import UpstreamResponse

_SMALL = 256 * 1024
"""Bytes of a JSON reply that is passed on in one piece."""
_COMPLETE = (b'"error"', b'"finish_reason":"', b'"finish_reason": "')
"""What else the end of a complete stream may hold: some servers forget the last event."""
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


async def pass_through(exchange: Exchange, request: Request) -> None:
    """Send a request to its upstream and its answer to the client."""
    loop = exchange.incoming.loop
    exchange.phase = "upstream"
    began = exchange.clock()
    response = await exchange.calls.send(request, 0)
    try:
        headers = coming_back(response.headers, b"content-type", b"content-encoding")
        if loop and not request.stream:
            headers.append((b"x-loopway-iterations", b"1"))
        length = response.length
        if not request.stream and length is not None and length <= _SMALL:
            body = await exchange.calls.timed(response.read(_SMALL, raw=True))
            exchange.passed_on(glimpse(body), exchange.clock() - began)
            exchange.first_content()
            await exchange.sink.whole(response.status, headers, body)
        else:
            exchange.phase = "stream"
            events = request.stream and is_events(response.headers) and not response.encoded
            if length is not None and not events:  # behind events there must be room for an error
                headers.append((b"content-length", b"%d" % length))
            told = await _pass_chunks(exchange, response, headers, events=events)
            exchange.passed_on(told, exchange.clock() - began)
    finally:
        if loop:
            exchange.decided(Decided(0, "skip"))
        await response.aclose()


async def _pass_chunks(exchange: Exchange, response: UpstreamResponse, headers: Headers, *, events: bool) -> Glimpse:
    sink = exchange.sink
    ends = Ends()
    try:
        async for chunk in exchange.calls.timed_chunks(response.raw_chunks()):
            if not sink.opened:
                await sink.open(response.status, headers)
            if events:
                ends.passed(chunk)
            if ends.content or not events:
                exchange.first_content()
            await sink.write(chunk)
    except (UpstreamError, asyncio.CancelledError) as wrong:
        with contextlib.suppress(ClientGone):  # who does not take this does not take the error either; that one counts
            if not events:
                _cut(exchange)
            elif isinstance(wrong, UpstreamError):
                await _end_event(exchange, ends.last)
            elif not isinstance(sink.interrupted, ClientGone):
                await _end_event(exchange, b"it may have been on its way")
        raise
    if not sink.opened:
        await sink.open(response.status, headers)
    if events and not any(word in ends.last for word in (exchange.dialect.tail, *_COMPLETE)):
        await _end_event(exchange, ends.last)
        raise Broken(exchange.calls.upstream, "the upstream's stream ended before its answer was complete")
    await sink.close()
    return ends.told()


async def _end_event(exchange: Exchange, last: bytes) -> None:
    """End an event that was cut, so that the error behind it is one of its own.

    Its half becomes a ping, which no client of Messages reads; those of Chat Completions look at no names, and raise
    because it is no JSON.
    """
    if exchange.sink.opened and last and not last.endswith(_EVENT_ENDS):
        await exchange.sink.write(b"\nevent: ping\n\n")


def _cut(exchange: Exchange) -> None:
    """What has gone is no stream of events: nothing can be said behind a part of it."""
    if exchange.sink.opened:
        exchange.sink.abort()
