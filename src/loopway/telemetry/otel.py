"""The OpenTelemetry SDK as the standard OTEL_* variables want it: refused at start if they cannot work.

This file must not know what a span says. It imports the SDK only where spans go somewhere: without an endpoint
nothing of OpenTelemetry is loaded.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import threading
import uuid
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec

from loopway._version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

Protocol = Literal["grpc", "http/protobuf"]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
"""The semantic conventions whose names the spans have."""
FLUSH_SECONDS = 5.0
"""The most that a shutdown waits for spans to be sent."""

_GRPC_PORT = 4317
_EXPORTERS = ("otlp", "console")
_PROTOCOLS: tuple[Protocol, ...] = ("http/protobuf", "grpc")
_MODULES: dict[Protocol, str] = {
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
}
_INSTALL: dict[Protocol, str] = {
    "http/protobuf": "opentelemetry-exporter-otlp-proto-http",
    "grpc": "'loopway[grpc]'",
}


class Unusable(ValueError):
    """A variable that cannot work. `variable` names it."""

    def __init__(self, variable: str, text: str) -> None:
        self.variable = variable
        super().__init__(text)


class Export(msgspec.Struct, frozen=True):
    """Where spans go."""

    exporters: tuple[str, ...]
    protocol: Protocol


def export(env: Mapping[str, str] = os.environ) -> Export | None:
    """Where the variables send spans; None if nowhere.

    `OTEL_TRACES_EXPORTER` is `otlp`, `console` or `none`, or several with commas; if it is not set, an endpoint means
    `otlp`. Without a protocol it is `http/protobuf`, as the specification says, or `grpc` where the endpoint has
    gRPC's own port, 4317.

    Raises:
        Unusable: What a variable says cannot be done here.
    """
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    endpoint_name, endpoint = _first(env, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    wanted = env.get("OTEL_TRACES_EXPORTER", "").strip()
    names = [name.strip() for name in wanted.split(",") if name.strip()] if wanted else ["otlp"] if endpoint else []
    for name in names:
        if name not in (*_EXPORTERS, "none"):
            raise Unusable("OTEL_TRACES_EXPORTER", f"it is {name!r}; write otlp, console or none")
    exporters = tuple(name for name in _EXPORTERS if name in names)
    if not exporters or "none" in names:
        return None
    protocol = _protocol(env, endpoint)
    if "otlp" in exporters:
        if endpoint and protocol != "grpc" and urlsplit(endpoint).scheme not in ("http", "https"):
            raise Unusable(endpoint_name, f"it is {endpoint!r}; write a URL, as http://collector:4318")
        if not _installed(_MODULES[protocol]):
            raise Unusable(
                endpoint_name,
                f"spans are to be sent over {protocol}, and the package for that is not installed; "
                f"pip install {_INSTALL[protocol]}, or unset it",
            )
    return Export(exporters, protocol)


def _protocol(env: Mapping[str, str], endpoint: str) -> Protocol:
    name, said = _first(env, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    if not said:
        address = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
        try:
            return "grpc" if address.port == _GRPC_PORT else "http/protobuf"
        except ValueError:
            return "http/protobuf"
    for known in _PROTOCOLS:
        if said == known:
            return known
    raise Unusable(name, f"it is {said!r}; write {' or '.join(_PROTOCOLS)}")


def _first(env: Mapping[str, str], *names: str) -> tuple[str, str]:
    for name in names:
        if value := env.get(name, "").strip():
            return name, value
    return names[-1], ""


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


_ours: weakref.WeakSet[Any] = weakref.WeakSet()


def given_provider() -> Any:
    """The SDK provider that whoever started this process has set (`opentelemetry-instrument`, an embedding program)."""
    api = sys.modules.get("opentelemetry.trace")
    sdk = sys.modules.get("opentelemetry.sdk.trace")
    if api is None or sdk is None:
        return None
    provider = api.get_tracer_provider()
    return provider if isinstance(provider, sdk.TracerProvider) and provider not in _ours else None


def provider(where: Export, service_name: str) -> TracerProvider:
    """A provider whose spans go there. Sampler, limits, batches, headers and certificates are the SDK's own to read."""
    from opentelemetry import trace  # noqa: PLC0415 - see the module's docstring
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import (  # noqa: PLC0415
        BatchSpanProcessor,
        ConsoleSpanExporter,
        SimpleSpanProcessor,
    )

    made = TracerProvider(resource=Resource.create(_resource(service_name)), shutdown_on_exit=False)
    if "console" in where.exporters:
        made.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    if "otlp" in where.exporters:
        module = importlib.import_module(_MODULES[where.protocol])
        made.add_span_processor(BatchSpanProcessor(module.OTLPSpanExporter()))
    _ours.add(made)
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        trace.set_tracer_provider(made)  # so that a hook's own spans stand under ours
    return made


def _resource(service_name: str) -> dict[str, str]:
    """What describes this process; the standard variables win over the configuration."""
    attributes = {
        "service.version": __version__,
        "service.instance.id": str(uuid.uuid4()),
        "host.name": socket.gethostname(),
    }
    said = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    names = {part.partition("=")[0].strip() for part in said.split(",")}
    if os.environ.get("OTEL_SERVICE_NAME") or "service.name" in names:
        names.add("service.name")
    else:
        attributes["service.name"] = service_name
    return {name: value for name, value in attributes.items() if name not in names}


def fill(span: Span, attributes: Mapping[str, str | bool | int | float | tuple[str, ...]]) -> None:
    """`span.set_attributes` for values of ours, which need none of its looks at each of them.

    Those cost as much as the span. A span of another kind, or one whose limits may cut something, is filled its way.
    """
    held: Any = getattr(span, "_attributes", None)
    if (
        type(held) is sys.modules["opentelemetry.attributes"].BoundedAttributes
        and held.max_value_len is None
        and (held.maxlen is None or len(held) + len(attributes) <= held.maxlen)
        and span.is_recording()
    ):
        held._dict.update(attributes)  # noqa: SLF001 - the one place that knows how the SDK keeps them
    else:
        span.set_attributes(attributes)


def shut_down(made: TracerProvider, seconds: float = FLUSH_SECONDS) -> bool:
    """Send what is left, at most so many seconds long; whether that was enough. What is late is lost.

    The SDK's own shutdown may wait for a dead collector much longer, so it runs on a thread that nobody waits for.
    """
    work = threading.Thread(target=made.shutdown, name="loopway-flush", daemon=True)
    work.start()
    work.join(seconds)
    return not work.is_alive()
