"""A real OTLP receiver, HTTP and gRPC, and the tree that its spans make.

It must not know what a span should say.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

KINDS = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT"}


class Span:
    """One span as it was received."""

    def __init__(self, received: Any, resource: dict[str, Any]) -> None:
        self.name: str = received.name
        self.kind = KINDS[received.kind]
        self.trace_id: str = received.trace_id.hex()
        self.id: str = received.span_id.hex()
        self.parent: str = received.parent_span_id.hex()
        self.trace_state: str = received.trace_state
        self.attributes = _plain(received.attributes)
        self.events = [(event.name, _plain(event.attributes)) for event in received.events]
        self.failed = received.status.code == 2
        self.began: int = received.start_time_unix_nano
        self.ended: int = received.end_time_unix_nano
        self.resource = resource

    def __getitem__(self, name: str) -> Any:
        return self.attributes.get(name)


class Collector:
    """Takes spans.

    Attributes:
        url: What `OTEL_EXPORTER_OTLP_ENDPOINT` has to say.
        spans: What came, in the order of its coming.
        headers: The headers of each export.
    """

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.headers: list[dict[str, str]] = []

    def take(self, request: Any, headers: dict[str, str]) -> None:
        self.headers.append(headers)
        for group in request.resource_spans:
            resource = _plain(group.resource.attributes)
            self.spans += [Span(span, resource) for scope in group.scope_spans for span in scope.spans]

    def one(self, name: str) -> Span:
        """The one span with this name, or of this kind."""
        found = [span for span in self.spans if name in (span.name, span.kind)]
        assert len(found) == 1, f"{len(found)} spans are {name}: {[span.name for span in self.spans]}"
        return found[0]

    def all(self, name: str) -> list[Span]:
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.began)

    def trace(self, trace_id: str) -> Collector:
        """The spans of one trace, as a collector of their own."""
        one = Collector()
        one.spans = [span for span in self.spans if span.trace_id == trace_id]
        return one

    def tree(self) -> list[str]:
        """One line per span, in the order of their beginning, indented below its parent."""
        below: dict[str, list[Span]] = {}
        ids = {span.id for span in self.spans}
        for span in sorted(self.spans, key=lambda span: (span.began, span.ended)):
            below.setdefault(span.parent if span.parent in ids else "", []).append(span)

        def lines(parent: str, depth: int) -> Iterator[str]:
            for span in below.get(parent, ()):
                yield f"{'  ' * depth}{span.kind} {span.name}"
                yield from lines(span.id, depth + 1)

        return list(lines("", 0))


def _plain(attributes: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [plain(one) for one in value.array_value.values]
        return getattr(value, kind)

    return {one.key: plain(one.value) for one in attributes}


@contextlib.contextmanager
def collecting(protocol: Literal["grpc", "http/protobuf"] = "http/protobuf") -> Iterator[Collector]:
    """A collector that listens on a free port of 127.0.0.1."""
    collector = Collector()
    with (_grpc if protocol == "grpc" else _http)(collector):
        yield collector


@contextlib.contextmanager
def _http(collector: Collector) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest()
            request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
            assert self.path == "/v1/traces"
            collector.take(request, {name.lower(): value for name, value in self.headers.items()})
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def _grpc(collector: Collector) -> Iterator[None]:
    class Servicer(TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            collector.take(request, dict(context.invocation_metadata()))
            return ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    add_TraceServiceServicer_to_server(Servicer(), server)  # type: ignore[no-untyped-call]
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()
