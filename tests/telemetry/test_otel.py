"""What the standard OTEL_* variables do: where spans go, what is refused at start, what it costs if they are not set.

Must not know what a span says.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan
from opentelemetry.util.types import AnyValue

from loopway.telemetry import otel
from loopway.telemetry.otel import Export, Unusable, export
from running import Running, environment, run
from telemetry.collector import collecting

HTTP = "http://collector:4318"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


@pytest.mark.parametrize(
    ("env", "where"),
    [
        ({}, None),
        ({ENDPOINT: ""}, None),
        ({ENDPOINT: HTTP}, Export(("otlp",), "http/protobuf")),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": HTTP}, Export(("otlp",), "http/protobuf")),
        ({ENDPOINT: HTTP, PROTOCOL: "grpc"}, Export(("otlp",), "grpc")),
        ({ENDPOINT: "http://collector:4317"}, Export(("otlp",), "grpc")),
        ({ENDPOINT: "collector:4317"}, Export(("otlp",), "grpc")),
        ({ENDPOINT: "http://collector:4317", PROTOCOL: "http/protobuf"}, Export(("otlp",), "http/protobuf")),
        (
            {ENDPOINT: HTTP, PROTOCOL: "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            Export(("otlp",), "http/protobuf"),
        ),
        ({ENDPOINT: HTTP, "OTEL_SDK_DISABLED": "TRUE"}, None),
        ({ENDPOINT: HTTP, "OTEL_SDK_DISABLED": "false"}, Export(("otlp",), "http/protobuf")),
        ({ENDPOINT: HTTP, "OTEL_TRACES_EXPORTER": "none"}, None),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, Export(("otlp",), "http/protobuf")),
        ({"OTEL_TRACES_EXPORTER": "console"}, Export(("console",), "http/protobuf")),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, Export(("otlp", "console"), "http/protobuf")),
        ({ENDPOINT: HTTP, "OTEL_TRACES_EXPORTER": "console"}, Export(("console",), "http/protobuf")),
    ],
)
def test_where(env: dict[str, str], where: Export | None) -> None:
    """The variables say where spans go, as OpenTelemetry's specification has them."""
    assert export(env) == where


@pytest.mark.parametrize(
    ("env", "variable", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER", "otlp, console or none"),
        ({ENDPOINT: HTTP, PROTOCOL: "http/json"}, PROTOCOL, "http/protobuf or grpc"),
        ({ENDPOINT: "collector:4318"}, ENDPOINT, "http://collector:4318"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "collector"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "write a URL"),
    ],
)
def test_refused(env: dict[str, str], variable: str, words: str) -> None:
    """What cannot work is refused with the variable's name and what to write."""
    with pytest.raises(Unusable, match=words) as refused:
        export(env)
    assert refused.value.variable == variable


