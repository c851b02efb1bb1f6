"""The spans that a real OTLP receiver gets: their tree, their attributes, and that none is left open.

Must not know how spans are made: it reads what was exported.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from loopway import AgenticLoopHook, AgenticLoopPlan, AgenticLoopRequestPatch, server_tool
from loopway.engine.notes import Began, CallBegan, Subject
from loopway.telemetry.tracing import Tracing
from loopway.testing import Reply, call, cut, hold, text
from served import Served
from telemetry.collector import Collector
from telemetry.conftest import Traced

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-1] + "0"
POST = "SERVER POST /v1/messages"
ITERATION = "  INTERNAL agentic_loop.iteration"
CHAT = "    CLIENT chat demo"


class Puppet(AgenticLoopHook):
    """Does what the arguments of a call of `puppet` say."""

    async def async_should_run_agentic_loop(self, response: Any, *_: Any, **__: Any) -> tuple[bool, Any]:
        calls = [block for block in response.content if block["type"] == "tool_use" and block["name"] == "puppet"]
        return bool(calls), {"tool_calls": calls}

    async def async_build_agentic_loop_plan(self, tools: Any, *_: Any, **given: Any) -> AgenticLoopPlan:
        messages, response = given["messages"], given["response"]
        one = tools["tool_calls"][0]
        match one["input"]["do"]:
            case "override":
                value = {**response, "content": [{"type": "text", "text": "mine"}], "stop_reason": "end_turn"}
                return AgenticLoopPlan(response_override=value)
            case "terminate":
                return AgenticLoopPlan(terminate=True)
            case "raise":
                raise RuntimeError("it broke")
        results = [{"type": "tool_result", "tool_use_id": one["id"], "content": "4"}]
        turns = [{"role": "assistant", "content": response.content}, {"role": "user", "content": results}]
        patch = AgenticLoopRequestPatch(messages=[*messages, *turns])
        return AgenticLoopPlan(run_agentic_loop=True, request_patch=patch)


@server_tool
async def lookup(n: int) -> str:
    """Looks a number up."""
    if n < 0:
        raise ValueError("no such number")
    return str(n)


def does(what: str, number: int = 1) -> Reply:
    return Reply(call("puppet", {"do": what, "n": number}))


def body(**more: Any) -> dict[str, Any]:
    tool = {"name": "puppet", "input_schema": {"type": "object"}}
    asked = {"role": "user", "content": "how much is it?"}
    return {"model": "demo", "max_tokens": 100, "messages": [asked], "tools": [tool], **more}


async def ask(served: Served, *, headers: Mapping[str, str] | None = None, **more: Any) -> httpx.Response:
    return await served.http.post("/v1/messages", json=body(**more), headers=headers)


END = Reply(text("four"))
CASES = {
    "one iteration": ([END], [POST, ITERATION, CHAT], ["skip"]),
    "a rerun": ([does("rerun"), END], [POST, ITERATION, CHAT, ITERATION, CHAT], ["rerun", "skip"]),
    "an override": ([does("override")], [POST, ITERATION, CHAT], ["override"]),
    "a terminate": ([does("terminate")], [POST, ITERATION, CHAT], ["terminate"]),
    "a fingerprint abort": (
        [does("rerun"), does("rerun")],
        [POST, ITERATION, CHAT, ITERATION, CHAT],
        ["rerun", "terminate"],
    ),
    "a limit abort": (
        [does("rerun", 1), does("rerun", 2)],
        [POST, ITERATION, CHAT, ITERATION, CHAT],
        ["rerun", "terminate"],
    ),
    "a hook failure": ([does("raise")], [POST, ITERATION, CHAT], [None]),
    "an upstream 429": ([Reply(error=(429, "slow down"))], [POST, ITERATION, CHAT], [None]),
    "server tools": (
        [Reply(call("lookup", {"n": 1}), call("lookup", {"n": -1})), END],
        [
            POST, ITERATION, CHAT, "    INTERNAL execute_tool lookup", "    INTERNAL execute_tool lookup", ITERATION,
            CHAT,
        ],
        ["rerun", "skip"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_tree(stream: bool, traced: Traced) -> None:
    """An exchange is one trace: the request, its iterations, and below each its call and its tools as siblings."""
    models = [{"name": name, "upstream": "here"} for name in CASES]
    models[list(CASES).index("a limit abort")]["max_agentic_loops"] = 1  # type: ignore[assignment]
    scripts = {name: script for name, (script, _, _) in CASES.items()}
    async with traced({"models": models}, hooks=[Puppet(), lookup], script=scripts) as (served, collector):
        ids = {name: (await ask(served, stream=stream, model=name)).headers["x-trace-id"] for name in CASES}
        served.gateway.flush()
    for name, (_, tree, outcomes) in CASES.items():
        trace = collector.trace(ids[name])
        assert [line.replace(f"chat {name}", "chat demo") for line in trace.tree()] == tree, name
        iterations = trace.all("agentic_loop.iteration")
        assert [one["loopway.loop.outcome"] for one in iterations] == outcomes, name
        assert [one["loopway.loop.depth"] for one in iterations] == list(range(len(iterations))), name


@pytest.mark.parametrize(
    ("case", "reason"), [("a fingerprint abort", "fingerprint"), ("a limit abort", "max_agentic_loops")]
)
async def test_abort(case: str, reason: str, traced: Traced) -> None:
    """An abort names its reason, its fingerprint and the hook, and the request's span has the reason, too."""
    loop = {"max_agentic_loops": 1} if case == "a limit abort" else {}
    async with traced(hooks=[Puppet()], script=CASES[case][0], loop=loop) as (served, collector):
        await ask(served)
        served.gateway.flush()
        last = collector.all("agentic_loop.iteration")[-1]
        assert last["loopway.loop.abort_reason"] == reason
        assert last["loopway.loop.fingerprint"]
        assert last["loopway.hook"].endswith("Puppet")
        assert collector.one("SERVER")["loopway.loop.abort_reason"] == reason


