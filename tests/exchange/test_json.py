"""JSON exchanges over real sockets: what goes upstream, what comes back."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from inprocess import BOTH, gateway_over, request_body
from loopway import AgenticLoopPlan, AgenticLoopRequestPatch
from loopway.engine.notes import Ended, HookRan, IterationDecided, Said
from loopway.testing import Recorded, Reply, call, text, thinking
from puppets import Puppet, text_of

both = pytest.mark.parametrize("dialect", BOTH)


def words(dialect: Any, answer: Any) -> Any:
    if dialect == "messages":
        return "".join(block.get("text", "") for block in answer["content"])
    return answer["choices"][0]["message"]["content"]


def called(dialect: Any, answer: Any) -> Any:
    if dialect == "messages":
        return [block["name"] for block in answer["content"] if block["type"] == "tool_use"]
    return [one["function"]["name"] for one in answer["choices"][0]["message"].get("tool_calls") or []]


def finish(dialect: Any, answer: Any) -> Any:
    return answer["stop_reason"] if dialect == "messages" else answer["choices"][0]["finish_reason"]


PLAIN = {"messages": "end_turn", "chat_completions": "stop"}
CALLS = {"messages": "tool_use", "chat_completions": "tool_calls"}


def always(name: Any = "mine", words: Any = "again") -> Any:
    """A model that always calls with new arguments."""
    numbers = itertools.count()
    return lambda _request: Reply(text(words), call(name, {"n": next(numbers)}))


@both
async def test_one_call_is_answered_on_the_server(dialect: Any) -> None:
    """Two upstream calls, one answer, no call in it, the sum of the usage."""
    script = [Reply(call("mine", {"n": 7}, id="id1")), Reply(text("done"))]
    async with gateway_over({"m": script}, [Puppet()]) as run:
        answer = await run.post(dialect, request_body(dialect))
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (words(dialect, body), called(dialect, body), finish(dialect, body)) == ("done", [], PLAIN[dialect])
    assert answer.headers["x-loopway-iterations"] == "2"
    assert "x-loopway-abort" not in answer.headers
    assert len(run.model.requests) == 2
    last = run.model.requests[1].body["messages"][-1]
    assert "result 7" in str(last)
    usage = body["usage"]
    assert usage["input_tokens" if dialect == "messages" else "prompt_tokens"] == 20


@both
@pytest.mark.parametrize(
    ("model", "request_more", "headers", "calls"),
    [
        ("m", {}, {}, 4),
        ("two", {}, {}, 3),
        ("zero", {}, {}, 1),
        ("m", {"max_agentic_loops": 5}, {}, 6),
        ("m", {"max_agentic_loops": 0}, {}, 1),
        ("m", {"max_agentic_loops": 99}, {}, 11),
        ("two", {"max_agentic_loops": 4}, {}, 5),
        ("m", {}, {"x-max-agentic-loops": "1"}, 2),
        ("m", {}, {"x-max-agentic-loops": "99"}, 11),
    ],
)
async def test_the_nearest_limit(dialect: Any, model: Any, request_more: Any, headers: Any, calls: Any) -> None:
    """Request before model before default, clamped to the ceiling; never sent upstream; said in the head."""
    special = [
        {"name": "two", "upstream": "scripted", "max_agentic_loops": 2},
        {"name": "zero", "upstream": "scripted", "max_agentic_loops": 0},
    ]
    scripts = {name: always() for name in ("m", "two", "zero")}
    async with gateway_over(scripts, [Puppet()], models=special) as run:
        answer = await run.post(dialect, request_body(dialect, model, **request_more), headers=headers)
        sent = run.model.requests
    assert answer.status_code == 200, answer.text
    assert len(sent) == calls
    assert answer.headers["x-loopway-abort"] == "max_agentic_loops"
    assert answer.headers["x-loopway-iterations"] == str(calls)
    assert (called(dialect, answer.json()), finish(dialect, answer.json())) == ([], PLAIN[dialect])
    for one in sent:
        assert "max_agentic_loops" not in one.body
        assert "x-max-agentic-loops" not in one.headers


@both
async def test_the_same_call_with_fresh_ids_aborts(dialect: Any) -> None:
    """Two upstream calls, and the reason is the fingerprint."""
    async with gateway_over({"m": lambda _r: Reply(call("mine", {"a": 1, "b": [2]}))}, [Puppet()]) as run:
        answer = await run.post(dialect, request_body(dialect))
    assert len(run.model.requests) == 2
    assert answer.headers["x-loopway-abort"] == "fingerprint"
    decided = run.told(IterationDecided)
    assert [(one.outcome, one.breach) for one in decided] == [("rerun", None), ("terminate", "fingerprint")]
    assert decided[0].fingerprint == decided[1].fingerprint


@both
@pytest.mark.parametrize("loop", [{"max_seconds": 0.0001}, {"max_tool_calls": 0}], ids=["seconds", "calls"])
async def test_seconds_and_calls_are_limits_of_their_own(dialect: Any, loop: Any) -> None:
    """Either cuts the loop before a tool runs, and is named."""
    hook = Puppet()
    async with gateway_over({"m": always()}, [hook], loop=loop) as run:
        answer = await run.post(dialect, request_body(dialect))
    assert answer.headers["x-loopway-abort"] == next(iter(loop))
    assert hook.plans == []


@both
async def test_a_limit_may_be_spent_on_a_final_answer(dialect: Any) -> None:
    """One more call: tools kept, choice none, the open calls answered with a refusal."""
    turns = [
        Reply(call("mine", {"n": 1})),
        Reply(thinking("hm", "sig"), text("b"), call("mine", {"n": 2}, id="open")),
        Reply(text("final")),
    ]
    loop = {"on_limit": "final_answer", "max_agentic_loops": 1}
    async with gateway_over({"m": turns}, [Puppet()], loop=loop) as run:
        answer = await run.post(dialect, request_body(dialect))
        last = run.model.requests[2].body
    assert words(dialect, answer.json()) == "final"
    assert answer.headers["x-loopway-abort"] == "max_agentic_loops"
    assert last["tools"] == run.model.requests[0].body["tools"]
    assert last["tool_choice"] == ({"type": "none"} if dialect == "messages" else "none")
    assert "open" in str(last["messages"][-1])
    assert "limit" in str(last["messages"][-1])
    if dialect == "messages":
        assert [block["type"] for block in last["messages"][-2]["content"]] == ["thinking", "text", "tool_use"]
        assert last["messages"][-2]["content"][0]["signature"] == "sig"


@both
@pytest.mark.parametrize(
    ("reply", "ending"),
    [
        (Reply(text("x"), call("mine", {"n": 1}), stop="max_tokens"), ("max_tokens", "length")),
        (Reply(text("x"), call("mine", {"n": 1}), stop="refusal"), ("refusal", "content_filter")),
    ],
    ids=["length", "refusal"],
)
async def test_no_tool_runs_on_a_broken_reply(dialect: Any, reply: Any, ending: Any) -> None:
    """No gate is asked; the reply goes to the client without the server's call and with its own ending."""
    hook = Puppet()
    async with gateway_over({"m": [reply]}, [hook]) as run:
        answer = await run.post(dialect, request_body(dialect))
    assert hook.gates == []
    assert called(dialect, answer.json()) == []
    assert finish(dialect, answer.json()) == ending[BOTH.index(dialect)]


