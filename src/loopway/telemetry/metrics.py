"""Notes to Prometheus series, named in CONTRACT section 8.

Label values come from closed lists only: the configured models, hooks, upstreams and tools, HTTP statuses, and the
words of `engine/notes.py`; anything else is `other`. This file must not know how notes come about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from loopway._version import __version__
from loopway.engine.notes import (
    Began,
    CallEnded,
    Ended,
    FirstContent,
    HookRan,
    IterationDecided,
    Note,
    ReplyCame,
    Subject,
    ToolRan,
)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Buckets from a millisecond to ten minutes."""
OVERHEAD = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
DEPTHS = tuple(range(11))
GEN_AI_TOKENS = tuple(4**power for power in range(14))
"""OpenTelemetry semantic conventions v1.41, gen_ai.client.token.usage."""
GEN_AI_SECONDS = tuple(round(0.01 * 2**power, 2) for power in range(14))
"""OpenTelemetry semantic conventions v1.41, gen_ai.client.operation.duration."""
REJECTIONS = frozenset(
    {"unauthorized", "not_allowed", "full", "draining", "too_large", "not_found", "bad_request", "rejected",
     "thread_unsupported", "method_not_allowed"}
)  # fmt: skip

OTHER = "other"
_STATUSES = range(100, 600)


