"""The series: closed label lists, what is counted when, exemplars, and several workers.

Names, labels and meanings are held by `test_docs.py`; what a dashboard makes of them by `tests/dashboards`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from loopway import server_tool
from loopway.engine.notes import CallEnded, CallFailed, Ended, HookRan, ReplyCame, Subject, ToolRan
from loopway.telemetry.metrics import MOST_TOOLS, SECONDS, Metrics
from loopway.telemetry.metrics import _Histogram as Series
from loopway.testing import Reply, ScriptedModel, call, cut, hold, text
from running import Running
from served import Served, running
from telemetry.conftest import Traced
from telemetry.test_tracing import END, Puppet, ask, body, does

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def test_tools_that_are_learned_are_bounded() -> None:
    """MCP servers may offer tools without end; the labels end."""
    metrics = made()
    subject = Subject(request_id="r", dialect="messages", began=0.0, model="m", known=True)
    for number in range(MOST_TOOLS + 50):
        metrics(subject, ToolRan(f"tool{number}", "ok", 0.1, 0, "c"))
    page = generate_latest(metrics.registry).decode()
    assert 'tool="tool1"' in page
    assert f'tool="tool{MOST_TOOLS + 20}"' not in page
    assert 'tool="other"' in page


@given(st.lists(st.one_of(st.floats(-1, 700), st.sampled_from([*SECONDS, 0.0, 1e9])), max_size=30))
def test_a_value_falls_into_the_bucket_that_the_library_gives_it(seen: list[float]) -> None:
    """Our histograms count as the library's do, on the bounds, below and above them."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = Series("x_seconds", "x", ("a",), buckets=SECONDS, registry=ours).labels("b")
    their = Histogram("x_seconds", "x", ("a",), buckets=SECONDS, registry=theirs).labels("b")
    for value in seen:
        mine.observe(value, {"trace_id": "1"})
        their.observe(value, {"trace_id": "1"})

    def told(registry: CollectorRegistry) -> list[tuple[Any, ...]]:
        samples = [sample for family in registry.collect() for sample in family.samples]
        return [
            (one.name, one.labels, one.value, one.exemplar and (one.exemplar.labels, one.exemplar.value))
            for one in samples
            if not one.name.endswith("_created")
        ]

    assert told(ours) == told(theirs)


def made(**more: Any) -> Metrics:
    given: dict[str, Any] = {"models": ["m"], "hooks": ["h"], "upstreams": ["u"], "tools": ["t"], "provider": str}
    return Metrics(**given | more)