async def test_arguments_that_are_no_json_never_run_a_tool() -> None:
    """Chat Completions tells arguments as text, which a model may break."""
    body = text_of("chat_completions", "x")
    function = {"name": "mine", "arguments": '{"n": '}
    body["choices"][0]["message"]["tool_calls"] = [{"id": "a", "type": "function", "function": function}]
    hook = Puppet()
    async with gateway_over({"m": [Reply(error=(200, body))]}, [hook]) as run:
        answer = await run.post("chat_completions", request_body("chat_completions"))
    assert (hook.gates, called("chat_completions", answer.json())) == ([], [])


@both
async def test_the_clients_own_call_stays_and_the_servers_goes(dialect: Any) -> None:
    """At an end, calls to declared tools are the client's; the finish still announces them."""
    reply = Reply(call("mine", {"n": 1}), call("theirs", {"n": 2}))
    loop = {"max_agentic_loops": 0}
    async with gateway_over({"m": [reply]}, [Puppet()], loop=loop) as run:
        answer = await run.post(dialect, request_body(dialect))
    assert (called(dialect, answer.json()), finish(dialect, answer.json())) == (["theirs"], CALLS[dialect])


@both
async def test_a_call_that_nobody_declared_never_reaches_the_client(dialect: Any) -> None:
    """A model that makes a tool up is not passed on."""
    async with gateway_over({"m": [Reply(text("x"), call("invented", {}))]}, [Puppet(owned=False)]) as run:
        answer = await run.post(dialect, request_body(dialect))
    assert (called(dialect, answer.json()), finish(dialect, answer.json())) == ([], PLAIN[dialect])


