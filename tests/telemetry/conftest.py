"""Gateways that are traced, for the tests of this folder."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import pytest

from served import Served, running
from telemetry.collector import Collector, collecting

Traced = Callable[..., contextlib.AbstractAsyncContextManager[tuple[Served, Collector]]]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Traced:
    """Makes a gateway whose spans go to a collector; they are all there behind `served.gateway.flush()`."""

    @contextlib.asynccontextmanager
    async def make(
        *arguments: Any, protocol: Literal["grpc", "http/protobuf"] = "http/protobuf", **settings: Any
    ) -> AsyncIterator[tuple[Served, Collector]]:
        with collecting(protocol) as collector:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
            async with running(*arguments, **settings) as served:
                yield served, collector
                served.gateway.flush()

    return make
