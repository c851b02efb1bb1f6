"""Notes to Prometheus series, named in CONTRACT section 8; `docs/observability.md` says what each means.

Label values come from closed lists only: the configured models, hooks, upstreams and tools, HTTP statuses, and the
words of `engine/notes.py` and `errors.py`; anything else is `other`. This file must not know how notes come about.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.samples import Exemplar

from loopway._version import __version__
from loopway.engine.notes import (
    Began,
    Breach,
    CallEnded,
    CallFailed,
    Ended,
    FirstChunk,
    FirstContent,
    GonePhase,
    HookRan,
    IterationDecided,
    Note,
    Outcome,
    Phase,
    ReplyCame,
    Subject,
    ToolRan,
    ToolResult,
)
from loopway.telemetry import operation

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Buckets from a millisecond to ten minutes."""
OVERHEAD = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
DEPTHS = tuple(range(11))
CALLS = (1, 2, 3, 4, 6, 8, 11, 16, 24, 32, 64)
GEN_AI_TOKENS = tuple(4**power for power in range(14))
"""OpenTelemetry semantic conventions v1.41, gen_ai.client.token.usage."""
GEN_AI_SECONDS = tuple(round(0.01 * 2**power, 2) for power in range(14))
"""OpenTelemetry semantic conventions v1.41, gen_ai.client.operation.duration and its like."""
GEN_AI_AGENT_SECONDS = tuple(round(0.1 * 2**power, 1) for power in range(13))
"""The conventions' own repository, gen_ai.invoke_agent.duration."""

REJECTIONS = (
    "unauthorized", "not_allowed", "full", "draining", "too_large", "not_found", "bad_request", "rejected",
    "thread_unsupported", "method_not_allowed",
)  # fmt: skip
"""The errors that a request can be turned away with."""
ERRORS = frozenset(
    (
        *REJECTIONS, "internal_error", "upstream_broken", "upstream_unreachable", "upstream_timeout", "upstream_status",
        "upstream_event", "hook_failed", "rule_failed", "limit", "timeout", "cancelled",
    )
)  # fmt: skip
"""What `error_type` and a `status` without an HTTP status can be, beside HTTP statuses."""
TOKENS = ("input", "output", "cache_read", "cache_creation", "reasoning")
OTHER = "other"
MOST_TOOLS = 200
"""Names of tools that become labels."""

_STATUSES = range(100, 600)
_TOOL_ERRORS = {"ok": "", "error": "tool_error", "timeout": "timeout", "cancelled": "cancelled"}