async def test_call(traced: Traced) -> None:
    """The span of a model call has the names of the GenAI conventions v1.41."""
    usage = {"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 11}
    async with traced(hooks=[Puppet()], script=[Reply(text("four"), usage=usage)]) as (served, collector):
        sent: dict[str, Any] = {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "stop_sequences": ["."],
            "service_tier": "auto",
        }
        answer = await ask(served, metadata={"user_id": {"nested": ["traceparent"]}}, stream=True, **sent)
        served.gateway.flush()
        span = collector.one("chat demo")
        assert 0 < span.attributes.pop("gen_ai.response.time_to_first_chunk") < 5
        assert span.attributes.pop("gen_ai.response.id").startswith("msg_")
        assert span.attributes == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "anthropic",
            "gen_ai.request.model": "demo",
            "gen_ai.request.stream": True,
            "gen_ai.request.max_tokens": 100,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.top_p": 0.9,
            "gen_ai.request.top_k": 40,
            "gen_ai.request.stop_sequences": ["."],
            "openai.request.service_tier": "auto",
            "gen_ai.response.model": "demo",
            "gen_ai.response.finish_reasons": ["end_turn"],
            "gen_ai.usage.input_tokens": 21,
            "gen_ai.usage.output_tokens": 5,
            "gen_ai.usage.cache_read.input_tokens": 7,
            "gen_ai.usage.cache_creation.input_tokens": 11,
            "server.address": "127.0.0.1",
            "server.port": int(served.model.url.rpartition(":")[2]),
            "http.response.status_code": 200,
            "loopway.upstream": "here",
        }
        assert answer.headers["x-trace-id"] == span.trace_id


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_call_that_no_hook_sees(stream: bool, traced: Traced) -> None:
    """A reply that is only passed on tells its id, model, ending and usage all the same."""
    async with traced(script=[Reply(text("four"), usage={"input_tokens": 3, "output_tokens": 5})]) as (
        served,
        collector,
    ):
        await ask(served, stream=stream)
        served.gateway.flush()
        span = collector.one("chat demo")
        assert span["gen_ai.response.id"].startswith("msg_")
        assert (span["gen_ai.usage.input_tokens"], span["gen_ai.usage.output_tokens"]) == (3, 5)
        assert span["gen_ai.response.finish_reasons"] == ["end_turn"]


