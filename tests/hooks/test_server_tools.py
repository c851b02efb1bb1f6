"""One function is a hook: its schema, its arguments, its results, and its calls through the running gateway."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Any, Literal

import anthropic
import msgspec
import openai
import pytest

from inprocess import BOTH, KEY, gateway_over, request_body
from loopway import ToolContext, ToolError, ToolResult, server_tool
from loopway.engine.notes import ToolRan
from loopway.testing import Reply, call, text, thinking
from puppets import Puppet

both = pytest.mark.parametrize("dialect", BOTH)


class Place(msgspec.Struct):
    lat: float
    lon: float


@server_tool
async def get_weather(
    city: str,
    context: ToolContext,
    unit: Literal["c", "f"] = "c",
    place: Place | None = None,
    tags: list[str] = [],  # noqa: B006 - a default that must be copied
) -> str:
    """Current weather in a city.

    Works worldwide.

    Args:
        city: The city's
            name.
        unit: Celsius or Fahrenheit.

    Returns:
        One sentence.
    """
    if city == "nowhere":
        raise ToolError("There is no such city.")
    if city == "broken":
        raise RuntimeError("the station is away")
    tags.append("seen")
    return f"{city}: rain, {unit}, {len(tags)} for {context.key_name}"


@server_tool
def add(a: int, b: Annotated[int, msgspec.Meta(description="The other.", ge=0)] = 1) -> int:
    """Adds."""
    return a + b


def test_the_schema_comes_from_signature_and_docstring() -> None:
    """Types, defaults, descriptions, nested structs; the context is no argument."""
    tool = get_weather.tool
    assert tool.name == "get_weather"
    assert tool.description == "Current weather in a city.\n\nWorks worldwide.\n\nReturns One sentence."
    properties = tool.schema["properties"]
    assert list(properties) == ["city", "unit", "place", "tags"]
    assert properties["city"] == {"type": "string", "description": "The city's name."}
    assert properties["unit"]["enum"] == ["c", "f"]
    assert tool.schema["required"] == ["city"]
    assert tool.schema["additionalProperties"] is False
    assert tool.schema["$defs"]["Place"]["required"] == ["lat", "lon"]
    assert add.tool.schema["properties"]["b"] == {
        "type": "integer",
        "description": "The other.",
        "minimum": 0,
        "default": 1,
    }


def test_the_function_stays_callable() -> None:
    """A server tool is still the function that it was."""
    assert add(1, 2) == 3
    assert add.__doc__ == "Adds."


def _no_type(a): ...  # type: ignore[no-untyped-def]
def _stars(*a: int) -> Any: ...
def _more(**a: int) -> Any: ...
def _positional(a: int, /) -> Any: ...
def _unschemable(a: threading.Thread) -> Any: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_no_type, "has no type"),
        (_stars, "name each argument"),
        (_more, "name each argument"),
        (_positional, "positional only"),
        (_unschemable, "no JSON Schema"),
    ],
)
def test_a_signature_that_no_model_can_be_told_is_refused(function: Any, words: Any) -> None:
    """The refusal says what to write."""
    with pytest.raises(TypeError, match=words):
        server_tool(function)


def test_a_name_that_no_provider_takes_is_refused() -> None:
    """Letters, digits, _ and -, at most 64."""
    with pytest.raises(TypeError, match="no name for a tool"):
        server_tool(name="with space")(add)


def context(**more: Any) -> ToolContext:
    given = {"request_id": "r", "call_id": "c", "tool": "t", "model": "m", "dialect": "messages", "depth": 0}
    return ToolContext(**{**given, "key_name": "", **more})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "missing required field `city`"),
        ({"city": 5}, "$.city"),
        ({"city": "x", "zz": 1}, "unknown field `zz`"),
        ({"city": "x", "unit": "k"}, "$.unit"),
        ({"city": "x", "place": {"lat": 1}}, "lon"),
    ],
)
async def test_wrong_arguments_tell_the_model_what_to_mend(arguments: Any, words: Any) -> None:
    """The path and what was expected are in the error result."""
    with pytest.raises(ToolError) as refused:
        await get_weather.call("get_weather", arguments, context())
    assert words in str(refused.value)


async def test_defaults_are_copied_per_call() -> None:
    """A list that a call appends to is not the next call's."""
    first = await get_weather.call("get_weather", {"city": "Oslo"}, context())
    assert await get_weather.call("get_weather", {"city": "Oslo"}, context()) == first


