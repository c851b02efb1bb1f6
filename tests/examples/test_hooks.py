"""The example hooks, through the official SDKs, in both dialects, JSON and streamed."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import openai
import pytest

from loopway import AgenticLoopHook
from loopway.hooks import registry
from loopway.testing import Reply, Script, call, text, thinking
from served import MODEL, Served, running

FOLDER = Path(__file__).parents[2] / "examples" / "hooks"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py"))
DIALECTS = ["messages", "chat_completions"]


class Got(msgspec.Struct):
    """What the client got, in neutral words."""

    text: str
    calls: list[str]
    stop: str
    tokens: int


@pytest.fixture(autouse=True)
def _folder_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples are imported as a configuration beside them would import them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    importlib.invalidate_caches()


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def ask(
    here: Served, dialect: str, stream: bool, *tools: str, words: str = "hello", max_tokens: int = 500
) -> Got:
    """One request through the dialect's SDK."""
    question: Any = [{"role": "user", "content": words}]
    schema = {"type": "object", "properties": {}}
    if dialect == "messages":
        offered: Any = [{"name": name, "input_schema": schema} for name in tools]
        async with here.anthropic() as client:
            given: Any = {"model": MODEL, "max_tokens": max_tokens, "messages": question, "tools": offered}
            if stream:
                async with client.messages.stream(**given) as events:
                    message = await events.get_final_message()
            else:
                message = await client.messages.create(**given)
        said = "".join(block.text for block in message.content if block.type == "text")
        calls = [block.name for block in message.content if block.type == "tool_use"]
        return Got(said, calls, str(message.stop_reason), message.usage.input_tokens + message.usage.output_tokens)
    offered = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in tools]
    given = {"model": MODEL, "max_tokens": max_tokens, "messages": question, "tools": offered or openai.omit}
    async with here.openai() as client:
        if stream:
            chunks = await client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True})
            return await folded(chunks)
        answer = await client.chat.completions.create(**given)
    choice = answer.choices[0]
    calls = [one.function.name for one in choice.message.tool_calls or []]
    return Got(choice.message.content or "", calls, choice.finish_reason, answer.usage.total_tokens)


async def both(here: Served, dialect: str, *tools: str, **more: Any) -> Got:
    """The same request as JSON and as a stream; the client must get the same."""
    got = await ask(here, dialect, False, *tools, **more)
    assert await ask(here, dialect, True, *tools, **more) == got
    return got


async def folded(chunks: Any) -> Got:
    got = Got("", [], "", 0)
    async for chunk in chunks:
        if chunk.usage is not None:
            got.tokens = chunk.usage.total_tokens
        for choice in chunk.choices:
            got.text += choice.delta.content or ""
            got.calls += [one.function.name for one in choice.delta.tool_calls or [] if one.function.name]
            got.stop = choice.finish_reason or got.stop
    return got


def end(dialect: str) -> str:
    return "end_turn" if dialect == "messages" else "stop"


def results(body: Any, dialect: str) -> list[str]:
    """The tool results at the end of a request."""
    if dialect == "messages":
        return [block["content"] for block in body["messages"][-1]["content"]]
    return [message["content"] for message in body["messages"] if message["role"] == "tool"]


def gateway(*hooks: str, script: Sequence[Reply], large: Sequence[Reply] = (), **more: Any) -> Any:
    """A gateway whose configuration names these hooks by dotted path; its scripts are there twice, for `both`."""
    scripts: dict[str, Script] = {MODEL: [*script, *script], "large": [*large, *large]}
    return running({"hooks": list(hooks)}, script=scripts, **more)


# --- all of them ---


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_says_how_to_name_it(name: str) -> None:
    """The `hooks:` line of each docstring loads, and names an instance of the module itself."""
    docstring = importlib.import_module(name).__doc__ or ""
    [line] = re.findall(r"^    hooks: \[(.+)\]$", docstring, re.MULTILINE)
    loaded = [registry.load(path, FOLDER) for path in line.split(", ")]
    assert all(isinstance(hook, AgenticLoopHook) for hook in loaded)
    assert f"{name}.{name}" in line


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_says_when_to_use_it(name: str) -> None:
    """Two screens at most, and the docstring says what it is for."""
    source = (FOLDER / f"{name}.py").read_text()
    assert source.count("\n") <= 130
    assert "\nUse it " in source


def test_the_readme_lists_each_example() -> None:
    """Every example is in the list, and every file that the list links to is there."""
    readme = (FOLDER.parent / "README.md").read_text()
    linked = re.findall(r"\(hooks/(\w+)\.py\)", readme)
    assert sorted(linked) == NAMES


# --- weather_tool ---