# --- plans and patches ---


@both
async def test_a_patch_may_go_to_a_model_on_another_upstream(dialect: Any) -> None:
    """The other upstream gets its own key and its own name of the model, and neither the client's nor the first's."""

    def elsewhere(given: Any) -> Any:
        patch = given["rerun"].request_patch
        patch.model = "other"
        return given["rerun"]

    async with gateway_over({"there": [Reply(text("from there"))]}) as there:
        more = {"base_url": there.model.url, "api_key": "other-key", "dialects": list(BOTH)}
        async with gateway_over(
            {"m": [Reply(call("mine", {"n": 1}))]},
            [Puppet(plan=elsewhere)],
            upstreams={"second": more},
            models=[{"name": "other", "upstream": "second", "model": "there"}],
        ) as run:
            answer = await run.post(dialect, request_body(dialect))
            got = there.model.requests[0]
    assert words(dialect, answer.json()) == "from there"
    assert "other-key" in str(got.headers)
    assert "test-upstream-key-2" not in str(got.headers)
    assert "test-client-key-1" not in str(got.headers)


@both
@pytest.mark.parametrize(
    ("plan", "phrase"),
    [
        (lambda given: None, "None"),
        (lambda given: AgenticLoopPlan(run_agentic_loop=True), "request_patch"),
        (lambda given: 1 / 0, "ZeroDivisionError"),
        (lambda given: AgenticLoopPlan(response_override={"no": "reply"}), "response_override"),
        (
            lambda given: AgenticLoopPlan(
                run_agentic_loop=True, request_patch=AgenticLoopRequestPatch(model="nowhere")
            ),
            "nowhere",
        ),
        (
            lambda given: AgenticLoopPlan(
                run_agentic_loop=True, request_patch=AgenticLoopRequestPatch(optional_params={"x": object()})
            ),
            "no JSON",
        ),
    ],
    ids=["none", "no patch", "raises", "no reply", "unknown model", "no json"],
)
async def test_a_plan_that_cannot_be_carried_out(dialect: Any, plan: Any, phrase: Any) -> None:
    """A 500 that names hook and phase; the next exchange is untouched, and the cause is in the log."""
    script = [Reply(call("mine", {"n": 1})), Reply(text("fine"))]
    async with gateway_over({"m": script}, [Puppet(plan=plan)]) as run:
        answer = await run.post(dialect, request_body(dialect))
        again = await run.post(dialect, request_body(dialect))
    assert answer.status_code == 500
    message = answer.json()["error"]["message"]
    assert "puppets.Puppet" in message
    assert "plan" in message
    assert phrase in message
    assert "Traceback" not in answer.text
    assert again.status_code == 200
    assert any(note.error for note in run.told(HookRan))