async def test_request(traced: Traced) -> None:
    """The request's span follows the HTTP conventions and sums the exchange up."""
    async with traced(hooks=[Puppet()], script=CASES["a rerun"][0], key="secret-key") as (served, collector):
        await ask(served, headers={"x-request-id": "mine-1", "user-agent": "tests/1"})
        served.gateway.flush()
        span = collector.one("SERVER")
        seconds = [span.attributes.pop(f"loopway.{what}_seconds") for what in ("upstream", "hook")]
        assert all(one > 0 for one in seconds)
        assert span.attributes == {
            "http.request.method": "POST",
            "http.route": "/v1/messages",
            "http.response.status_code": 200,
            "url.path": "/v1/messages",
            "url.scheme": "http",
            "network.protocol.version": "1.1",
            "server.address": "127.0.0.1",
            "server.port": int(served.url.rpartition(":")[2]),
            "client.address": "127.0.0.1",
            "user_agent.original": "tests/1",
            "loopway.request_id": "mine-1",
            "loopway.dialect": "messages",
            "loopway.model": "demo",
            "loopway.stream": False,
            "loopway.key": "tests",
            "loopway.loop.iterations": 2,
            "loopway.tokens.input": 20,
            "loopway.tokens.output": 10,
        }
        assert span.resource["service.name"] == "loopway"


async def test_hook_events(traced: Traced) -> None:
    """Each phase of a hook is an event of its iteration; a failed one has the kind of its failure."""
    async with traced(hooks=[Puppet()], script=CASES["a hook failure"][0]) as (served, collector):
        await ask(served)
        served.gateway.flush()
        iteration = collector.one("agentic_loop.iteration")
        assert [(name, told.get("error.type")) for name, told in iteration.events] == [
            ("loopway.hook.gate", None),
            ("loopway.hook.plan", "RuntimeError"),
        ]
        assert iteration.failed
        assert iteration["error.type"] == "hook_failed"
        assert iteration["loopway.hook"].endswith("Puppet")
        assert (collector.one("SERVER").failed, collector.one("CLIENT").failed) == (True, False)


async def test_tool_errors(traced: Traced) -> None:
    """A tool that fails is marked; the iteration around it is not, since the loop goes on."""
    async with traced(hooks=[lookup], script=CASES["server tools"][0]) as (served, collector):
        await ask(served)
        served.gateway.flush()
        tools = collector.all("execute_tool lookup")
        assert sorted(str(one["error.type"]) for one in tools) == ["None", "tool_error"]
        assert not collector.all("agentic_loop.iteration")[0].failed
        assert {one["gen_ai.tool.type"] for one in tools} == {"extension"}


async def test_upstream_error(traced: Traced) -> None:
    """A refusal of the upstream is the call's error; a 4xx is none of the request's own."""
    async with traced(hooks=[Puppet()], script=CASES["an upstream 429"][0]) as (served, collector):
        await ask(served)
        served.gateway.flush()
        chat, server = collector.one("CLIENT"), collector.one("SERVER")
        assert (chat.failed, chat["error.type"], chat["http.response.status_code"]) == (True, "429", 429)
        assert (server.failed, server["error.type"], server["http.response.status_code"]) == (False, None, 429)
        assert server["loopway.error"] == "upstream_status"


async def test_retries(traced: Traced) -> None:
    """A call is one CLIENT span however often it is tried: tries that failed are its events."""
    script = [Reply(error=(503, "no"), headers={"retry-after": "0"}), END]
    async with traced(script=script, upstreams={"here": {"max_retries": 1}}) as (served, collector):
        await ask(served)
        served.gateway.flush()
        chat = collector.one("CLIENT")
        assert (chat["http.request.resend_count"], chat["http.response.status_code"], chat.failed) == (1, 200, False)
        assert [(name, told["error.type"]) for name, told in chat.events] == [("loopway.upstream.try_failed", "503")]