def values(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one name that are not 0, by their labels' values."""
    found = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == name and sample.value:
                found[tuple(sample.labels.values())] = sample.value
    return found


async def scraped(served: Served, accept: str = "text/plain") -> str:
    return (await served.http.get(f"{served.admin_url}/metrics", headers={"accept": accept})).text


# --- closed lists ---


async def test_no_series_for_what_clients_make_up() -> None:
    """1,000 mistyped models and 1,000 users add not one series."""
    async with running(script=lambda _: END) as served:

        async def some(number: int) -> None:
            mistyped, user = f"mistyped-{number}", f"user-{number}"
            await asyncio.gather(ask(served, model=mistyped), ask(served, user=user, metadata={"user_id": user}))

        await some(0)
        before = (await scraped(served)).count("\n")
        for start in range(1, 1000, 100):
            await asyncio.gather(*(some(number) for number in range(start, min(1000, start + 100))))
        page = await scraped(served)
        assert page.count("\n") == before
        for model, status in (("other", 404), ("demo", 200)):
            labels = f'dialect="messages",model="{model}",status="{status}",stream="false"'
            assert f"loopway_requests_total{{{labels}}} 1000.0" in page


SUBJECT = Subject(request_id="r", dialect="messages", began=0.0, model="m", known=True, route="/v1/messages")
UNKNOWN = [
    (CallEnded(0, "who", 200, 0.1), "loopway_upstream_requests_total", ("other", "200")),
    (CallEnded(0, "u", 0, 0.1, "made up"), "loopway_upstream_requests_total", ("u", "other")),
    (CallEnded(0, "u", 999, 0.1), "loopway_upstream_requests_total", ("u", "other")),
    (CallEnded(0, "u", 0, 0.1, "upstream_timeout"), "loopway_upstream_requests_total", ("u", "upstream_timeout")),
    (HookRan("who", "plan", 0.1, 0, "X"), "loopway_hook_errors_total", ("other", "plan")),
    (ToolRan("learned", "ok", 0.1, 0, "c"), "loopway_tool_calls_total", ("learned", "ok")),
    (
        CallFailed(0, "u", "wire", 0.1, "made up"),
        "gen_ai_client_operation_duration_seconds_count",
        ("chat", "messages", "other", "other"),
    ),
    (
        ReplyCame(0, "u", "who", "", "", "", {"made up": 3}, 0.1),
        "loopway_tokens_total",
        ("m", "other"),
    ),
    (Ended(status=999, iterations=1, seconds=1.0), "loopway_requests_total", ("messages", "m", "other", "false")),
]


@pytest.mark.parametrize(("note", "name", "labels"), UNKNOWN)
def test_unknown_is_other(note: Any, name: str, labels: tuple[str, ...]) -> None:
    """A value that is on no list is `other`."""
    metrics = made()
    metrics(SUBJECT, note)
    assert list(values(metrics, name)) == [labels]


def test_rare_series_begin_at_zero() -> None:
    """An abort, a failure and a rejection are there before the first one, so that a rate sees it."""
    metrics = made(exchanges=[("messages", "m")])
    page = {
        (sample.name, *sample.labels.values()) for family in metrics.registry.collect() for sample in family.samples
    }
    for wanted in (
        ("loopway_loop_aborts_total", "messages", "m", "fingerprint"),
        ("loopway_hook_errors_total", "h", "plan"),
        ("loopway_tool_calls_total", "t", "timeout"),
        ("loopway_rejected_requests_total", "full"),
        ("loopway_client_disconnects_total", "stream"),
    ):
        assert wanted in page


# --- what is counted ---


@pytest.mark.parametrize(
    ("reply", "stream", "error"),
    [
        (END, False, ""),
        (END, True, ""),
        (Reply(error=(429, "no")), False, "429"),
        (Reply(text("fo"), cut()), True, "upstream_broken"),
    ],
)
@pytest.mark.parametrize("hooks", [[Puppet()], []], ids=["watched", "passed on"])
async def test_every_model_call_is_counted_once(reply: Reply, stream: bool, error: str, hooks: list[Any]) -> None:
    """A model call is one operation, with the kind of its error if it had no reply."""
    async with running(hooks=hooks, script=[reply]) as served:
        await ask(served, stream=stream)
        counted = values(served.gateway.metrics, "gen_ai_client_operation_duration_seconds_count")
        assert counted == {("chat", "anthropic", "demo", error): 1.0}


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("hooks", [[Puppet()], []], ids=["watched", "passed on"])
async def test_tokens(stream: bool, hooks: list[Any]) -> None:
    """Tokens are counted on every road; input tokens have the cached ones in them."""
    usage = {"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 7}
    async with running(hooks=hooks, script=[Reply(text("four"), usage=usage)]) as served:
        await ask(served, stream=stream)
        assert values(served.gateway.metrics, "loopway_tokens_total") == {
            ("demo", "input"): 10, ("demo", "output"): 5, ("demo", "cache_read"): 7,
        }  # fmt: skip


async def test_overhead_has_no_waiting_in_it() -> None:
    """Neither a slow upstream, nor a slow hook, nor tools that run side by side are the gateway's own time."""

    @server_tool
    async def slow(n: int) -> str:
        """Takes its time."""
        await asyncio.sleep(0.3)
        return str(n)

    script = [Reply(*(call("slow", {"n": n}) for n in range(4)), delay=0.3), Reply(text("done"), delay=0.3)]
    async with running(hooks=[slow], script=script) as served:
        await ask(served)
        labels = ("messages", "demo")
        total = values(served.gateway.metrics, "loopway_request_duration_seconds_sum")[labels]
        overhead = values(served.gateway.metrics, "loopway_overhead_seconds_sum")[labels]
        waited = 0.3 + 0.3 + 0.3  # two model calls, and four tools at once
        assert 0 < overhead <= total - waited + 0.01


@pytest.mark.parametrize("hooks", [[Puppet()], []], ids=["watched", "passed on"])
async def test_first_content_is_no_ping(hooks: list[Any]) -> None:
    """What comes before the content, a ping or an opened message, is not the first content."""
    gate = asyncio.Event()
    script = [Reply(hold(gate), text("four"))]
    async with running(hooks=hooks, script=script, loop={"keepalive_seconds": 0.05}) as served:
        async with served.http.stream("POST", "/v1/messages", json=body(stream=True)) as answer:
            first = await anext(answer.aiter_raw())
            assert first
            assert not values(served.gateway.metrics, "loopway_time_to_first_content_seconds_count")
            gate.set()
        await served.gateway.admission._wait_empty(5.0)
        assert values(served.gateway.metrics, "loopway_time_to_first_content_seconds_count")


async def test_in_flight() -> None:
    """The gauge is 1 while an exchange is under way and 0 behind it, however it ended."""
    gate = asyncio.Event()
    async with running(hooks=[Puppet()], script=[Reply(text("four"), gate=gate)]) as served:
        asking = asyncio.ensure_future(ask(served))
        await served.model.until(lambda: bool(served.model.requests))
        assert values(served.gateway.metrics, "loopway_in_flight_requests") == {(): 1.0}
        gate.set()
        await asking
        assert values(served.gateway.metrics, "loopway_in_flight_requests") == {}


async def test_looping_exchanges() -> None:
    """An exchange in which a loop ran is counted with its model calls; one that no hook claimed is not."""
    async with running(hooks=[Puppet()], script=[END, does("rerun"), END]) as served:
        await ask(served)
        assert not values(served.gateway.metrics, "gen_ai_invoke_agent_inference_calls_count")
        await ask(served)
        assert values(served.gateway.metrics, "gen_ai_invoke_agent_inference_calls_sum") == {("demo",): 2.0}


# --- the page ---


async def test_exemplars(traced: Traced) -> None:
    """In OpenMetrics a recorded trace's id stands beside its observations."""
    async with traced(hooks=[Puppet()], script=[does("rerun"), END]) as (served, _collector):
        trace_id = (await ask(served)).headers["x-trace-id"]
        page = await scraped(served, OPEN_METRICS)
        with_exemplar = {
            family.name
            for family in open_metrics(page)  # type: ignore[no-untyped-call]
            for sample in family.samples
            if sample.exemplar is not None and sample.exemplar.labels == {"trace_id": trace_id}
        }
        assert with_exemplar >= {
            "loopway_requests", "loopway_request_duration_seconds", "loopway_time_to_first_content_seconds",
            "loopway_hook_duration_seconds", "gen_ai_client_operation_duration_seconds",
        }  # fmt: skip
        assert trace_id not in await scraped(served)


async def test_no_exemplar_of_an_unsampled_trace(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that nobody can look up is no exemplar."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    async with traced(script=[END]) as (served, _collector):
        await ask(served)
        assert "trace_id" not in await scraped(served, OPEN_METRICS)


# --- several workers ---

CONFIG = {"auth": {"mode": "open"}, "server": {"port": 0, "admin_port": 0, "drain_seconds": 0.2}}


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[tuple[str, str, int]]:
    """A gateway of two workers: its address, that of its admin port, and the process that watches them."""
    with ScriptedModel({"demo": lambda _: END}) as model:
        upstream = {"base_url": model.url, "dialects": ["messages"]}
        config = {**CONFIG, "upstreams": {"u": upstream}, "models": [{"name": "demo", "upstream": "u"}]}
        (tmp_path / "loopway.yaml").write_text(json.dumps(config))
        with Running("serve", "--workers", "2", cwd=tmp_path) as gateway:
            said = gateway.ready()
            reading = threading.Thread(target=gateway.process.stdout.read, daemon=True)  # type: ignore[union-attr]
            reading.start()
            yield said["url"], said["admin_url"], gateway.process.pid
            gateway.process.send_signal(signal.SIGTERM)
            gateway.process.wait()
            reading.join()


def sums(admin: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{admin}/metrics") as page:
        families = list(plain_text(page.read().decode()))
    found: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
            if "pid" in sample.labels:
                raise AssertionError(f"{sample}: one series per worker")
    return found


def test_worker_that_dies(workers: tuple[str, str, int]) -> None:
    """One page is the sum of all workers; it does not fall when one is killed, and its gauges go with it."""
    url, admin, supervisor = workers
    request = json.dumps(body()).encode()

    def post() -> None:
        headers = {"content-type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{url}/v1/messages", request, headers)).read()

    def until(holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Scrape until it holds; what was scraped then. A request is counted when its answer is out."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            now = sums_if_up(admin)
            if now is not None:
                assert now["loopway_requests_total"] >= counted, "a counter fell"
                if holds(now):
                    return now
        raise AssertionError(f"it never held: {now}")

    counted = 0
    for _ in range(12):
        post()
    before = until(lambda now: now["loopway_requests_total"] == 12)
    assert before["loopway_max_concurrent_requests"] == 2 * 1000
    counted = 12
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    victim = next(pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(int(victim), signal.SIGKILL)
    alone = until(lambda now: now["loopway_max_concurrent_requests"] != 2 * 1000)
    assert alone["loopway_max_concurrent_requests"] == 1000
    until(lambda now: now["loopway_max_concurrent_requests"] == 2 * 1000)  # the new worker is there
    post()
    assert until(lambda now: now["loopway_requests_total"] == 13)["loopway_in_flight_requests"] == 0


def sums_if_up(admin: str) -> dict[str, float] | None:
    try:
        return sums(admin)
    except (OSError, httpx.TransportError):
        return None