async def test_a_plain_function_runs_in_a_thread() -> None:
    """It may block without holding up the gateway."""
    seen: list[str] = []

    @server_tool
    def where() -> str:
        """Says where it runs."""
        seen.append(threading.current_thread().name)
        return "ok"

    await where.call("where", {}, context())
    assert seen != [threading.main_thread().name]


# --- through the gateway ---


def tool_results(dialect: str, messages: list[Any]) -> list[tuple[str, Any, bool]]:
    """(call id, content, error) of the results behind the last assistant turn."""
    if dialect == "messages":
        return [
            (one["tool_use_id"], one["content"], one.get("is_error", False))
            for one in messages[-1]["content"]
            if one["type"] == "tool_result"
        ]
    return [
        (one["tool_call_id"], one["content"], one["content"].startswith("Error: "))
        for one in messages
        if one["role"] == "tool"
    ]


PARALLEL = [
    Reply(
        thinking("let me see", "sig"),
        text("hm"),
        call("get_weather", {"city": "Oslo"}, id="a"),
        call("get_weather", {"city": "broken"}, id="b"),
        call("add", {"a": 1}, id="c"),
    ),
    Reply(text("done", pieces=1)),
]


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_all_calls_of_a_reply_are_answered_in_one_rerun(dialect: Any, stream: Any) -> None:
    """Exact echo, results in call order, a failing tool is an error result, one answer, no call at the client."""
    async with gateway_over({"m": PARALLEL}, [get_weather, add]) as run:
        body = request_body(dialect, tools=["theirs"])
        if stream:
            async with run.stream(dialect, body) as answer:
                raw = (await answer.aread()).decode()
        else:
            raw = (await run.post(dialect, body)).text
        first, second = (one.body for one in run.model.requests)
    assert "done" in raw
    assert "get_weather" not in raw
    assert tool_results(dialect, second["messages"]) == [
        ("a", "Oslo: rain, c, 1 for tester", False),
        (
            "b",
            ("Error: " if dialect == "chat_completions" else "")
            + "get_weather failed: RuntimeError: the station is away",
            True,
        ),
        ("c", "2", False),
    ]
    assert second["tools"] == first["tools"]
    names = [one.get("name") or one["function"]["name"] for one in first["tools"]]
    assert names == ["theirs", "get_weather", "add"]
    if dialect == "messages":
        turn = second["messages"][-2]["content"]
        assert [block["type"] for block in turn] == ["thinking", "text", "tool_use", "tool_use", "tool_use"]
        assert turn[0] == {"type": "thinking", "thinking": "let me see", "signature": "sig"}


async def test_the_official_sdks_see_one_answer() -> None:
    """Anthropic and openai, JSON and stream, over the same function."""
    async with gateway_over({"m": [*PARALLEL, *PARALLEL, *PARALLEL, *PARALLEL]}, [get_weather, add]) as run:
        claude = anthropic.AsyncAnthropic(base_url=run.url, api_key=KEY, max_retries=0)
        chat = openai.AsyncOpenAI(base_url=run.url + "/v1", api_key=KEY, max_retries=0)
        question: Any = [{"role": "user", "content": "weather?"}]
        message = await claude.messages.create(model="m", max_tokens=50, messages=question)
        assert [getattr(block, "text", None) for block in message.content] == ["done"]
        async with claude.messages.stream(model="m", max_tokens=50, messages=question) as stream:
            final = await stream.get_final_message()
        assert [block.type for block in final.content] == ["thinking", "text", "text"]
        assert final.stop_reason == "end_turn"
        completion = await chat.chat.completions.create(model="m", messages=question)
        assert completion.choices[0].message.content == "done"
        chunks = [one async for one in await chat.chat.completions.create(model="m", messages=question, stream=True)]
        assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == "hm\n\ndone"
        await claude.close()
        await chat.close()