class Metrics:
    """All series of one gateway, in a registry of its own.

    Args:
        models: The configured model names.
        hooks: The names of the configured hooks.
        upstreams: The configured upstream names.
        tools: The names of the tools that the server runs.
        provider: Dialect name to `gen_ai.provider.name`.
    """

    def __init__(
        self,
        *,
        models: Collection[str],
        hooks: Collection[str],
        upstreams: Collection[str],
        tools: Collection[str],
        provider: Callable[[str], str],
    ) -> None:
        self.registry = CollectorRegistry()
        self._models = frozenset(models)
        self._hooks = frozenset(hooks)
        self._upstreams = frozenset(upstreams)
        self._tools = frozenset(tools)
        self._provider = provider
        self._children: dict[tuple[Any, ...], Any] = {}
        self._define()
        self._handlers: dict[type[Any], Callable[[Subject, Any], None]] = {
            Began: self._began,
            CallEnded: self._call_ended,
            FirstContent: self._first_content,
            ReplyCame: self._reply_came,
            HookRan: self._hook_ran,
            ToolRan: self._tool_ran,
            IterationDecided: self._iteration_decided,
            Ended: self._ended,
        }

    def __call__(self, subject: Subject, note: Note) -> None:
        """Count a note."""
        handler = self._handlers.get(type(note))
        if handler is not None:
            handler(subject, note)

    def _define(self) -> None:
        exchange = ("dialect", "model")
        self.requests = self._counter("loopway_requests", "Exchanges that ended", (*exchange, "status", "stream"))
        self.duration = self._seconds("loopway_request_duration_seconds", "Whole exchanges", exchange)
        self.first_content = self._seconds(
            "loopway_time_to_first_content_seconds",
            "From the request to the first content of its answer",
            exchange,
        )
        self.overhead = self._histogram(
            "loopway_overhead_seconds", "Exchanges without their upstreams and hooks", exchange, OVERHEAD
        )
        self.iterations = self._counter("loopway_loop_iterations", "Model calls by decision", (*exchange, "outcome"))
        self.depth = self._histogram("loopway_loop_depth", "Reruns per exchange", exchange, DEPTHS)
        self.aborts = self._counter("loopway_loop_aborts", "Loops that a limit cut", (*exchange, "reason"))
        self.hook_duration = self._seconds("loopway_hook_duration_seconds", "Phases of hooks", ("hook", "phase"))
        self.hook_errors = self._counter("loopway_hook_errors", "Phases of hooks that failed", ("hook", "phase"))
        self.tool_calls = self._counter("loopway_tool_calls", "Calls of server tools", ("tool", "result"))
        self.upstream = self._counter("loopway_upstream_requests", "Tries at upstreams", ("upstream", "status"))
        self.upstream_duration = self._seconds(
            "loopway_upstream_duration_seconds",
            "From a try at an upstream to its response head",
            ("upstream",),
        )
        self.tokens = self._counter("loopway_tokens", "Tokens; input includes cached ones", ("model", "type"))
        self.in_flight = Gauge(
            "loopway_in_flight_requests",
            "Exchanges under way",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.disconnects = self._counter("loopway_client_disconnects", "Clients that left early", ("phase",))
        self.rejected = self._counter("loopway_rejected_requests", "Requests that were not served", ("reason",))
        gen_ai = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
        self.token_usage = self._histogram(
            "gen_ai_client_token_usage",
            "Tokens per model call",
            (*gen_ai, "gen_ai_token_type"),
            GEN_AI_TOKENS,
        )
        self.operation = self._histogram(
            "gen_ai_client_operation_duration_seconds", "Model calls", (*gen_ai, "error_type"), GEN_AI_SECONDS
        )
        info = Gauge(
            "loopway_build_info",
            "1, labelled with the version",
            ("version",),
            registry=self.registry,
            multiprocess_mode="mostrecent",
        )
        info.labels(__version__).set(1)

    # --- notes ---

    def _began(self, _subject: Subject, _note: Began) -> None:
        self.in_flight.inc()

    def _call_ended(self, subject: Subject, note: CallEnded) -> None:
        name = note.upstream if note.upstream in self._upstreams else OTHER
        status = str(note.status) if note.status in _STATUSES else (note.error or OTHER)
        self._child(self.upstream, name, status).inc()
        self._child(self.upstream_duration, name).observe(note.seconds)
        subject.state["call_began_error"] = note.error or (str(note.status) if note.status >= 400 else "")  # noqa: PLR2004

    def _first_content(self, subject: Subject, note: FirstContent) -> None:
        self._child(self.first_content, *self._exchange(subject)).observe(note.at - subject.began)

    def _reply_came(self, subject: Subject, note: ReplyCame) -> None:
        model = self._model(subject)
        provider = self._provider(subject.dialect)
        for kind, number in note.usage.items():
            self._child(self.tokens, model, kind).inc(number)
            if kind in ("input", "output"):
                self._child(self.token_usage, "chat", provider, model, kind).observe(number)
        self._child(self.operation, "chat", provider, model, note.fault or "").observe(note.seconds)

    def _hook_ran(self, _subject: Subject, note: HookRan) -> None:
        name = note.hook if note.hook in self._hooks else OTHER
        if note.error != "wrong_answer":  # its time was told when it returned
            self._child(self.hook_duration, name, note.phase).observe(note.seconds)
        if note.error is not None:
            self._child(self.hook_errors, name, note.phase).inc()

    def _tool_ran(self, _subject: Subject, note: ToolRan) -> None:
        name = note.tool if note.tool in self._tools else OTHER
        self._child(self.tool_calls, name, note.result).inc()

    def _iteration_decided(self, subject: Subject, note: IterationDecided) -> None:
        exchange = self._exchange(subject)
        self._child(self.iterations, *exchange, note.outcome).inc()
        if note.breach is not None:
            self._child(self.aborts, *exchange, note.breach).inc()

    def _ended(self, subject: Subject, note: Ended) -> None:
        exchange = self._exchange(subject)
        status = str(note.status) if note.status in _STATUSES else OTHER
        stream = "true" if subject.stream else "false"
        self._child(self.requests, *exchange, status, stream).inc()
        if note.error in REJECTIONS:
            self._child(self.rejected, note.error).inc()
        if note.gone is not None:
            self._child(self.disconnects, note.gone).inc()
        if not note.admitted:
            return
        self.in_flight.dec()
        self._child(self.duration, *exchange).observe(note.seconds)
        overhead = note.seconds - note.upstream_seconds - note.hook_seconds
        self._child(self.overhead, *exchange).observe(max(0.0, overhead))
        if note.iterations:
            self._child(self.depth, *exchange).observe(note.iterations - 1)

    # --- inside ---

    def _model(self, subject: Subject) -> str:
        return subject.model if subject.known and subject.model in self._models else OTHER

    def _exchange(self, subject: Subject) -> tuple[str, str]:
        return subject.dialect, self._model(subject)

    def _child(self, family: Any, *labels: str) -> Any:
        key = (family, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = family.labels(*labels)
        return child

    def _counter(self, name: str, text: str, labels: Iterable[str]) -> Counter:
        return Counter(name, text, tuple(labels), registry=self.registry)

    def _histogram(self, name: str, text: str, labels: Iterable[str], buckets: Iterable[float]) -> Histogram:
        return Histogram(name, text, tuple(labels), buckets=tuple(buckets), registry=self.registry)

    def _seconds(self, name: str, text: str, labels: Iterable[str]) -> Histogram:
        return self._histogram(name, text, labels, SECONDS)