async def test_weather_is_answered_on_the_server(dialect: str) -> None:
    """The client asks once and gets the answer; it never sees the call, and the usage is that of both iterations."""
    script = [Reply(call("get_weather", {"city": "Oslo"})), Reply(text("Take an umbrella."))]
    async with gateway("weather_tool.weather_tool", script=script) as here:
        got = await both(here, dialect, "get_weather")
        assert results(here.model.requests[1].body, dialect) == ["6 °C, rain"]
    assert got == Got("Take an umbrella.", [], end(dialect), 30)


async def test_parallel_calls_are_answered_in_one_rerun(dialect: str) -> None:
    """Two calls in one reply get two results, in call order; an unknown city is told to the model."""
    cities = [call("get_weather", {"city": city}) for city in ("Lisbon", "Atlantis")]
    async with gateway("weather_tool.weather_tool", script=[Reply(*cities), Reply(text("Sunny."))]) as here:
        await ask(here, dialect, False, "get_weather")
        told = results(here.model.requests[1].body, dialect)
    assert told == ["19 °C, clear", "no station in 'Atlantis'; ask for another city"]


async def test_the_models_turn_is_echoed_with_its_thinking() -> None:
    """Thinking goes back to the model with its signature, before the call."""
    first = Reply(thinking("Hm.", "c2ln"), text("Let me look."), call("get_weather", {"city": "Oslo"}, "toolu_1"))
    async with gateway("weather_tool.weather_tool", script=[first, Reply(text("Rain."))]) as here:
        await ask(here, "messages", False, "get_weather")
        turn = here.model.requests[1].body["messages"][1]
    assert turn["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}},
    ]


async def test_other_tools_stay_with_the_client(dialect: str) -> None:
    """A call to a tool of the client's own reaches the client."""
    script = [Reply(call("read_file", {"path": "a"}))]
    async with gateway("weather_tool.weather_tool", script=script) as here:
        got = await both(here, dialect, "get_weather", "read_file")
    assert got.calls == ["read_file"]


# --- cached_answer ---


async def test_a_ready_answer_is_given_word_for_word(dialect: str) -> None:
    """One model call, and the text of the file."""
    script = [Reply(call("ready_answer", {"topic": "warranty"}))]
    async with gateway("cached_answer.cached_answer", script=script) as here:
        got = await both(here, dialect, "ready_answer")
        assert here.model.calls[MODEL] == 2  # one for each way
    assert (got.text, got.calls, got.stop) == (
        "Two years from the day of purchase, on parts and labour.",
        [],
        end(dialect),
    )


async def test_without_a_ready_answer_the_model_answers_itself(dialect: str) -> None:
    """An unknown topic leads to a rerun in which no tool may be called."""
    script = [Reply(call("ready_answer", {"topic": "shoes"})), Reply(text("I do not know."))]
    async with gateway("cached_answer.cached_answer", script=script) as here:
        got = await both(here, dialect, "ready_answer")
        choice = here.model.requests[1].body["tool_choice"]
    assert got.text == "I do not know."
    assert choice == ({"type": "none"} if dialect == "messages" else "none")


# --- budget_guard ---


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget of 40 tokens; each model call here costs 15."""
    monkeypatch.setattr(importlib.import_module("budget_guard").budget_guard, "tokens", 40)


def cities(*names: str) -> Sequence[Reply]:
    return [Reply(text(f"{name}? "), call("get_weather", {"city": name})) for name in names]


@pytest.mark.usefixtures("small")
async def test_the_loop_ends_when_the_budget_is_used(dialect: str) -> None:
    """The third call goes over: its text is the answer, its call is not run, and no fourth is made."""
    script = cities("Oslo", "Lisbon", "Rome")
    hooks = ("budget_guard.budget_guard", "weather_tool.weather_tool")
    async with gateway(*hooks, script=script, loop={"interim_text": "never"}) as here:
        got = await both(here, dialect, "get_weather")
        assert here.model.calls[MODEL] == 6  # three for each way
    assert got == Got("Rome? ", [], end(dialect), 45)


@pytest.mark.usefixtures("small")
async def test_each_exchange_has_a_budget_of_its_own(dialect: str) -> None:
    """A second exchange begins with an empty count."""
    script = [*cities("Oslo"), Reply(text("Rain."))]
    async with gateway("budget_guard.budget_guard", "weather_tool.weather_tool", script=script) as here:
        answers = [(await ask(here, dialect, False, "get_weather")).text for _ in range(2)]
    assert answers == ["Rain.", "Rain."]


# --- model_fallback ---


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> None:
    fallback = importlib.import_module("model_fallback")
    monkeypatch.setattr(fallback.model_fallback, "instead", {MODEL: "large"})


@pytest.mark.usefixtures("instead")
@pytest.mark.parametrize(
    "first",
    [Reply(text("I cannot"), stop="refusal"), Reply(), Reply(text(" "))],
    ids=["refusal", "empty", "blank"],
)
async def test_another_model_answers_instead(dialect: str, first: Reply) -> None:
    """A refusal and an empty reply are asked again of the other model, and the client gets that answer alone."""
    hook, loop = "model_fallback.model_fallback", {"interim_text": "never"}
    async with gateway(hook, script=[first], large=[Reply(text("Gladly."))], loop=loop) as here:
        got = await both(here, dialect)
        first_body, second_body = (request.body for request in here.model.requests[:2])
    assert (got.text, got.stop) == ("Gladly.", end(dialect))
    assert {**second_body, "model": MODEL} == first_body


@pytest.mark.usefixtures("instead")
async def test_a_good_answer_stays(dialect: str) -> None:
    """An answer with text is left alone."""
    async with gateway("model_fallback.model_fallback", script=[Reply(text("Yes."))]) as here:
        assert (await both(here, dialect)).text == "Yes."


# --- house_rules ---


async def test_a_forbidden_word_is_refused(dialect: str) -> None:
    """The SDK raises its own error for a 400, with the rule's words, and no model is called."""
    async with gateway("house_rules.house_rules", script=[]) as here:
        for stream in (False, True):
            with pytest.raises((anthropic.BadRequestError, openai.BadRequestError), match="may not leave this house"):
                await ask(here, dialect, stream, words="What of Project Nightingale?")
        assert here.model.requests == []