@both
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("server_first", [False, True])
async def test_a_mixed_reply_loses_nothing_and_runs_nothing_twice(dialect: Any, stream: Any, server_first: Any) -> None:
    """The client gets its call; when it answers, the server's is run once, and the history is whole from then on."""
    runs: list[str] = []

    @server_tool
    async def look(word: str) -> str:
        """Looks a word up."""
        runs.append(word)
        return f"found {word}"

    mixed = [call("look", {"word": "x"}, id="ours"), call("theirs", {"n": 1}, id="yours")]
    if not server_first:
        mixed.reverse()
    script = [
        Reply(call("look", {"word": "first"}, id="before")),
        Reply(thinking("hm", "sig"), text("both"), *mixed),
        Reply(text("end")),
        Reply(text("more")),
    ]
    async with gateway_over({"m": script}, [look]) as run:
        body = request_body(dialect, tools=["theirs"])
        turn = await _turn(run, dialect, body, stream=stream)
        assert runs == ["first"]
        assert _ids(dialect, turn) == ["yours"]
        answer = _answer(dialect)
        again = {**body, "messages": [*body["messages"], turn, *answer]}
        for follow in ([], [{"role": "assistant", "content": "end"}, {"role": "user", "content": "more?"}]):
            asked = {**again, "messages": [*again["messages"], *follow]}
            assert (await run.post(dialect, asked)).status_code == 200
        third, fourth = (one.body["messages"] for one in run.model.requests[2:])
        assert runs == ["first", "x"]
        assert third == fourth[: len(third)]
        order = ["ours", "yours"] if server_first else ["yours", "ours"]
        if dialect == "messages":
            history = third[3]["content"]
            assert [one["type"] for one in history] == ["thinking", "text", "tool_use", "tool_use"]
            assert history[0]["signature"] == "sig"
            assert [one["id"] for one in history[2:]] == order
            assert [one.get("tool_use_id") for one in third[4]["content"]] == [*order, None]
            assert third[1]["content"][0]["id"] == "before"
        else:
            assert [one["id"] for one in third[3]["tool_calls"]] == order
            assert [one["tool_call_id"] for one in third[4:6]] == order
            assert third[6] == {"role": "user", "content": "go on"}


async def _turn(run: Any, dialect: str, body: Any, *, stream: bool) -> Any:
    """The assistant turn that a client would put into its history."""
    if dialect == "messages":
        claude = anthropic.AsyncAnthropic(base_url=run.url, api_key=KEY, max_retries=0)
        if stream:
            async with claude.messages.stream(**body) as opened:
                message = await opened.get_final_message()
        else:
            message = await claude.messages.create(**body)
        await claude.close()
        content = [block.model_dump(exclude_none=True) for block in message.content]
        return {"role": "assistant", "content": content}
    chat = openai.AsyncOpenAI(base_url=run.url + "/v1", api_key=KEY, max_retries=0)
    if stream:
        async with chat.chat.completions.stream(**body) as opened_chat:
            completion = await opened_chat.get_final_completion()
    else:
        completion = await chat.chat.completions.create(**body)
    await chat.close()
    dumped = completion.choices[0].message.model_dump(exclude_none=True)
    for one in dumped["tool_calls"]:
        one["function"].pop("parsed_arguments", None)
    dumped.pop("parsed", None)
    return dumped


def _ids(dialect: str, turn: Any) -> list[str]:
    if dialect == "messages":
        return [block["id"] for block in turn["content"] if block["type"] == "tool_use"]
    return [one["id"] for one in turn["tool_calls"]]


def _answer(dialect: str) -> list[Any]:
    if dialect == "messages":
        content = [
            {"type": "tool_result", "tool_use_id": "yours", "content": "mine"},
            {"type": "text", "text": "go on"},
        ]
        return [{"role": "user", "content": content}]
    return [{"role": "tool", "tool_call_id": "yours", "content": "mine"}, {"role": "user", "content": "go on"}]


@both
async def test_another_key_cannot_read_a_kept_half(dialect: Any) -> None:
    """The same call id under another key finds nothing, and the exchange goes on without it."""
    runs: list[int] = []

    @server_tool
    async def look(n: int) -> str:
        """Looks."""
        runs.append(n)
        return "secret"

    script = [Reply(call("look", {"n": 1}, id="ours"), call("theirs", {}, id="yours")), Reply(text("end"))]
    keys = {"keys": [{"name": "tester", "key": KEY}, {"name": "other", "key": "another-key-1"}]}
    async with gateway_over({"m": script}, [look], auth=keys) as run:
        body = request_body(dialect, tools=["theirs"])
        first = (await run.post(dialect, body)).json()
        content = first["content"] if dialect == "messages" else None
        turn = {"role": "assistant", "content": content} if content else first["choices"][0]["message"]
        again = {**body, "messages": [*body["messages"], turn, *_answer(dialect)]}
        assert (await run.post(dialect, again, key="another-key-1")).status_code == 200
        sent = run.model.requests[-1].body["messages"]
    assert runs == []
    assert "secret" not in str(sent)
    assert len(sent) == len(again["messages"])


