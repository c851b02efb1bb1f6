"""The road of a JSON answer: replies are read whole, the answer is made when the loop has ended.

This file must not know streams.
"""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from loopway.dialects.request import Request
from loopway.dialects.usage import added
from loopway.engine.answers import Answers
from loopway.engine.loop import Finished, Overridden, Result, Stopped
from loopway.engine.reply import Reply
from loopway.errors import Broken
from loopway.exchange.calls import LARGEST_REPLY, coming_back, is_events
from loopway.exchange.state import Exchange


class JsonRoad:
    """One exchange whose client wants JSON."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._shown: list[tuple[int, Reply]] = []  # what tools show, by the number of the reply that called them

    async def call(self, request: Request, depth: int) -> Reply:
        """Call the model and read its reply."""
        exchange = self._exchange
        response = await exchange.calls.send(request, depth)
        try:
            exchange.back = coming_back(response.headers)
            if is_events(response.headers):
                raise Broken(exchange.calls.upstream, "the upstream answered with a stream that was not asked for")
            raw = await exchange.calls.timed(response.read(LARGEST_REPLY))
        finally:
            await response.aclose()
        return read_reply(exchange, raw)

    async def replaced(self, reply: Reply, depth: int) -> Reply:
        """The reply, or what the post hook of the plan behind it made of it."""
        return await replaced(self._exchange, reply, depth)

    def leave_behind(self) -> None:
        """The last reply is not the answer."""

    async def show(self, answers: Answers) -> None:
        """Keep what the answer will begin with."""
        exchange = self._exchange
        for one in answers.results:
            exchange.usage = added(exchange.usage, dict(one.usage))
            if one.shown:
                value = exchange.dialect.shown(one.shown, {})
                self._shown.append((len(exchange.interim), Reply(raw=msgspec.json.encode(value))))

    async def answer(self, result: Result) -> None:
        """Write the answer."""
        exchange = self._exchange
        settings = exchange.settings
        headers = [
            *exchange.back,
            (b"content-type", b"application/json"),
            (b"x-loopway-iterations", b"%d" % result.iterations),
        ]
        match result:
            case Overridden(value):
                body = encoded_override(exchange, value)
            case Finished(reply) | Stopped(reply):
                if isinstance(result, Stopped):
                    headers.append((b"x-loopway-abort", result.breach.encode()))
                summed = result.iterations > 1 and settings.usage == "sum"
                body = exchange.dialect.final(
                    reply,
                    keep=exchange.keep,
                    interim=self._front(),
                    usage=exchange.usage if summed and exchange.usage else None,
                )
            case _:
                assert_never(result)
        exchange.first_content()
        await exchange.sink.whole(200, headers, body)

    def _front(self) -> list[Reply]:
        """What the answer begins with: the earlier replies, where asked for, and behind each what its tools show."""
        exchange = self._exchange
        always = exchange.settings.interim_text == "always"
        front: list[Reply] = []
        for number, reply in enumerate(exchange.interim):
            front += [reply] if always else []
            front += [shown for place, shown in self._shown if place == number]
        return front


def read_reply(exchange: Exchange, raw: bytes) -> Reply:
    """Read a JSON reply. Raises `Broken` if it is none."""
    try:
        return exchange.dialect.reply(raw)
    except (ValueError, RecursionError) as wrong:
        raise Broken(exchange.calls.upstream, f"the upstream's answer is no reply: {wrong}") from None


async def replaced(exchange: Exchange, reply: Reply, depth: int) -> Reply:
    """The reply, or what the post hook of the plan behind it made of it. Raises `HookFailed`."""
    if reply.fault or not exchange.hooks.post_is_due:
        return reply
    exchange.phase = "hook"
    value = await exchange.hooks.post(reply, depth)
    if value is None:
        return reply
    try:
        return exchange.dialect.reply(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as wrong:
        text = f"what it returned is no reply: {wrong}"
        raise exchange.refused(text, phase="post", depth=depth) from None


def encoded_override(exchange: Exchange, value: dict[str, Any]) -> bytes:
    """A hook's own reply as bytes. Raises `HookFailed` if it is none of this dialect."""
    try:
        raw = msgspec.json.encode(value)
        exchange.dialect.reply(raw)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as wrong:
        raise exchange.refused(f"its response_override is no reply: {wrong}") from None
    return raw