async def test_fallback(traced: Traced) -> None:
    """A fallback is a CLIENT span of its own in the same iteration."""
    models = [{"name": "demo", "upstream": "here", "fallback": "other"}, {"name": "other", "upstream": "here"}]
    script = {"demo": [Reply(error=(503, "no"))], "other": [END]}
    async with traced({"models": models}, script=script) as (served, collector):
        await ask(served)
        served.gateway.flush()
        assert collector.tree() == [POST, ITERATION, CHAT, "    CLIENT chat other"]
        assert collector.one("chat demo")["error.type"] == "503"


async def test_error_behind_the_first_byte(traced: Traced) -> None:
    """A stream that breaks was delivered with 200 and failed all the same."""
    async with traced(hooks=[Puppet()], script=[Reply(text("fo"), cut())]) as (served, collector):
        await ask(served, stream=True)
        served.gateway.flush()
        server, chat = collector.one("SERVER"), collector.one("CLIENT")
        assert (server["http.response.status_code"], server["error.type"], server.failed) == (
            200, "upstream_broken", True,
        )  # fmt: skip
        assert (chat["error.type"], chat.failed) == ("upstream_broken", True)


@pytest.mark.parametrize("hooks", [[Puppet()], []], ids=["watched", "passed on"])
async def test_client_leaves_in_mid_stream(hooks: list[Any], traced: Traced) -> None:
    """When the client leaves in mid-stream every span ends, and none is anybody's error."""
    never = asyncio.Event()
    async with traced(hooks=hooks, script=[Reply(text("read me", pieces=1), hold(never))]) as (served, collector):
        async with served.http.stream("POST", "/v1/messages", json=body(stream=True)) as answer:
            async for piece in answer.aiter_text():
                if "read me" in piece:
                    break
        await served.model.until(lambda: served.model.requests[0].state == "left")
        await served.gateway.admission._wait_empty(5.0)
        served.gateway.flush()
        assert collector.tree() == [POST, ITERATION, CHAT]
        assert not any(span.failed for span in collector.spans)
        assert collector.one("SERVER")["loopway.client_left"] == "stream"
        for name in ("CLIENT", "agentic_loop.iteration"):
            assert collector.one(name)["error.type"] == "cancelled"
        assert collector.one("CLIENT")["gen_ai.response.time_to_first_chunk"] > 0


# --- the trace context ---


def sent(served: Served, number: int = 0) -> dict[str, str]:
    return served.model.requests[number].headers


async def test_context_leads(traced: Traced) -> None:
    """The client's trace context leads the trace, and the upstream gets the call's own place in it."""
    async with traced(script=[END]) as (served, collector):
        await ask(served, headers={"traceparent": PARENT, "tracestate": "vendor=1"})
        served.gateway.flush()
        server, chat = collector.one("SERVER"), collector.one("CLIENT")
        assert (server.trace_id, server.parent) == (PARENT[3:35], PARENT[36:52])
        assert sent(served)["traceparent"] == f"00-{chat.trace_id}-{chat.id}-01"
        assert sent(served)["tracestate"] == "vendor=1"
        assert server.trace_state == "vendor=1"


BAD = [
    "", "nonsense", PARENT[:-1], PARENT.upper(), PARENT + "-more", "ff" + PARENT[2:], PARENT.replace("0af7", "0 f7"),
    "00-" + "0" * 32 + PARENT[35:], PARENT[:36] + "0" * 16 + PARENT[52:], "00", "\u00e9",
]  # fmt: skip


@pytest.mark.parametrize("parent", BAD)
def test_malformed_context(parent: str) -> None:
    """A malformed trace context is no trace context: a new trace begins, without the client's tracestate."""
    from opentelemetry.sdk.trace import TracerProvider

    tracing = Tracing(service_name="x", provider_of=str, provider=TracerProvider(shutdown_on_exit=False))
    tracing.start()
    subject = Subject(request_id="r", dialect="messages", began=0.0, route="/v1/messages", traceparent=parent)
    subject.tracestate = "vendor=1"
    headers = {"traceparent": parent, "tracestate": "vendor=1"}
    began = CallBegan(depth=0, upstream="u", model="m", server="s", port=1, parameters=dict, headers=headers)

    def tell() -> None:
        tracing(subject, Began())
        tracing(subject, began)

    contextvars.copy_context().run(tell)
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[13]", headers["traceparent"])
    assert headers["traceparent"][3:35] != PARENT[3:35]
    assert "tracestate" not in headers