@both
async def test_a_hook_and_a_tool_in_one_reply_are_answered_in_one_rerun(dialect: Any) -> None:
    """The hook's patch gets the tool's call and result beside its own, in call order."""
    script = [
        Reply(call("add", {"a": 1}, id="t"), call("mine", {"n": 5}, id="h"), call("add", {"a": 2}, id="u")),
        Reply(text("end")),
    ]
    async with gateway_over({"m": script}, [Puppet(), add]) as run:
        await run.post(dialect, request_body(dialect, tools=["mine"]))
        sent = run.model.requests[1].body["messages"]
    results = [(id_, content) for id_, content, _ in tool_results(dialect, sent)]
    assert results == [("t", "2"), ("h", "result 5"), ("u", "3")]


@both
async def test_a_tool_that_the_client_declares_is_the_clients(dialect: Any) -> None:
    """Never both: the client's own wins, and the tool is offered once."""
    async with gateway_over({"m": [Reply(call("add", {"a": 1}))]}, [add]) as run:
        answer = (await run.post(dialect, request_body(dialect, tools=["add"]))).json()
        offered = run.model.requests[0].body["tools"]
    assert len(offered) == 1
    assert "add" in str(answer.get("content") or answer["choices"][0]["message"]["tool_calls"])


async def test_a_tool_may_be_for_some_models_only() -> None:
    """Other models are not offered it."""
    special = server_tool(name="special", models=["m"])(lambda: "x")
    async with gateway_over({"m": [Reply(text("x"))], "n": [Reply(text("x"))]}, [special]) as run:
        for model in ("m", "n"):
            await run.post("messages", request_body("messages", model, tools=[]))
        assert ["tools" in one.body for one in run.model.requests] == [True, False]


@pytest.mark.parametrize(
    ("returned", "content", "error"),
    [
        ({"a": [1]}, '{"a":[1]}', False),
        (None, "", False),
        (Place(1.5, 2.5), '{"lat":1.5,"lon":2.5}', False),
        (ToolResult(content="no", error=True), "no", True),
        (ToolResult(content=[{"type": "text", "text": "x"}]), [{"type": "text", "text": "x"}], False),
        ("y" * 80, "y" * 60 + "\n[cut: 20 of 80 characters left out]", False),
        (object(), "The tool returned a object, which is no text and no JSON.", True),
    ],
)
async def test_what_a_tool_may_return(returned: Any, content: Any, error: Any) -> None:
    """Text, JSON, blocks, an error; a long one is cut and says so."""

    @server_tool(most_characters=60)
    async def give() -> Any:
        """Gives."""
        return returned

    async with gateway_over({"m": [Reply(call("give", {}, id="g")), Reply(text("end"))]}, [give]) as run:
        await run.post("messages", request_body("messages", tools=[]))
        sent = run.model.requests[1].body["messages"]
    assert tool_results("messages", sent) == [("g", content, error)]