@both
async def test_a_post_hook_replaces_the_reply_of_a_rerun(dialect: Any) -> None:
    """What it returns is the reply that gates see and the client gets."""

    class Post(Puppet):
        async def async_post_agentic_loop_response_hook(self, response: Any, plan: Any, kwargs: Any) -> Any:
            return text_of(dialect, "replaced")

    hook = Post()
    async with gateway_over({"m": [Reply(call("mine", {"n": 1})), Reply(text("secret"))]}, [hook]) as run:
        answer = await run.post(dialect, request_body(dialect))
    assert words(dialect, answer.json()) == "replaced"
    assert "secret" not in str(hook.gates[-1]["response"])


@both
async def test_clean_up_runs_once_per_plan_on_every_exit(dialect: Any) -> None:
    """Rerun, override, terminate, skip and a failure: as many clean-ups as plans."""
    outcomes = iter(["rerun", "rerun", "terminate", "override", "skip", "raise"])

    def plan(given: Any) -> Any:
        match next(outcomes):
            case "rerun":
                return given["rerun"]
            case "terminate":
                return AgenticLoopPlan(terminate=True)
            case "override":
                return AgenticLoopPlan(response_override=text_of(dialect, "o"))
            case "skip":
                return AgenticLoopPlan()
        raise RuntimeError

    hook = Puppet(plan=plan)
    async with gateway_over({"m": always()}, [hook]) as run:
        for _ in range(4):
            await run.post(dialect, request_body(dialect))
    assert len(hook.plans) == 6
    assert len(hook.cleaned) == 5  # the one that raised made no plan


@both
async def test_two_hundred_exchanges_at_once_keep_their_state_apart(dialect: Any) -> None:
    """What one exchange carries in kwargs is never seen by another."""

    def carry(given: Any) -> Any:
        number = given["calls"][0]["input"]["n"]
        seen = given["kwargs"].get("carried", [])
        assert all(one // 10 == number // 10 for one in seen)
        given["rerun"].request_patch.kwargs = {"carried": [*seen, number]}
        return given["rerun"]

    def model(request: Recorded) -> Reply:
        first = str(request.body["messages"][0]["content"])
        done = sum("result" in str(one) for one in request.body["messages"])
        if done == 3:
            return Reply(text(first))
        return Reply(call("mine", {"n": int(first) * 10 + done}))

    async with gateway_over({"m": model}, [Puppet(plan=carry)]) as run:
        answers = await asyncio.gather(
            *(run.post(dialect, request_body(dialect, words=str(number))) for number in range(200))
        )
    assert [words(dialect, one.json()) for one in answers] == [str(number) for number in range(200)]
    assert len(run.told(Ended)) == 200


async def test_a_request_for_several_replies_is_passed_on_and_said_once() -> None:
    """N > 1: no loop is run, and the operator reads why."""
    hook = Puppet()
    replies = [Reply(text("x"), call("theirs", {})) for _ in range(2)]
    async with gateway_over({"m": replies}, [hook]) as run:
        for _ in range(2):
            await run.post("chat_completions", request_body("chat_completions", n=2))
    assert hook.gates == []
    assert [note.event for note in run.told(Said)] == ["loop_not_run"]


@both
async def test_an_upstream_error_in_a_rerun_keeps_its_status_and_body(dialect: Any) -> None:
    """It is never a 200."""
    script = [Reply(call("mine", {"n": 1})), Reply(error=(429, {"odd": "body"}), headers={"retry-after": "7"})]
    async with gateway_over({"m": script}, [Puppet()]) as run:
        answer = await run.post(dialect, request_body(dialect))
    assert (answer.status_code, answer.json(), answer.headers["retry-after"]) == (429, {"odd": "body"}, "7")