async def test_each_iteration_is_in_the_trace(traced: Traced) -> None:
    """The upstream call of each iteration carries its own span's context."""
    async with traced(hooks=[Puppet()], script=CASES["a rerun"][0]) as (served, collector):
        await ask(served)
        served.gateway.flush()
        told = [sent(served, number)["traceparent"].split("-")[2] for number in range(2)]
        assert told == [span.id for span in collector.all("chat demo")]


@pytest.mark.parametrize("sampler", ["always_off", "traceidratio"])
async def test_unsampled(sampler: str, traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unsampled exchange sends no span, reads no parameters, and its context says so upstream."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    async with traced(hooks=[Puppet()], script=CASES["a rerun"][0]) as (served, collector):
        answer = await ask(served)
        served.gateway.flush()
        assert collector.spans == []
        version, trace_id, _, flags = sent(served)["traceparent"].split("-")
        assert (version, int(flags, 16) & 1) == ("00", 0)
        assert "x-trace-id" not in answer.headers
        assert served.lines("exchange")[0]["trace_id"] == trace_id


async def test_unsampled_parent(traced: Traced) -> None:
    """The client's decision not to sample is followed, and its trace goes on upstream."""
    async with traced(script=[END]) as (served, collector):
        await ask(served, headers={"traceparent": UNSAMPLED})
        served.gateway.flush()
        assert collector.spans == []
        assert sent(served)["traceparent"].startswith(UNSAMPLED[:36])
        assert sent(served)["traceparent"].endswith("-00")


# --- who else is there ---


async def test_hooks_own_spans(traced: Traced) -> None:
    """A span that a hook makes with OpenTelemetry's API stands below the iteration."""
    from opentelemetry import trace

    seen: list[int] = []

    class Looking(Puppet):
        async def async_should_run_agentic_loop(self, *arguments: Any, **more: Any) -> tuple[bool, Any]:
            seen.append(trace.get_current_span().get_span_context().span_id)
            return await super().async_should_run_agentic_loop(*arguments, **more)

    async with traced(hooks=[Looking()], script=[END]) as (served, collector):
        await ask(served)
        served.gateway.flush()
        assert f"{seen[0]:016x}" == collector.one("agentic_loop.iteration").id


async def test_tools_own_spans(traced: Traced) -> None:
    """What a server tool does stands below its own span, also where several run at once."""
    from opentelemetry import trace

    seen: list[str] = []

    @server_tool
    async def looking(n: int) -> str:
        """Looks."""
        await asyncio.sleep(0)
        seen.append(f"{trace.get_current_span().get_span_context().span_id:016x}")
        return str(n)

    script = [Reply(call("looking", {"n": 1}), call("looking", {"n": 2})), END]
    async with traced(hooks=[looking], script=script) as (served, collector):
        await ask(served)
        served.gateway.flush()
        assert sorted(seen) == sorted(span.id for span in collector.all("execute_tool looking"))


async def test_no_second_client_span(traced: Traced) -> None:
    """An instrumentation of HTTP clients is told to leave our calls alone, and only those."""
    from opentelemetry.instrumentation.utils import is_http_instrumentation_enabled

    seen: list[bool] = []

    class Looking(Puppet):
        async def async_should_run_agentic_loop(self, *arguments: Any, **more: Any) -> tuple[bool, Any]:
            seen.append(is_http_instrumentation_enabled())
            return await super().async_should_run_agentic_loop(*arguments, **more)

    async with traced(hooks=[Looking()], script=[END]) as (served, collector):
        transport = served.gateway.upstreams["here"]._transport
        send = transport.handle_async_request

        async def sending(request: httpx.Request) -> httpx.Response:
            seen.append(is_http_instrumentation_enabled())
            return await send(request)

        transport.handle_async_request = sending  # type: ignore[method-assign]
        await ask(served)
        served.gateway.flush()
        assert seen == [False, True]
        assert len(collector.spans) == 3


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_protocols(protocol: str, traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans come over both protocols, with the configured headers and resource."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=night")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "named-by-otel")
    async with traced(protocol=protocol, script=[END]) as (served, collector):
        await ask(served)
        served.gateway.flush()
        assert collector.tree() == [POST, ITERATION, CHAT]
        assert collector.headers[0]["x-tenant"] == "blue"
        resource = collector.spans[0].resource
        assert (resource["service.name"], resource["deployment.environment.name"]) == ("named-by-otel", "night")


