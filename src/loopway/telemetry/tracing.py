"""Notes to spans: one trace per exchange, in the names of CONTRACT section 8.

::

    POST /v1/messages           SERVER    Began … Ended
    └── agentic_loop.iteration  INTERNAL  the first CallBegan of a depth … IterationDecided
        ├── chat {model}        CLIENT    CallBegan … ReplyCame or CallFailed; a fallback is one more
        └── execute_tool {name} INTERNAL  ToolBegan … ToolRan

Phases of hooks, tries of an upstream that failed and the first content are events. What is open when the exchange ends
is ended then, so no exit leaves a span behind. Whether a trace is recorded is decided at its first span; where it is
not, no attribute is made. This file must not know how notes come about.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loopway._version import __version__
from loopway.engine.notes import (
    Began,
    CallBegan,
    CallEnded,
    CallFailed,
    Ended,
    FirstChunk,
    FirstContent,
    HookRan,
    IterationDecided,
    Note,
    ReplyCame,
    Subject,
    ToolBegan,
    ToolRan,
)
from loopway.telemetry import content, operation, otel
from loopway.telemetry.attributes import SERVER_ERROR, Attributes, for_sampler, of_call, of_exchange, of_reply, text_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

ITERATION = "agentic_loop.iteration"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})

_TOOL_ERRORS = {"error": "tool_error", "timeout": "timeout", "cancelled": "cancelled"}
_GONE = "cancelled"
"""The `error.type` of what was under way when the client left: nobody's failure, so no span status says error."""


class _Trace:
    """What is open of one exchange. `recorded` is false where only the headers are needed."""

    __slots__ = (
        "before", "chat", "chat_began", "chat_told", "context", "failed_hook", "iteration", "iteration_context",
        "recorded", "server", "tools", "tries",
    )  # fmt: skip

    def __init__(self, server: Span, context: Context, before: Context, *, recorded: bool) -> None:
        self.server = server
        self.context = context
        self.before = before
        self.recorded = recorded
        self.iteration: Span | None = None
        self.iteration_context = context
        self.chat: Span | None = None
        self.chat_began = 0
        self.chat_told: Attributes = {}
        self.tries = 0
        self.tools: dict[str, list[Span]] = {}
        self.failed_hook: str | None = None


