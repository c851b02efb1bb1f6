"""The road of a stream: frames leave as they come, spliced into one message (or one behind the other, `appended`).

This file must not know what a frame looks like.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from loopway.dialects.base import Keep
from loopway.dialects.request import Request
from loopway.dialects.sse import EventTooLarge, Frame, Reader
from loopway.dialects.usage import added
from loopway.engine.answers import Answers
from loopway.engine.loop import Overridden, Result
from loopway.engine.reply import Reply
from loopway.errors import Broken, Reported
from loopway.exchange.calls import LARGEST_REPLY, coming_back, is_events
from loopway.exchange.json_road import encoded_override, read_reply, replaced
from loopway.exchange.state import Exchange
from loopway.upstream.response import UpstreamResponse

_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")

_STATUS_OF_TYPE = {
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "authentication_error": 401,
    "permission_error": 403,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "request_too_large": 413,
    "server_error": 500,
}
"""The HTTP status of an error that an upstream reports before anything else in its stream."""


class StreamRoad:
    """One exchange whose client wants a stream.

    Args:
        appended: Each iteration's bytes pass unchanged, the wire of the specification.
    """

    def __init__(self, exchange: Exchange, request: Request, *, appended: bool) -> None:
        self._exchange = exchange
        self._appended = appended
        self._waiting: list[bytes] | None = None  # under `appended`: a reply that a post hook is still to see
        settings = exchange.settings
        self._splicer = exchange.dialect.splicer(usage=settings.usage, include_usage=request.include_usage)
        exchange.sink.keep_alive(settings.keepalive_seconds, exchange.dialect.ping)

    async def call(self, request: Request, depth: int) -> Reply:
        """Call the model, send on what may go, fold the rest."""
        exchange, splicer = self._exchange, self._splicer
        response = await exchange.calls.send(request, depth)
        try:
            exchange.back = exchange.back or coming_back(response.headers)
            post_is_due = exchange.hooks.post_is_due
            hold_all = exchange.settings.interim_text == "never" or post_is_due
            self._waiting = [] if post_is_due and self._appended else None
            splicer.begin(self._holds(), everything=hold_all and not self._appended)
            exchange.phase = "stream"
            if is_events(response.headers):
                await self._feed(response)
            else:
                raw = await exchange.calls.timed(response.read(LARGEST_REPLY))
                await self._emit(exchange.dialect.render(read_reply(exchange, raw).value()))
        finally:
            await response.aclose()
        return splicer.reply()

    async def replaced(self, reply: Reply, depth: int) -> Reply:
        """The reply, or what the post hook of the plan behind it made of it; nothing of it has been sent."""
        exchange, splicer = self._exchange, self._splicer
        due = exchange.hooks.post_is_due
        made = await replaced(exchange, reply, depth)
        waiting, self._waiting = self._waiting, None
        if waiting and made is reply:
            await self._send(b"".join(waiting))
        if made is not reply:
            splicer.drop()
            self._begin(everything=True, counted=False)
            await self._emit(exchange.dialect.render(made.value()))
            made = splicer.reply()
        if due and exchange.settings.interim_text != "never" and not self._appended:
            await self._send(splicer.release())
        return made

    def _begin(self, *, everything: bool, counted: bool = True) -> None:
        """Begin an iteration; where everything waits, every call does."""
        holds: Keep = (lambda _name: True) if everything else self._holds()
        self._splicer.begin(holds, everything=everything, counted=counted)

    def leave_behind(self) -> None:
        """The last reply is not the answer: what is held of it never goes."""
        self._splicer.drop()

    async def show(self, answers: Answers) -> None:
        """Write what tools want the client to see, behind what it has."""
        exchange, splicer = self._exchange, self._splicer
        blocks = [block for one in answers.results for block in one.shown]
        usage: dict[str, Any] = {}
        for one in answers.results:
            usage = added(usage, dict(one.usage))
        if self._appended or not (blocks or usage):
            return
        exchange.usage = added(exchange.usage, usage)
        splicer.drop()
        splicer.begin(lambda _name: False)
        await self._emit(exchange.dialect.render(exchange.dialect.shown(blocks, usage)))

    async def answer(self, result: Result) -> None:
        """Write the ending."""
        exchange = self._exchange
        if isinstance(result, Overridden):
            await self._write_override(result.value)
        elif result.reply.fault:
            raise Broken(exchange.calls.upstream, "the upstream's stream ended before its answer was complete")
        if not self._appended:
            await self._send(self._splicer.finish(exchange.keep))
        await exchange.sink.close()

    async def _write_override(self, value: dict[str, Any]) -> None:
        """Write a whole message behind what was sent."""
        dialect = self._exchange.dialect
        frames = dialect.render(dialect.reply(encoded_override(self._exchange, value)).value())
        if not self._appended:
            self._splicer.begin(lambda _name: False, counted=False)
        await self._emit(frames)

    async def _feed(self, response: UpstreamResponse) -> None:
        exchange = self._exchange
        reader = Reader()
        size = 0
        try:
            async for chunk in exchange.calls.timed_chunks(response.chunks()):
                size += len(chunk)
                if size > LARGEST_REPLY:  # what is folded and held must end somewhere
                    raise Broken(exchange.calls.upstream, f"the upstream's stream has more than {LARGEST_REPLY} bytes")
                frames = reader.feed(chunk)
                if frames:
                    await self._take(frames)
        except EventTooLarge as wrong:
            await self._take(wrong.before)
            text = f"the upstream's stream is no stream of events: {wrong}"
            raise Broken(exchange.calls.upstream, text) from None

    async def _take(self, frames: Iterable[Frame]) -> None:
        """Frames of the upstream. Raises `Reported` if one of them is an error."""
        await self._emit(frames)
        if self._splicer.error is not None:
            raise self._reported(self._splicer.error)

    async def _emit(self, frames: Iterable[Frame]) -> None:
        """Feed frames, send on what may go."""
        splicer = self._splicer
        if not self._appended:
            await self._send(b"".join([splicer.feed(frame) for frame in frames]))
            return
        passed: list[bytes] = []
        for frame in frames:
            splicer.feed(frame)
            if splicer.error is not None:
                break  # whoever handles the failure writes it
            passed.append(frame.raw)
        if self._waiting is None:
            await self._send(b"".join(passed))
        else:
            self._waiting += passed

    async def _send(self, data: bytes) -> None:
        if not data:
            return
        sink = self._exchange.sink
        if not sink.opened:
            await sink.open(200, [*self._exchange.back, _EVENTS])
        if self._splicer.content:
            self._exchange.first_content()
        await sink.write(data)

    def _reported(self, data: bytes) -> Reported:
        status = 502
        try:
            kind = msgspec.json.decode(data)["error"]["type"]
            status = _STATUS_OF_TYPE.get(kind, status)
        except (msgspec.MsgspecError, KeyError, TypeError):
            pass
        return Reported(self._exchange.calls.upstream, data, status)

    def _holds(self) -> Keep:
        """Which calls of the next iteration must wait.

        A call waits while a hook may still claim it, or if it must never reach the client. A call of the client's
        behind one of the server's waits, too: if a hook answers the server's, the model asks for it again.
        """
        exchange = self._exchange
        if exchange.chain.any_name(exchange.dialect.name):
            return lambda _name: True
        mixed = False

        def holds(name: str) -> bool:
            nonlocal mixed
            mixed = mixed or not exchange.keep(name)
            return mixed

        return holds