@pytest.mark.parametrize(
    ("protocol", "install"),
    [("grpc", "loopway[grpc]"), ("http/protobuf", "opentelemetry-exporter-otlp-proto-http")],
)
def test_missing_package(protocol: str, install: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol whose package is not there is refused with what to install."""
    monkeypatch.setattr(otel, "_installed", lambda _: False)
    with pytest.raises(Unusable) as refused:
        export({ENDPOINT: HTTP, PROTOCOL: protocol})
    assert install in str(refused.value)


CONFIG = """
auth: {mode: open}
server: {port: 0, admin_port: null}
upstreams: {here: {base_url: "http://127.0.0.1:9", dialects: [messages]}}
models: [{name: demo, upstream: here}]
"""


def test_start_says_so(tmp_path: Path) -> None:
    """A start with a variable that cannot work ends with exit code 2 and the variable's name."""
    (tmp_path / "loopway.yaml").write_text(CONFIG)
    code, said = run("serve", cwd=tmp_path, env={PROTOCOL: "carrier-pigeon", ENDPOINT: HTTP})
    assert (code, f"{PROTOCOL}: it is 'carrier-pigeon'" in said) == (2, True), said


BUILD = """
import sys
import threading
from loopway.app import build
gateway = build(sys.argv[1])
heavy = ("opentelemetry.trace", "opentelemetry.sdk", "opentelemetry.exporter", "grpc", "google.protobuf", "requests")
print(gateway.tracing is None, [name for name in sys.modules if name.startswith(heavy)])
"""


@pytest.mark.parametrize("env", [{}, {ENDPOINT: HTTP, "OTEL_SDK_DISABLED": "true"}], ids=["unset", "disabled"])
def test_nothing_is_loaded(env: dict[str, str], tmp_path: Path) -> None:
    """Without an endpoint there is no listener, and neither its SDK nor an exporter is imported."""
    (tmp_path / "loopway.yaml").write_text(CONFIG)
    command = [sys.executable, "-c", BUILD, str(tmp_path / "loopway.yaml")]
    done = subprocess.run(command, env=environment(**env), capture_output=True, text=True, check=True)
    assert done.stdout == "True []\n"


GIVEN = """
import asyncio, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
provider, exporter = TracerProvider(), InMemorySpanExporter()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
from litestar.testing import TestClient
from loopway import create_app
with TestClient(create_app(sys.argv[1])) as client:
    client.post("/v1/messages", json={"model": "unknown"})
print([span.name for span in exporter.get_finished_spans()], provider._active_span_processor._span_processors != ())
"""


def test_provider_of_an_embedding_program(tmp_path: Path) -> None:
    """A program that has set up OpenTelemetry itself gets the spans in its own provider."""
    (tmp_path / "loopway.yaml").write_text(CONFIG)
    command = [sys.executable, "-c", GIVEN, str(tmp_path / "loopway.yaml")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['POST /v1/messages'] True"


SERVED_BY_OTHERS = """
import sys
import threading
from litestar.testing import TestClient
from loopway import create_app
with TestClient(create_app(sys.argv[1])) as client:
    client.post("/v1/messages", json={"model": "unknown"})
"""


def test_served_by_others(tmp_path: Path) -> None:
    """An application that somebody else serves sends its spans when it is shut down."""
    (tmp_path / "loopway.yaml").write_text(CONFIG)
    with collecting() as collector:
        command = [sys.executable, "-c", SERVED_BY_OTHERS, str(tmp_path / "loopway.yaml")]
        subprocess.run(command, env=environment(**{ENDPOINT: collector.url}), capture_output=True, check=True)
        assert collector.tree() == ["SERVER POST /v1/messages"]


def test_flush_at_the_end(tmp_path: Path) -> None:
    """On SIGTERM the spans that are still held are sent before the process ends."""
    (tmp_path / "loopway.yaml").write_text(CONFIG)
    with collecting() as collector:
        env = {ENDPOINT: collector.url, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
        with Running("serve", cwd=tmp_path, env=env) as gateway:
            url = gateway.ready()["url"]
            assert httpx.post(f"{url}/v1/messages", json={"model": "demo"}).status_code == 502
            assert collector.spans == []
            assert gateway.end() == 0
        assert [span.name for span in collector.spans if span.kind == "SERVER"] == ["POST /v1/messages"]


def test_flush_is_bounded() -> None:
    """A provider that cannot get rid of its spans holds nobody up."""
    never = threading.Event()

    class Stuck:
        def shutdown(self) -> None:
            never.wait()

    assert otel.shut_down(Stuck(), 0.05) is False  # type: ignore[arg-type]
    never.set()


ATTRIBUTES: dict[str, str | bool | int | float | tuple[str, ...]] = {
    "a": "x" * 300,
    "b": True,
    "c": 7,
    "d": 0.5,
    "e": ("stop", "other"),
    "f": "",
}


@pytest.mark.parametrize(
    "limits",
    [{}, {"max_span_attribute_length": 4}, {"max_span_attributes": 3}, {"max_span_attributes": 0}],
    ids=lambda limits: ",".join(limits) or "none",
)
@pytest.mark.parametrize("ended", [False, True], ids=["open", "ended"])
def test_filling_a_span_is_setting_its_attributes(limits: dict[str, int], ended: bool) -> None:
    """Whatever limits the standard variables set, and whether the span is open."""
    tracer = TracerProvider(span_limits=SpanLimits(**limits)).get_tracer("test")
    filled, other = (tracer.start_span("x", attributes={"a": "first", "z": 1}) for _ in range(2))
    if ended:
        filled.end()
        other.end()
    otel.fill(filled, ATTRIBUTES)
    other.set_attributes(ATTRIBUTES)
    assert isinstance(filled, ReadableSpan)
    assert isinstance(other, ReadableSpan)
    assert dict(filled.attributes or {}) == dict(other.attributes or {})
    assert filled.dropped_attributes == other.dropped_attributes


def test_a_span_of_another_kind_is_filled_its_own_way() -> None:
    """An embedding program may have a provider of its own."""
    told: dict[str, object] = {}

    class Other(NonRecordingSpan):
        def set_attributes(self, attributes: Mapping[str, AnyValue]) -> None:
            told.update(attributes)

    otel.fill(Other(INVALID_SPAN_CONTEXT), ATTRIBUTES)
    assert told == ATTRIBUTES