class Tracing:
    """The listener that makes spans.

    Args:
        service_name: What traces call this gateway, unless `OTEL_SERVICE_NAME` says otherwise.
        provider_of: Dialect name to `gen_ai.provider.name`.
        where: Where spans go; None: to the provider that this process has already.
        provider: Use this one; for tests and embedding programs.
    """

    def __init__(
        self,
        *,
        service_name: str,
        provider_of: Callable[[str], str],
        where: otel.Export | None = None,
        provider: TracerProvider | None = None,
    ) -> None:
        self._service_name = service_name
        self._provider_of = provider_of
        self._where = where
        self._given = provider
        self._made: TracerProvider | None = None
        self._used: TracerProvider | None = None
        self._tracer: Tracer | None = None
        self._capture = content.wanted(os.environ)
        self._handlers: dict[type[Any], Callable[[Subject, _Trace, Any], None]] = {
            CallBegan: self._call_began,
            CallEnded: self._call_ended,
            FirstChunk: self._first_chunk,
            CallFailed: self._call_failed,
            ReplyCame: self._reply_came,
            FirstContent: self._first_content,
            HookRan: self._hook_ran,
            ToolBegan: self._tool_began,
            ToolRan: self._tool_ran,
            IterationDecided: self._iteration_decided,
            Ended: self._ended,
        }

    # --- its life ---

    def start(self) -> None:
        """From now on there are spans. The SDK is imported here."""
        from opentelemetry import context, trace  # noqa: PLC0415 - costs start-up time
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self._context, self._trace = context, trace
        self._attach = context.attach
        self._suppress = context._SUPPRESS_HTTP_INSTRUMENTATION_KEY  # noqa: SLF001 - instrumentations read this one
        self._w3c = TraceContextTextMapPropagator()
        used = self._given or otel.given_provider()
        if used is None and self._where is not None:
            used = self._made = otel.provider(self._where, self._service_name)
        self._used = used
        if used is not None:
            self._tracer = used.get_tracer("loopway", __version__, schema_url=otel.SCHEMA_URL)

    def stop(self, seconds: float = otel.FLUSH_SECONDS) -> bool:
        """Send what is left, at most so many seconds long; whether that was enough."""
        self._tracer = None
        made, self._made = self._made, None
        if made is not None:
            return otel.shut_down(made, seconds)
        if self._used is not None:
            return self._used.force_flush(int(seconds * 1000))
        return True

    def __call__(self, subject: Subject, note: Note) -> None:
        """Make, change or end spans."""
        kind = type(note)
        if kind is Began:
            self._began(subject)
            return
        held: _Trace | None = subject.state.get("trace")
        if held is None:
            if kind is Ended and not note.admitted:  # type: ignore[union-attr]
                self._turned_away(subject, note)  # type: ignore[arg-type]
            return
        if held.recorded:
            handler = self._handlers.get(kind)
            if handler is not None:
                handler(subject, held, note)
        elif kind is CallBegan:
            self._inject(held.server, note.headers)  # type: ignore[union-attr]
        elif kind is Ended:
            self._leave(subject, held)

    # --- the exchange ---

    def _began(self, subject: Subject) -> None:
        if self._tracer is None:
            return
        before = self._context.get_current()
        server = self._server(subject, before, None)
        recorded = server.is_recording()
        context = self._trace.set_span_in_context(server, before)
        self._attach(context)  # a hook's own spans, and clients that it calls with, stand under ours
        subject.state["trace"] = _Trace(server, context, before, recorded=recorded)

    def _server(self, subject: Subject, before: Context, start: int | None) -> Span:
        """The SERVER span; the sampler decides on its first attributes."""
        parent = before
        if subject.traceparent:
            carrier = {"traceparent": subject.traceparent}
            if subject.tracestate:
                carrier["tracestate"] = subject.tracestate
            parent = self._w3c.extract(carrier, self._context.Context())
        method = subject.method if subject.method in METHODS else "_OTHER"
        named = f"{method if method != '_OTHER' else 'HTTP'} {subject.route}"
        if self._tracer is None:
            raise RuntimeError("tracing was not started")
        span = self._tracer.start_span(
            named,
            parent,
            self._trace.SpanKind.SERVER,
            {"http.request.method": method, "http.route": subject.route, "url.path": subject.route},
            start_time=start,
        )
        made = span.get_span_context()
        trace_id = f"{made.trace_id:032x}"
        subject.state["trace_id"] = trace_id
        if made.trace_flags.sampled:
            subject.state["exemplar"] = {"trace_id": trace_id}
            subject.answer_headers.append((b"x-trace-id", trace_id.encode()))
        return span

    def _ended(self, subject: Subject, held: _Trace, note: Ended) -> None:
        if held.chat is not None:  # its failure was told; this is for a driver that has not
            self._end_chat(held, {"error.type": note.error or _GONE}, note.error_text or "", failed=note.gone is None)
        for span in [span for spans in held.tools.values() for span in spans]:
            span.set_attribute("error.type", _GONE)
            span.end()
        if held.iteration is not None:
            self._end_iteration(held, note)
        self._finish(subject, held.server, note)
        self._leave(subject, held)

    def _finish(self, subject: Subject, server: Span, note: Ended) -> None:
        if note.error is not None and note.status >= SERVER_ERROR:
            server.set_status(self._trace.StatusCode.ERROR, text_of(note.error_text or ""))
        otel.fill(server, of_exchange(subject, note))
        server.end()

    def _leave(self, subject: Subject, held: _Trace) -> None:
        del subject.state["trace"]
        self._attach(held.before)

    def _turned_away(self, subject: Subject, note: Ended) -> None:
        """A request that was refused at the door."""
        if self._tracer is None:
            return
        start = time.time_ns() - int(note.seconds * 1e9)
        server = self._server(subject, self._context.get_current(), start)
        if server.is_recording():
            self._finish(subject, server, note)

    # --- an iteration ---

    def _call_began(self, subject: Subject, held: _Trace, note: CallBegan) -> None:
        tracer, kinds = self._tracer, self._trace.SpanKind
        if tracer is None:
            return
        named = operation(subject.route)
        if held.iteration is None and named == "chat":
            held.iteration = tracer.start_span(
                ITERATION, held.context, kinds.INTERNAL, {"loopway.loop.depth": note.depth}
            )
            held.iteration_context = self._trace.set_span_in_context(held.iteration, held.context)
        held.chat_began = time.time_ns()
        held.tries = 0
        held.chat = tracer.start_span(
            f"{named} {note.model}",
            held.iteration_context,
            kinds.CLIENT,
            for_sampler(note, named, self._provider_of(subject.dialect)),
            start_time=held.chat_began,
        )
        held.chat_told = of_call(subject, note)
        if self._capture:
            held.chat_told |= content.of_request(note.content())
        self._inject(held.chat, note.headers)
        # An instrumentation of the HTTP client would make a second CLIENT span of this call.
        inside = self._trace.set_span_in_context(held.chat, held.iteration_context)
        self._attach(self._context.set_value(self._suppress, value=True, context=inside))

    def _call_ended(self, _subject: Subject, held: _Trace, note: CallEnded) -> None:
        if held.chat is None:
            return
        held.tries += 1
        if note.status:
            held.chat_told["http.response.status_code"] = note.status
        if held.tries > 1:
            held.chat_told["http.request.resend_count"] = held.tries - 1
        if note.error is not None or note.status >= 400:  # noqa: PLR2004
            failed: Attributes = {"error.type": note.error or str(note.status), "loopway.seconds": note.seconds}
            held.chat.add_event("loopway.upstream.try_failed", failed)

    def _first_chunk(self, _subject: Subject, held: _Trace, note: FirstChunk) -> None:
        if held.chat is not None and _subject.stream:
            held.chat_told["gen_ai.response.time_to_first_chunk"] = note.seconds

    def _reply_came(self, _subject: Subject, held: _Trace, note: ReplyCame) -> None:
        told = of_reply(note, capture=self._capture)
        self._end_chat(held, told, note.fault or "", failed=note.fault is not None)

    def _call_failed(self, _subject: Subject, held: _Trace, note: CallFailed) -> None:
        self._end_chat(held, {"error.type": note.error}, "", failed=note.error != _GONE)

    def _end_chat(self, held: _Trace, told: Attributes, text: str, *, failed: bool) -> None:
        chat, held.chat = held.chat, None
        if chat is None:
            return
        otel.fill(chat, held.chat_told | told)
        if failed:
            chat.set_status(self._trace.StatusCode.ERROR, text_of(text))
        chat.end()
        self._attach(held.iteration_context)

    def _hook_ran(self, _subject: Subject, held: _Trace, note: HookRan) -> None:
        told: Attributes = {"loopway.hook": note.hook, "loopway.seconds": note.seconds}
        if note.error is not None:
            told["error.type"] = note.error
            held.failed_hook = note.hook
        (held.iteration or held.server).add_event(f"loopway.hook.{note.phase}", told)

    def _tool_began(self, _subject: Subject, held: _Trace, note: ToolBegan) -> None:
        if held.iteration is None or self._tracer is None:
            return
        told: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": note.tool,
            "gen_ai.tool.call.id": text_of(note.call_id),
            "gen_ai.tool.type": "extension",
            "loopway.hook": note.tool_of,
        }
        kind = self._trace.SpanKind.INTERNAL
        span = self._tracer.start_span(f"execute_tool {note.tool}", held.iteration_context, kind, told)
        held.tools.setdefault(note.call_id, []).append(span)
        self._attach(self._trace.set_span_in_context(span, held.iteration_context))  # in the tool's own task

    def _tool_ran(self, _subject: Subject, held: _Trace, note: ToolRan) -> None:
        spans = held.tools.get(note.call_id)
        if not spans:
            return
        span = spans.pop()
        for name, value in note.told.items():
            span.set_attribute(name, text_of(value) if isinstance(value, str) else value)
        if note.result != "ok":
            span.set_attribute("error.type", _TOOL_ERRORS.get(note.result, "other"))
            if note.result != "cancelled":
                span.set_status(self._trace.StatusCode.ERROR)
        span.end()

    def _iteration_decided(self, _subject: Subject, held: _Trace, note: IterationDecided) -> None:
        span = held.iteration
        if span is None:
            return
        told: Attributes = {"loopway.loop.outcome": note.outcome}
        if note.hook is not None:
            told["loopway.hook"] = note.hook
        if note.breach is not None:
            told["loopway.loop.abort_reason"] = note.breach
        if note.fingerprint is not None:
            told["loopway.loop.fingerprint"] = note.fingerprint
        otel.fill(span, told)
        if held.chat is None:  # else it was cut short; why comes with the end
            held.iteration = None
            span.end()
            held.iteration_context = held.context
            self._attach(held.context)

    def _end_iteration(self, held: _Trace, note: Ended) -> None:
        """An iteration that nothing was decided on, or whose call was cut short."""
        span, held.iteration = held.iteration, None
        if span is None:
            return
        if note.gone is not None:
            span.set_attribute("error.type", _GONE)
        elif note.error is not None:
            span.set_attribute("error.type", note.error)
            if held.failed_hook is not None and note.error == "hook_failed":
                span.set_attribute("loopway.hook", held.failed_hook)
            span.set_status(self._trace.StatusCode.ERROR, text_of(note.error_text or ""))
        span.end()

    def _first_content(self, _subject: Subject, held: _Trace, _note: FirstContent) -> None:
        held.server.add_event("loopway.first_content")

    # --- inside ---

    def _inject(self, span: Span, headers: dict[str, str]) -> None:
        """The trace context that the upstream gets; the client's own is replaced."""
        context = span.get_span_context()
        headers["traceparent"] = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        headers.pop("tracestate", None)
        if context.trace_state:
            headers["tracestate"] = context.trace_state.to_header()