@pytest.mark.parametrize(("asked", "sent"), [(9000, 4096), (100, 100)])
async def test_max_tokens_is_capped(dialect: str, asked: int, sent: int) -> None:
    """More than the cap becomes the cap; less stays."""
    async with gateway("house_rules.house_rules", script=[Reply(text("Fine."))]) as here:
        assert (await both(here, dialect, max_tokens=asked)).text == "Fine."
        assert here.model.requests[0].body["max_tokens"] == sent


async def test_a_free_key_has_no_cap(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule knows the name of the caller's key."""
    monkeypatch.setattr(importlib.import_module("house_rules").house_rules, "free", ("tests",))
    async with gateway("house_rules.house_rules", script=[Reply(text("Fine."))], key="k-1") as here:
        await ask(here, dialect, False, max_tokens=9000)
        assert here.model.requests[0].body["max_tokens"] == 9000


# --- redact ---


async def test_the_card_number_is_kept_back(dialect: str) -> None:
    """The model sees the record, the client an answer without the number."""
    answer = "Ada pays with 4111 1111 1111 1111."
    script = [Reply(call("look_up_customer", {"number": "c-17"})), Reply(text(answer, pieces=9))]
    async with gateway("redact.redact", script=script) as here:
        got = await both(here, dialect, "look_up_customer")
        assert json.loads(results(here.model.requests[1].body, dialect)[0])["card"] == "4111 1111 1111 1111"
    assert (got.text, got.calls) == ("Ada pays with [card].", [])


# --- replies with calls for the server and for the client ---

SERVER, CLIENT = call("get_weather", {"city": "Oslo"}), call("read_file", {"path": "a"})


@pytest.mark.parametrize("blocks", [(SERVER, CLIENT), (CLIENT, SERVER)], ids=["server first", "client first"])
async def test_a_mixed_json_reply_is_rerun_without_the_clients_call(dialect: str, blocks: tuple[Any, Any]) -> None:
    """The hook answers its own call; the client's is gone, and the model asks for it again."""
    script = [Reply(*blocks), Reply(CLIENT)]
    async with gateway("weather_tool.weather_tool", script=script) as here:
        got = await ask(here, dialect, False, "get_weather", "read_file")
        assert "read_file" not in str(here.model.requests[1].body["messages"])
    assert got.calls == ["read_file"]


async def test_a_clients_call_behind_a_servers_waits_in_a_stream(dialect: str) -> None:
    """It is dropped with the rerun, so that the client does not get it twice."""
    script = [Reply(SERVER, CLIENT), Reply(CLIENT)]
    async with gateway("weather_tool.weather_tool", script=script) as here:
        got = await ask(here, dialect, True, "get_weather", "read_file")
        assert here.model.calls[MODEL] == 2
    assert got.calls == ["read_file"]


async def test_a_clients_call_that_has_gone_out_ends_the_exchange(dialect: str) -> None:
    """In a stream the client's call goes out live; the server's behind it is dropped, and nothing is rerun."""
    async with gateway("weather_tool.weather_tool", script=[Reply(CLIENT, SERVER)]) as here:
        got = await ask(here, dialect, True, "get_weather", "read_file")
        assert here.model.calls[MODEL] == 1
    assert (got.calls, got.stop) == (["read_file"], "tool_use" if dialect == "messages" else "tool_calls")