async def test_refused_at_the_door(traced: Traced) -> None:
    """A request without a good key is a span of its own, with its status."""
    async with traced(script=[END], key="secret-key") as (served, collector):
        answer = await ask(served, headers={"x-api-key": "wrong"})
        served.gateway.flush()
        assert answer.status_code == 401
        assert collector.tree() == [POST]
        assert collector.one("SERVER")["loopway.error"] == "unauthorized"
        assert "secret-key" not in str([vars(span) for span in collector.spans])


async def test_passed_on_paths(traced: Traced) -> None:
    """What is only passed on has no iteration, and its own operation."""
    async with traced(script=lambda _: Reply(error=(200, {"data": []}))) as (served, collector):
        await served.http.post("/v1/embeddings", json={"model": "demo", "input": "x"})
        served.gateway.flush()
        assert collector.tree() == ["SERVER POST /v1/embeddings", "  CLIENT embeddings demo"]
        assert collector.one("CLIENT")["gen_ai.operation.name"] == "embeddings"


async def test_values_that_no_exporter_can_encode(traced: Traced) -> None:
    """Numbers and types that a client or an upstream makes up cost no span."""
    usage = {"input_tokens": 10**30, "output_tokens": 1}
    async with traced(hooks=[Puppet()], script=[Reply(text("x"), usage=usage)]) as (served, collector):
        await ask(
            served, temperature={"a": 1}, top_p=True, top_k=2**64 - 1, seed=2**63, stop_sequences=[1, None], n=True
        )
        served.gateway.flush()
        chat = collector.one("CLIENT")
        sent = {name for name in chat.attributes if name.startswith("gen_ai.request.")}
        assert sent == {"gen_ai.request.model", "gen_ai.request.max_tokens"}
        assert chat["gen_ai.usage.input_tokens"] == 2**63 - 1


# --- prompts ---


@pytest.mark.parametrize("wanted", ["", "false", "true", "span_only"])
async def test_content(wanted: str, traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts and replies are in spans only if the operator asked for them."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", wanted)
    async with traced(hooks=[Puppet()], script=[Reply(text("it is four"))]) as (served, collector):
        await ask(served, system="be brief")
        served.gateway.flush()
        shown = str([vars(span) for span in collector.spans])
        for words in ("how much is it?", "it is four", "be brief"):
            assert (words in shown) is (wanted in ("true", "span_only"))


async def test_parameters_are_read_for_recorded_calls_only(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a sampled trace nobody reads a request's parameters."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    from loopway.dialects.request import Request

    async with traced(script=[END]) as (served, _collector):
        monkeypatch.setattr(Request, "parameters", None)
        assert (await ask(served)).status_code == 200
        assert any(isinstance(note, CallBegan) for note in served.notes)


async def test_dead_collector(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a collector at the endpoint requests are answered, and the flush ends in its time."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    async with traced(script=[END]) as (served, collector):
        monkeypatch.setattr(collector, "take", None)
        assert (await ask(served)).status_code == 200
        assert served.gateway.tracing is not None
        served.gateway.tracing.stop(0.05)


def test_collector_is_strict() -> None:
    """The tests' own collector finds a span that is there twice."""
    with pytest.raises(AssertionError):
        Collector().one("CLIENT")
