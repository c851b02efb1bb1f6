"""Runs exchanges: does what the loop asks for, on the road that the client wants, and tells how it ended.

This file must not know Litestar, YAML or what a frame looks like. Before the first byte a failure is a status, after
it an error event; `Sink.opened` decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, assert_never

import msgspec

from loopway.dialects.base import status_of
from loopway.dialects.request import Request
from loopway.dialects.text import text_of_messages, text_of_reply
from loopway.engine.answers import Answers
from loopway.engine.limits import loops_asked
from loopway.engine.loop import Call, Decided, Gate, Keep, Overridden, Plan, Result, run
from loopway.engine.notes import Listener, Said, Subject
from loopway.engine.plan import Answered, Decision, Rerun
from loopway.engine.reply import Reply
from loopway.errors import (
    BadRequest,
    Broken,
    ClientGone,
    ExchangeError,
    NotAllowed,
    Refused,
    ThreadUnsupported,
)
from loopway.exchange.json_road import JsonRoad
from loopway.exchange.passing import pass_through
from loopway.exchange.ports import Incoming, LoopSettings, Sink, StreamMode
from loopway.exchange.state import Exchange
from loopway.exchange.stream_road import StreamRoad
from loopway.hooks.chain import Asked, Chain
from loopway.hooks.failure import told
from loopway.hooks.kept import KeptHalves
from loopway.hooks.rules import Rules
from loopway.hooks.served import PLACE, ServedTools
from loopway.hooks.toolbox import Toolbox
from loopway.hooks.view import TooDeep
from loopway.upstream.routing import Router


class Road(Protocol):
    """How replies are read and the answer is written."""

    async def call(self, request: Request, depth: int) -> Reply:
        """Call the model."""
        ...

    async def replaced(self, reply: Reply, depth: int) -> Reply:
        """Let a post hook replace the reply of a rerun."""
        ...

    def leave_behind(self) -> None:
        """The last reply is not the answer."""
        ...

    async def show(self, answers: Answers) -> None:
        """Show the client what tools want it to see, and count what they add to its usage."""
        ...

    async def answer(self, result: Result) -> None:
        """Write the answer."""
        ...


class Driver:
    """Runs exchanges. The gateway's lifetime; what belongs to one exchange is in `state.Exchange`.

    Args:
        router: Model names to upstreams.
        chain: The hooks.
        toolbox: The server tools.
        kept: The server's halves of mixed replies.
        rules: What fails a request or an answer by its text.
        settings: How loops are run.
        listener: Is told each note.
        background: Runs what is left when an answer is out (clean-up hooks).
        clock: Seconds, rising.
    """

    def __init__(
        self,
        *,
        router: Router,
        chain: Chain,
        toolbox: Toolbox,
        kept: KeptHalves,
        rules: Rules,
        settings: LoopSettings,
        listener: Listener,
        background: Callable[[Coroutine[Any, Any, None]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._chain = chain
        self._toolbox = toolbox
        self._kept = kept
        self._rules = rules
        self._settings = settings
        self._listener = listener
        self._background = background
        self._clock = clock
        self._said: set[str] = set()

    async def run(self, incoming: Incoming, subject: Subject, sink: Sink) -> None:
        """Run one exchange to its end, whatever that is. Raises nothing but cancellation and our own mistakes."""
        exchange = Exchange(
            incoming,
            subject,
            sink,
            settings=self._settings,
            router=self._router,
            chain=self._chain,
            listener=self._listener,
            clock=self._clock,
        )
        try:
            await self._run(exchange)
        except ClientGone:
            exchange.gone = exchange.phase
        except ExchangeError as error:
            await self._fail(exchange, error)
        except TooDeep as wrong:
            text = f"the answer of the upstream {exchange.calls.upstream!r} cannot be looked at: {wrong}"
            await self._fail(exchange, Broken(exchange.calls.upstream, text))
        except asyncio.CancelledError:
            why = exchange.sink.interrupted
            if not isinstance(why, ExchangeError):
                exchange.gone = exchange.phase
            if why is None:
                raise
            await self._interrupted(exchange, why)
        except Exception as mistake:
            exchange.tell(Said("internal_error", told(mistake)))
            await self._fail(exchange, ExchangeError("the gateway failed; its log says why"))
            raise
        finally:
            if exchange.session is not None and exchange.session.has_cleanup:
                self._background(exchange.session.cleanup())
            exchange.ended()

    async def _interrupted(self, exchange: Exchange, why: ExchangeError | ClientGone) -> None:
        """The sink has cancelled the exchange: it goes on for its last words."""
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        if isinstance(why, ExchangeError):
            await self._fail(exchange, why)

    # --- before the first iteration ---

    async def _run(self, exchange: Exchange) -> None:
        request = await self._read(exchange)
        if exchange.incoming.loop:
            request = await self._pre_call(exchange, request)
        mode = self._stream_mode(exchange.incoming)
        if not self._watched(exchange, request, mode):
            if self._chain.has_pre_call and request.stream:
                exchange.sink.keep_alive(0, b"")  # the bytes that come now are the upstream's alone
            await pass_through(exchange, request)
            return
        if request.thread:
            raise ThreadUnsupported
        exchange.owned = self._chain.owned | exchange.served.names
        if exchange.served.names:
            request = request.offering(exchange.served.to_inject(request.tool_names))
        appended = mode == "appended"
        road: Road = StreamRoad(exchange, request, appended=appended) if request.stream else JsonRoad(exchange)
        if exchange.served.names:
            request = await self._restored(exchange, request)
        result = await self._loop(exchange, road, request)
        if self._rules.after:
            value = result.value if isinstance(result, Overridden) else result.reply.value()
            self._rules.check_reply(text_of_reply(value), exchange.subject)
        await road.answer(result)

    @staticmethod
    async def _restored(exchange: Exchange, request: Request) -> Request:
        """The request with the server's halves of earlier mixed replies back in its history."""
        history = exchange.asked.history()
        if not history:
            return request
        exchange.phase = "hook"
        kept = await exchange.served.find(history)
        return request.restored(kept) if kept else request

    @staticmethod
    async def _read(exchange: Exchange) -> Request:
        incoming, subject = exchange.incoming, exchange.subject
        request = exchange.asked = exchange.dialect.request(await incoming.body())
        subject.model = request.model
        subject.stream = request.stream
        exchange.router.routes(request.model, exchange.dialect.name)
        subject.known = True
        if not incoming.may_use(request.model):
            raise NotAllowed(f"the key {incoming.key_name!r} may not use the model {request.model!r}")
        exchange.declared = request.client_tools
        return request

    async def _pre_call(self, exchange: Exchange, request: Request) -> Request:
        """Let pre-call hooks change the request, and find the limit of the exchange."""
        incoming = exchange.incoming
        asked = request.loops
        if asked is None and incoming.loops is not None:
            asked = _loops_of_header(incoming.loops)
        if self._chain.has_pre_call:
            exchange.phase = "hook"
            if request.stream:
                exchange.sink.keep_alive(self._settings.keepalive_seconds, exchange.dialect.ping)
            before = request.loops
            request = await exchange.hooks.pre_call(request, self._accept(exchange))
            exchange.phase = "request"
            if request.loops != before:
                asked = request.loops
        if self._rules.before:
            said = [{"content": request.system()}, *request.messages()]
            self._rules.check_request(text_of_messages(said), exchange.subject)
        own = self._router.routes(request.model, exchange.dialect.name)[0].max_agentic_loops
        if own is not None:
            exchange.limits = msgspec.structs.replace(exchange.limits, loops=own)
        exchange.limits = exchange.limits.asked(asked)
        exchange.served = self._served(exchange, request)
        return request

    def _served(self, exchange: Exchange, request: Request) -> ServedTools:
        """The server tools of this exchange. A tool that the client declares itself is the client's."""
        offers = self._toolbox.offers(request.model) if self._toolbox.sources else {}
        for name in exchange.declared & offers.keys():
            del offers[name]
        for name in [name for name, offer in offers.items() if not offer.tool.inject]:
            if name not in request.tool_names:
                del offers[name]
        surface = exchange.dialect.name
        return ServedTools(self._toolbox, self._kept, exchange.subject, surface, offers, self._clock)

    @staticmethod
    def _accept(exchange: Exchange) -> Callable[[Request, dict[str, Any]], Request]:
        def accept(request: Request, data: dict[str, Any]) -> Request:
            changed = request.replaced(data)
            if changed.stream != request.stream:
                raise BadRequest("$.stream: it was changed; whether the answer streams is the client's own choice")
            exchange.router.routes(changed.model, exchange.dialect.name)
            return changed

        return accept

    def _stream_mode(self, incoming: Incoming) -> StreamMode:
        name = "x-loopway-stream"
        asked = incoming.stream_mode
        if asked is None:
            return self._settings.stream
        if asked in _STREAM_MODES:
            return _STREAM_MODES[asked]
        raise BadRequest(f"{name}: it is {asked[:40]!r}; write merged or appended", name)

    def _watched(self, exchange: Exchange, request: Request, mode: StreamMode) -> bool:
        """Whether the loop is run on this request."""
        surface = exchange.dialect.name
        if not exchange.incoming.loop:
            return False
        if self._rules.after:
            if not request.single:
                raise BadRequest("$.n: the gateway's rules read one reply; leave n out", "$.n")
            return True
        if not exchange.served.names and not self._chain.watches(surface, lambda: request.tool_names):
            return False
        if not request.single:
            self._say_once(exchange, "loop_not_run", "n > 1 asks for several replies; no loop is run on such requests")
            return False
        # The specification's wire does not inspect streams of Chat Completions.
        return not (request.stream and mode == "appended" and surface == "chat_completions")

    def _say_once(self, exchange: Exchange, event: str, detail: str) -> None:
        """Tell the operator something that is worth one line, not one per request."""
        if event not in self._said:
            self._said.add(event)
            exchange.tell(Said(event, detail))

    # --- the loop ---

    async def _loop(self, exchange: Exchange, road: Road, request: Request) -> Result:
        """Do what the loop asks for, until it has a result."""
        clock, session = self._clock, exchange.hooks
        began = clock()
        loop = run(
            request,
            exchange.limits,
            owned=exchange.owned,
            declared=exchange.declared,
            seconds=lambda: clock() - began,
            served=exchange.served.names,
        )
        first = request
        command = next(loop)
        while True:
            if exchange.sink.interrupted is not None:
                raise exchange.sink.interrupted  # a hook has swallowed the cancellation
            answer: Reply | Any = None
            match command:
                case Call(current, depth):
                    request = current
                    answer = await self._call(exchange, road, request, depth)
                case Gate():
                    exchange.phase = "hook"
                    answer = await session.gate(command, _asked(request))
                    if answer is None:
                        answer = exchange.served.claim(command, exchange.declared, exchange.owned)
                case Plan():
                    exchange.phase = "hook"
                    exchange.planner = command.claim.name
                    answer = await self._plan(exchange, road, command, request)
                case Keep(current, reply):
                    exchange.phase = "hook"
                    await self._keep(exchange, first, current, reply)
                case Decided():
                    exchange.decided(command)
                    if command.outcome in ("rerun", "override"):
                        road.leave_behind()
                    if command.outcome == "rerun" and exchange.last is not None:
                        exchange.interim.append(exchange.last)
                case _:
                    assert_never(command)
            try:
                command = loop.send(answer)
            except StopIteration as done:
                result: Result = done.value
                return result
            except BadRequest as wrong:
                raise exchange.refused(f"its request_patch does not fit: {wrong.text}") from wrong
            except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as wrong:
                raise exchange.refused(f"its request_patch is no JSON: {wrong}") from wrong

    @staticmethod
    async def _call(exchange: Exchange, road: Road, request: Request, depth: int) -> Reply:
        exchange.phase = "upstream"
        began = exchange.clock()
        reply = await road.call(request, depth)
        exchange.reply_came(reply, depth, exchange.clock() - began)
        made = await road.replaced(reply, depth)
        if made is not reply:
            exchange.last = made
        return made

    async def _plan(self, exchange: Exchange, road: Road, command: Plan, request: Request) -> Decision:
        """Ask the hook that claimed for its plan, or answer the calls of server tools."""
        served = exchange.served
        if command.claim.hook == PLACE:
            exchange.hooks.planned = None
            decision: Decision = await served.plan(command)
        else:
            decision = await exchange.hooks.plan(command, _asked(request))
            self._check_model(exchange, decision, command.depth)
            if isinstance(decision, Rerun) and decision.patch.messages is not None and served.of(command.reply):
                await self._complete(exchange, road, command, request, decision)
        if isinstance(decision, Answered):
            await road.show(decision.answers)
        return decision

    @staticmethod
    async def _complete(exchange: Exchange, road: Road, command: Plan, request: Request, decision: Rerun) -> None:
        """A hook answered its calls of a reply that calls server tools as well: answer those in the same rerun."""
        messages = decision.patch.messages or []
        there = msgspec.json.encode(messages)
        left = [call for call in exchange.served.of(command.reply) if msgspec.json.encode(call.id) not in there]
        if not left or request.completed(messages, Answers(command.reply, ())) is None:
            return
        answers = Answers(command.reply, await exchange.served.answers(left, command.depth))
        decision.patch.messages = request.completed(messages, answers)
        await road.show(answers)

    @staticmethod
    async def _keep(exchange: Exchange, first: Request, current: Request, reply: Reply) -> None:
        """Keep the server's half of a mixed reply, with the turns of the loop that the client has not seen."""
        before, now = first.messages(), current.messages()
        turns = now[len(before) :] if now[: len(before)] == before else []
        turns.append(current.assistant_turn(reply))
        theirs = [call for call in reply.calls if exchange.keep(call.name)]
        ours = [call for call in reply.calls if not exchange.keep(call.name)]
        mark = exchange.asked.mark([(call.id, call.name, call.arguments) for call in theirs])
        await exchange.served.keep(theirs, ours, mark=mark, turns=turns, depth=exchange.iterations - 1)

    @staticmethod
    def _check_model(exchange: Exchange, decision: Decision, depth: int) -> None:
        """A patch may only name a configured model that speaks this dialect."""
        if not isinstance(decision, Rerun) or decision.patch.model is None:
            return
        try:
            exchange.router.routes(decision.patch.model, exchange.dialect.name)
        except ExchangeError as wrong:
            raise exchange.refused(f"request_patch.model: {wrong.text}", depth=depth) from None

    # --- failures ---

    @staticmethod
    async def _fail(exchange: Exchange, error: ExchangeError) -> None:
        """Tell the client: a status before the first byte, an error event after it."""
        dialect, sink, request_id = exchange.dialect, exchange.sink, exchange.subject.request_id
        status = status_of(error, dialect)
        exchange.failed(error, status)
        before = sink.interrupted
        try:
            if not sink.opened:
                await sink.whole(status, _failure_headers(exchange, error), dialect.error_body(error, request_id))
            elif exchange.subject.stream:
                await sink.write(dialect.error_event(error, request_id))
                await sink.close()
            else:
                sink.abort()
        except ClientGone:
            exchange.gone = exchange.phase
        except asyncio.CancelledError:
            if sink.interrupted is before:
                raise
            exchange.gone = exchange.phase  # it was told, did not read, and left or was out of time
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()


_STREAM_MODES: dict[str, StreamMode] = {"merged": "merged", "appended": "appended"}


def _failure_headers(exchange: Exchange, error: ExchangeError) -> list[tuple[bytes, bytes]]:
    headers: list[tuple[bytes, bytes]] = []
    if isinstance(error, Refused):
        headers += error.headers
    else:
        headers.append((b"content-type", b"application/json"))
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if exchange.iterations and not exchange.subject.stream:
        headers.append((b"x-loopway-iterations", b"%d" % exchange.iterations))
    return headers


def _asked(request: Request) -> Asked:
    return Asked(
        model=request.model,
        stream=request.stream,
        offered=request.tool_names,
        messages=request.messages,
        tools=request.tools,
        optional_params=request.optional_params,
    )


def _loops_of_header(value: str) -> int:
    name = "x-max-agentic-loops"
    try:
        return loops_asked(int(value) if value.isascii() and value.isdigit() else value[:40])
    except ValueError as wrong:
        raise BadRequest(f"{name}: it {wrong}", name) from None