class _Histogram(Histogram):
    """A histogram that takes its own values for what they are, and finds their bucket by bisection.

    The library looks at each value's exemplar and at its own labels again, which costs as much as to count.
    """

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count a value."""
        bucket = self._buckets[bisect_left(self._upper_bounds, amount)]
        bucket.inc(1)
        self._sum.inc(amount)
        if exemplar is not None:
            bucket.set_exemplar(Exemplar(exemplar, amount, time.time()))


class _Exchange:
    """The series of one dialect and model, looked up once."""

    __slots__ = ("depth", "duration", "first_content", "overhead", "requests")

    def __init__(self, metrics: Metrics, labels: tuple[str, str]) -> None:
        self.duration = metrics.duration.labels(*labels)
        self.first_content = metrics.first_content.labels(*labels)
        self.overhead = metrics.overhead.labels(*labels)
        self.depth = metrics.depth.labels(*labels)
        self.requests: dict[tuple[int, bool], Any] = {}


class _Try:
    """The series of tries at one upstream."""

    __slots__ = ("duration", "statuses")

    def __init__(self, metrics: Metrics, upstream: str) -> None:
        self.duration = metrics.upstream_duration.labels(upstream)
        self.statuses: dict[int, Any] = {}


class _Call:
    """The series of replies to one kind of call; each is made when it first counts something."""

    __slots__ = ("operation", "tokens")

    def __init__(self) -> None:
        self.operation: Any = None
        self.tokens: dict[str, tuple[Any, Any]] = {}


class _Loop:
    """What is counted of an exchange in which a loop runs."""

    __slots__ = ("ran", "tools")

    def __init__(self) -> None:
        self.ran = False
        self.tools = 0


class Metrics:
    """All series of one gateway, in a registry of its own.

    Args:
        models: The configured model names.
        upstream_models: The names that upstreams get, for the `gen_ai_*` series.
        hooks: The names of the configured hooks.
        upstreams: The configured upstream names.
        tools: The names of the tools that the server runs.
        exchanges: The pairs of dialect and model that are served; their rare series are there from the start, at 0.
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
        upstream_models: Collection[str] = (),
        exchanges: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.registry = CollectorRegistry()
        self._models = frozenset(models)
        self._upstream_models = frozenset(upstream_models)
        self._hooks = frozenset(hooks)
        self._upstreams = frozenset(upstreams)
        self._tools = set(tools)
        self._provider = provider
        self._children: dict[tuple[Any, ...], Any] = {}
        self._exchanges: dict[tuple[str, str], _Exchange] = {}
        self._tries: dict[str, _Try] = {}
        self._calls: dict[tuple[str, str, str, str], _Call] = {}
        self._define()
        self._define_gen_ai()
        self._prepare(exchanges)
        self.handlers: dict[type[Any], Callable[[Subject, Any], None]] = {
            Began: self._began,
            CallEnded: self._call_ended,
            CallFailed: self._call_failed,
            FirstChunk: self._first_chunk,
            FirstContent: self._first_content,
            ReplyCame: self._reply_came,
            HookRan: self._hook_ran,
            ToolRan: self._tool_ran,
            IterationDecided: self._iteration_decided,
            Ended: self._ended,
        }

    def start(self, most: int) -> None:
        """Requests are taken from now on, at most so many at once. What only looks at a configuration never starts."""
        self.most.set(most)

    def __call__(self, subject: Subject, note: Note) -> None:
        """Count a note."""
        handler = self.handlers.get(type(note))
        if handler is not None:
            handler(subject, note)

    def _define(self) -> None:
        exchange = ("dialect", "model")
        self.requests = self._counter("loopway_requests", "Exchanges that ended", (*exchange, "status", "stream"))
        self.duration = self._seconds("loopway_request_duration_seconds", "Whole exchanges", exchange)
        self.first_content = self._seconds(
            "loopway_time_to_first_content_seconds",
            "From the request to the first content of its answer; a keepalive is none",
            exchange,
        )
        self.overhead = self._histogram(
            "loopway_overhead_seconds", "Exchanges without their waits for upstreams and hooks", exchange, OVERHEAD
        )
        self.iterations = self._counter("loopway_loop_iterations", "Model calls by decision", (*exchange, "outcome"))
        self.depth = self._histogram("loopway_loop_depth", "Reruns per exchange", exchange, DEPTHS)
        self.aborts = self._counter("loopway_loop_aborts", "Loops that a limit cut", (*exchange, "reason"))
        self.hook_duration = self._seconds("loopway_hook_duration_seconds", "Phases of hooks", ("hook", "phase"))
        self.hook_errors = self._counter("loopway_hook_errors", "Phases of hooks that failed", ("hook", "phase"))
        self.tool_calls = self._counter("loopway_tool_calls", "Calls of server tools", ("tool", "result"))
        self.upstream = self._counter("loopway_upstream_requests", "Tries at upstreams", ("upstream", "status"))
        self.upstream_duration = self._seconds(
            "loopway_upstream_duration_seconds", "From a try at an upstream to its response head", ("upstream",)
        )
        self.tokens = self._counter("loopway_tokens", "Tokens; input includes cached ones", ("model", "type"))
        self.in_flight = Gauge(
            "loopway_in_flight_requests",
            "Exchanges under way",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.most = Gauge(
            "loopway_max_concurrent_requests",
            "Exchanges that may be under way at once",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.disconnects = self._counter("loopway_client_disconnects", "Clients that left early", ("phase",))
        self.rejected = self._counter("loopway_rejected_requests", "Requests that were turned away", ("reason",))
        info = Gauge(
            "loopway_build_info",
            "1, labelled with the version",
            ("version",),
            registry=self.registry,
            multiprocess_mode="mostrecent",
        )
        info.labels(__version__).set(1)

    def _define_gen_ai(self) -> None:
        call = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
        self.token_usage = self._histogram(
            "gen_ai_client_token_usage", "Tokens per model call", (*call, "gen_ai_token_type"), GEN_AI_TOKENS
        )
        self.operation = self._histogram(
            "gen_ai_client_operation_duration_seconds", "Model calls", (*call, "error_type"), GEN_AI_SECONDS
        )
        self.first_chunk = self._histogram(
            "gen_ai_client_operation_time_to_first_chunk_seconds",
            "From a streamed model call to its first bytes",
            call,
            GEN_AI_SECONDS,
        )
        self.tool_duration = self._histogram(
            "gen_ai_execute_tool_duration_seconds",
            "Calls of server tools",
            ("gen_ai_tool_name", "error_type"),
            GEN_AI_SECONDS,
        )
        agent = ("gen_ai_request_model",)
        self.agent_duration = self._histogram(
            "gen_ai_invoke_agent_duration_seconds", "Exchanges in which a loop ran", agent, GEN_AI_AGENT_SECONDS
        )
        self.agent_calls = self._histogram(
            "gen_ai_invoke_agent_inference_calls", "Model calls per exchange in which a loop ran", agent, CALLS
        )
        self.agent_tools = self._histogram(
            "gen_ai_invoke_agent_tool_calls", "Server tool calls per exchange in which a loop ran", agent, (0, *CALLS)
        )

    def _prepare(self, exchanges: Iterable[tuple[str, str]]) -> None:
        """Make the rare series: an alert sees a count rise from 0, but not appear as 1."""
        for labels in exchanges:
            for reason in get_args(Breach):
                self._child(self.aborts, *labels, reason)
            for outcome in get_args(Outcome):
                self._child(self.iterations, *labels, outcome)
        for hook in self._hooks:
            for phase in get_args(Phase):
                self._child(self.hook_errors, hook, phase)
        for tool in self._tools:
            for result in get_args(ToolResult):
                self._child(self.tool_calls, tool, result)
        for phase in get_args(GonePhase):
            self._child(self.disconnects, phase)
        for reason in REJECTIONS:
            self._child(self.rejected, reason)

    # --- notes ---

    def _began(self, _subject: Subject, _note: Began) -> None:
        self.in_flight.inc()

    def _call_ended(self, subject: Subject, note: CallEnded) -> None:
        name = note.upstream if note.upstream in self._upstreams else OTHER
        series = self._tries.get(name)
        if series is None:
            series = self._tries[name] = _Try(self, name)
        tries = series.statuses.get(note.status)
        if tries is None:
            known = note.status in _STATUSES
            tries = self._child(self.upstream, name, str(note.status) if known else _error(note.error))
            if known:
                series.statuses[note.status] = tries
        tries.inc()
        series.duration.observe(note.seconds, subject.state.get("exemplar"))

    def _call_failed(self, subject: Subject, note: CallFailed) -> None:
        call = self._call(subject, note.model)
        self._child(self.operation, *call, _error(note.error)).observe(note.seconds, subject.state.get("exemplar"))

    def _first_chunk(self, subject: Subject, note: FirstChunk) -> None:
        if subject.stream:
            call = self._call(subject, note.model)
            self._child(self.first_chunk, *call).observe(note.seconds, subject.state.get("exemplar"))

    def _first_content(self, subject: Subject, note: FirstContent) -> None:
        series = self._exchange(subject)
        series.first_content.observe(note.at - subject.began, subject.state.get("exemplar"))

    def _reply_came(self, subject: Subject, note: ReplyCame) -> None:
        model = self._model(subject)
        key = (subject.route, subject.dialect, note.model if note.model in self._upstream_models else OTHER, model)
        series = self._calls.get(key)
        if series is None:
            series = self._calls[key] = _Call()
        for kind, number in note.usage.items():
            counted = series.tokens.get(kind)
            if counted is None:
                counted = series.tokens[kind] = self._tokens(model, self._call(subject, note.model), kind)
            counted[0].inc(number)
            if counted[1] is not None:
                counted[1].observe(number)
        if note.fault:
            operation = self._child(self.operation, *self._call(subject, note.model), "upstream_broken")
        else:
            operation = series.operation
            if operation is None:
                operation = series.operation = self._child(self.operation, *self._call(subject, note.model), "")
        operation.observe(note.seconds, subject.state.get("exemplar"))

    def _tokens(self, model: str, call: tuple[str, str, str], kind: str) -> tuple[Any, Any]:
        """Where tokens of a kind are counted, and where they are observed if that is done."""
        counted = self._child(self.tokens, model, kind if kind in TOKENS else OTHER)
        return counted, self._child(self.token_usage, *call, kind) if kind in ("input", "output") else None

    def _hook_ran(self, subject: Subject, note: HookRan) -> None:
        name = note.hook if note.hook in self._hooks else OTHER
        if note.error != "wrong_answer":  # its time was told when it returned
            self._child(self.hook_duration, name, note.phase).observe(note.seconds, subject.state.get("exemplar"))
        if note.error is not None:
            self._child(self.hook_errors, name, note.phase).inc(1, subject.state.get("exemplar"))

    def _tool(self, name: str) -> str:
        """A tool's name as a label.

        Only what an operator's sources offer is ever run; what MCP servers offer later is taken up to a bound.
        """
        if name not in self._tools:
            if len(self._tools) >= MOST_TOOLS:
                return OTHER
            self._tools.add(name)
        return name

    def _tool_ran(self, subject: Subject, note: ToolRan) -> None:
        name = self._tool(note.tool)
        self._child(self.tool_calls, name, note.result).inc()
        error = _TOOL_ERRORS.get(note.result, OTHER)
        self._child(self.tool_duration, name, error).observe(note.seconds, subject.state.get("exemplar"))
        self._loop(subject).tools += 1

    def _iteration_decided(self, subject: Subject, note: IterationDecided) -> None:
        labels = (subject.dialect, self._model(subject))
        self._child(self.iterations, *labels, note.outcome).inc()
        if note.breach is not None:
            self._child(self.aborts, *labels, note.breach).inc(1, subject.state.get("exemplar"))
        if note.hook is not None:
            self._loop(subject).ran = True

    def _ended(self, subject: Subject, note: Ended) -> None:
        series = self._exchange(subject)
        key = (note.status, subject.stream)
        requests = series.requests.get(key)
        if requests is None:
            status = str(note.status) if note.status in _STATUSES else OTHER
            labels = (subject.dialect, self._model(subject), status, "true" if subject.stream else "false")
            requests = series.requests[key] = self.requests.labels(*labels)
        exemplar = subject.state.get("exemplar")
        requests.inc(1, exemplar)
        if note.error in REJECTIONS:
            self._child(self.rejected, note.error).inc()
        if note.gone is not None:
            self._child(self.disconnects, note.gone).inc()
        if not note.admitted:
            return
        self.in_flight.dec()
        series.duration.observe(note.seconds, exemplar)
        overhead = note.seconds - note.upstream_seconds - note.hook_seconds
        series.overhead.observe(max(0.0, overhead), exemplar)
        if note.iterations and operation(subject.route) == "chat":
            series.depth.observe(note.iterations - 1)
        loop: _Loop | None = subject.state.get("metrics")
        if loop is not None and (loop.ran or loop.tools):
            model = self._model(subject)
            self._child(self.agent_duration, model).observe(note.seconds, exemplar)
            self._child(self.agent_calls, model).observe(note.iterations)
            self._child(self.agent_tools, model).observe(loop.tools)

    # --- inside ---

    def _model(self, subject: Subject) -> str:
        return subject.model if subject.known and subject.model in self._models else OTHER

    def _call(self, subject: Subject, model: str) -> tuple[str, str, str]:
        known = model if model in self._upstream_models else OTHER
        return operation(subject.route), self._provider(subject.dialect), known

    def _exchange(self, subject: Subject) -> _Exchange:
        labels = (subject.dialect, self._model(subject))
        series = self._exchanges.get(labels)
        if series is None:
            series = self._exchanges[labels] = _Exchange(self, labels)
        return series

    @staticmethod
    def _loop(subject: Subject) -> _Loop:
        loop: _Loop | None = subject.state.get("metrics")
        if loop is None:
            loop = subject.state["metrics"] = _Loop()
        return loop

    def _child(self, family: Any, *labels: str) -> Any:
        key = (family, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = family.labels(*labels)
        return child

    def _counter(self, name: str, text: str, labels: Iterable[str]) -> Counter:
        return Counter(name, text, tuple(labels), registry=self.registry)

    def _histogram(self, name: str, text: str, labels: Iterable[str], buckets: Iterable[float]) -> Histogram:
        return _Histogram(name, text, tuple(labels), buckets=tuple(buckets), registry=self.registry)

    def _seconds(self, name: str, text: str, labels: Iterable[str]) -> Histogram:
        return self._histogram(name, text, labels, SECONDS)


def _error(kind: str | None) -> str:
    """A kind of error, or an HTTP status as text, if it is one that is known."""
    if kind in ERRORS or (kind is not None and kind.isascii() and kind.isdigit() and int(kind) in _STATUSES):
        return kind or OTHER
    return OTHER