async def test_a_tool_that_hangs_is_an_error_result() -> None:
    """Its own time-out counts, and it is cancelled."""
    cancelled = asyncio.Event()

    @server_tool(timeout_seconds=0.05)
    async def hang() -> str:
        """Hangs."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    async with gateway_over({"m": [Reply(call("hang", {}, id="h")), Reply(text("end"))]}, [hang]) as run:
        await run.post("messages", request_body("messages", tools=[]))
        ran = run.told(ToolRan)
        sent = run.model.requests[1].body["messages"]
    assert cancelled.is_set()
    assert [one.result for one in ran] == ["timeout"]
    assert tool_results("messages", sent) == [("h", "hang gave no result within 0.05 seconds.", True)]


@both
async def test_blocks_that_are_no_json_fail_the_exchange_and_name_the_tool(dialect: Any) -> None:
    """What cannot be sent is no result; the next exchange is untouched."""

    @server_tool
    async def give() -> Any:
        """Gives."""
        return ToolResult(content=[{"type": "text", "text": 5, "odd": object()}])

    script = [Reply(call("give", {}, id="g")), Reply(text("fine"))]
    async with gateway_over({"m": script}, [give]) as run:
        failed = await run.post("messages", request_body("messages", tools=[]))
        again = await run.post(dialect, request_body(dialect, tools=[]))
    assert failed.status_code == 500
    assert "give" in failed.json()["error"]["message"]
    assert again.status_code == 200


@server_tool
async def look_up(word: str) -> str:
    """Looks a word up."""
    return f"found {word}"


async def _mixed_then_answer(run: Any, dialect: str, words: str, *, keep: bool = True) -> list[Any]:
    """A reply that may be mixed, and the client's answer to it; what went upstream then."""
    body = request_body(dialect, tools=["theirs"], words=words)
    turn = await _turn(run, dialect, body, stream=False)
    again = {**body, "messages": [*body["messages"], turn, *_answer(dialect)]}
    assert (await run.post(dialect, again)).status_code == 200
    sent: list[Any] = run.model.requests[-1].body["messages"]
    assert keep is (len(str(sent)) > len(str(again["messages"])))
    return sent


@both
async def test_ids_that_come_again_do_not_mix_conversations(dialect: str) -> None:
    """A server that counts from `call_0` gives two conversations the same ids: each has its own half, or none."""
    script = [
        Reply(text("one"), call("theirs", {"z": 1}, id="yours"), call("look_up", {"word": "ONE"}, id="ours")),
        Reply(text("end")),
        Reply(text("two"), call("theirs", {"z": 1}, id="yours")),
        Reply(text("end")),
        Reply(text("one"), call("theirs", {"z": 1}, id="yours"), call("look_up", {"word": "THREE"}, id="ours")),
        Reply(text("end")),
    ]
    async with gateway_over({"m": script}, [look_up]) as run:
        one = await _mixed_then_answer(run, dialect, "first")
        two = await _mixed_then_answer(run, dialect, "second", keep=False)
        three = await _mixed_then_answer(run, dialect, "first")
    assert "found ONE" in str(one)
    assert "ONE" not in str(two)
    assert ("found THREE" in str(three), "ONE" in str(three)) == (True, False)


@both
async def test_a_tool_that_is_made_up_has_a_result_in_the_restored_turn(dialect: str) -> None:
    """Every call of the turn that goes back has one result; else the provider refuses the history."""
    mixed = [call("look_up", {"word": "x"}, id="ours"), call("invented", {}, id="odd"), call("theirs", {}, id="yours")]
    async with gateway_over({"m": [Reply(*mixed), Reply(text("end"))]}, [look_up]) as run:
        sent = await _mixed_then_answer(run, dialect, "hello")
    found = tool_results(dialect, sent)
    assert [id_ for id_, _, _ in found] == ["ours", "odd", "yours"]
    assert "no tool" in found[1][1]


@both
async def test_a_mixed_reply_cannot_pass_the_limit_of_calls_by(dialect: str) -> None:
    """What is over `max_tool_calls` is not kept for later either."""
    mixed = [call("look_up", {"word": str(n)}, id=f"o{n}") for n in range(3)]
    script = [Reply(*mixed, call("theirs", {}, id="yours")), Reply(text("end"))]
    async with gateway_over({"m": script}, [look_up], loop={"max_tool_calls": 2}) as run:
        sent = await _mixed_then_answer(run, dialect, "hello", keep=False)
        assert run.told(ToolRan) == []
    assert "found" not in str(sent)


class Panic(BaseException):
    """What some native libraries raise."""


@both
async def test_any_exception_of_a_tool_is_an_error_result(dialect: str) -> None:
    """Also one that is no `Exception`."""

    @server_tool
    async def panics() -> str:
        """Panics."""
        raise Panic

    async with gateway_over({"m": [Reply(call("panics", {}, id="p")), Reply(text("end"))]}, [panics]) as run:
        answer = await run.post(dialect, request_body(dialect, tools=[]))
        sent = run.model.requests[1].body["messages"]
    assert answer.status_code == 200
    assert "Panic" in tool_results(dialect, sent)[0][1]
