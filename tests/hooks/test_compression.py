"""The built-in `compression`: what is left out of long histories, what never is, and how it comes back."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inprocess import BOTH, KEY, gateway_over, request_body
from loopway import ToolError
from loopway.app import build
from loopway.errors import Problem
from loopway.hooks import registry
from loopway.hooks.compression import PIECE, SHORTEST, TOOL, Compression, compression, stand_in
from loopway.hooks.tools import ToolContext
from loopway.hooks.view import View, plain, view
from loopway.state import MemoryStore
from loopway.testing import Recorded, Reply, call, text

both = pytest.mark.parametrize("dialect", BOTH)
CALL_TYPE = {"messages": "anthropic_messages", "chat_completions": "acompletion"}
MARK = {"cache_control": {"type": "ephemeral"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 50_000}}
THOUGHT = {"type": "thinking", "thinking": "deep " * 500, "signature": "c2ln"}
KEY_IN = re.compile(r'key="([0-9a-f]{24})"')


def long(topic: str, size: int = 4000) -> str:
    """A long text of one topic."""
    return (f"{topic} is what this is about. " * (size // 10))[:size]


def caller(name: str = "tester") -> Any:
    return View(key_alias=name)


async def cut(hook: Compression, body: Mapping[str, Any], *, name: str = "tester", dialect: str = "messages") -> Any:
    """The body as the hook leaves it."""
    data = view(copy.deepcopy(dict(body)))
    returned = await hook.async_pre_call_hook(
        user_api_key_dict=caller(name), cache=None, data=data, call_type=CALL_TYPE[dialect]
    )
    return plain(returned)


def small(**more: Any) -> Compression:
    """Cuts from 1000 tokens (4000 characters) down to 500, and keeps the last two messages."""
    return compression({"threshold_tokens": 1000, "target_tokens": 500, "keep_recent_messages": 2, **more})


def context(name: str = "tester") -> ToolContext:
    return ToolContext(request_id="r", call_id="c", tool=TOOL, model="m", dialect="messages", depth=0, key_name=name)


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "path", "says"),
    [
        ({"threshold_tokens": 0}, "threshold_tokens", "at least 1"),
        ({"threshold_tokens": "many"}, "threshold_tokens", "whole number"),
        ({"keep_recent_messages": -1}, "keep_recent_messages", "at least 0"),
        ({"threshold_tokens": 10, "target_tokens": 20}, "target_tokens", "smaller"),
        ({"models": "m"}, "models", "a list"),
        ({"treshold_tokens": 5}, "treshold_tokens", "did you mean 'threshold_tokens'"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], path: str, says: str) -> None:
    """Each is refused with its key path and what to write."""
    problems: list[Problem] = []
    assert registry.built_in("compression", settings, "hooks[0]", problems) is None
    (problem,) = problems
    assert problem.path == f"hooks[0].compression.{path}"
    assert says in problem.text


def test_the_gateway_gives_it_the_store() -> None:
    """A configuration's `compression` keeps texts where the gateway keeps everything else."""
    config = {
        "auth": {"mode": "open"},
        "upstreams": {"u": {"base_url": "http://127.0.0.1:1", "dialects": ["messages"]}},
        "models": [{"name": "m", "upstream": "u"}],
    }
    hook = small()
    gateway = build(config, [hook])
    assert hook._store is gateway.store


# --- real conversations ---


def conversation(dialect: str) -> dict[str, Any]:
    """An agent that has read three files, is asked something new, and is in the middle of a call."""
    if dialect == "messages":

        def read(number: int, topic: str) -> list[Any]:
            id_ = f"toolu_{number}"
            return [
                {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "Reading."},
                    {"type": "tool_use", "id": id_, "name": "read", "input": {"path": long("path", 900)}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": long(topic)}]},
            ]  # fmt: skip
    else:

        def read(number: int, topic: str) -> list[Any]:
            id_ = f"call_{number}"
            function = {"name": "read", "arguments": json.dumps({"path": long("path", 900)})}
            return [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": id_, "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": id_, "content": long(topic)},
            ]

    messages = [
        {"role": "user", "content": "Read my files."},
        *read(1, "penguins"),
        *read(2, "elephants"),
        {"role": "assistant", "content": long("summary", 3000)},
        *read(3, "giraffes"),
        {"role": "user", "content": "What do the elephants eat?"},
        *read(4, "zebras"),
    ]
    body = request_body(dialect, tools=("read",)) | {"messages": messages}
    if dialect == "messages":
        body["system"] = long("system", 3000)
    else:
        messages.insert(0, {"role": "system", "content": long("system", 3000)})
    return body


def expanded(value: Any, originals: Mapping[str, str]) -> Any:
    """A body with every stand-in replaced by its original."""
    if isinstance(value, str):
        found = KEY_IN.search(value)
        known = found is not None and value == stand_in(found[1], originals.get(found[1], ""))
        return originals[found[1]] if found is not None and known else value
    if isinstance(value, dict):
        return {name: expanded(item, originals) for name, item in value.items()}
    return [expanded(item, originals) for item in value] if isinstance(value, list) else value


def left_out(hook: Compression) -> Mapping[str, str]:
    here = hook._here.get()
    assert here is not None
    return here.originals


@both
async def test_what_is_left_out_of_a_conversation(dialect: str) -> None:
    """Old results and turns without the question's words go first; with the originals put back nothing has changed."""
    most = {"messages": 6600, "chat_completions": 4100}[dialect]
    hook = small(threshold_tokens=most, target_tokens=most)
    body = conversation(dialect)
    made = await cut(hook, body, dialect=dialect)
    gone = list(left_out(hook).values())
    assert long("penguins") in gone
    assert long("elephants") not in gone
    assert long("zebras") not in gone
    assert made != body
    assert expanded(made, left_out(hook)) == body
    assert len(json.dumps(made)) < len(json.dumps(body)) - 3000


@both
async def test_what_is_relevant_goes_last(dialect: str) -> None:
    """Down to a small target everything old goes; what must stay, stays."""
    hook = small()
    body = conversation(dialect)
    made = await cut(hook, body, dialect=dialect)
    gone = list(left_out(hook).values())
    assert gone == [long("penguins"), long("summary", 3000), long("giraffes"), long("elephants")]
    assert made["messages"][-3:] == body["messages"][-3:]  # the question, and the two recent ones
    assert made["tools"] == body["tools"]


@both
async def test_the_same_history_gives_the_same(dialect: str) -> None:
    """Two gateways make the same stand-ins, so a prompt cache still fits."""
    body = conversation(dialect)
    assert await cut(small(), body, dialect=dialect) == await cut(small(), body, dialect=dialect)


async def test_a_small_request_is_not_touched() -> None:
    """Under the threshold nothing is left out and no tool is offered."""
    hook = small(threshold_tokens=100_000)
    body = conversation("messages")
    assert await cut(hook, body) == body
    assert hook.tools() == ()


async def test_an_image_counts_little() -> None:
    """The bytes of an image are not its tokens."""
    hook = small(threshold_tokens=3000)
    body = request_body("messages") | {"messages": [{"role": "user", "content": [IMAGE]}] * 1}
    assert await cut(hook, body) == body


OLD = {"role": "assistant", "content": long("old")}
ASKED: list[Any] = [{"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Now."}]


@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        ([{"role": "user", "content": [{"type": "text", "text": long("marked"), **MARK}]}, *ASKED, *ASKED], "marked"),
        ([OLD, {"role": "user", "content": [{"type": "text", "text": "x", **MARK}]}, *ASKED, *ASKED], "old"),
        (
            [OLD, {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x", **MARK}]}]},
             *ASKED, *ASKED], "old",
        ),
        ([{"role": "user", "content": long("question")}, OLD, *ASKED[1:] * 2], "question"),
        ([{"role": "system", "content": long("system")}, *ASKED, *ASKED], "system"),
        ([{"role": "developer", "content": long("developer")}, *ASKED, *ASKED], "developer"),
        ([{"role": "assistant", "content": [{"type": "text", "text": long("cited"), "citations": [{"type": "x"}]}]},
          *ASKED, *ASKED], "cited"),
        ([{"role": "assistant", "content": [{"type": "thinking", "thinking": long("deep"), "signature": "s"}]},
          *ASKED, *ASKED], "deep"),
        ([*ASKED, *ASKED, OLD, OLD], "old"),
    ],
    ids=["marked", "before a mark", "before a mark in a result", "the question", "system", "developer", "cited",
         "thinking", "recent"],
)  # fmt: skip
async def test_what_never_goes(messages: list[Any], kept: str) -> None:
    """Cached prefixes, system texts, the question, thinking, cited texts and the recent messages stay."""
    hook = small(threshold_tokens=500, target_tokens=1)
    await cut(hook, request_body("messages") | {"messages": messages})
    assert not [one for one in left_out(hook).values() if one.startswith(kept)]


async def test_a_mark_of_the_whole_request() -> None:
    """Anthropic's automatic caching caches every message, so none is touched."""
    body = conversation("messages") | MARK
    assert await cut(small(), body) == body


async def test_cached_texts_go_if_that_is_wanted() -> None:
    """With `compress_cached` the marks stay and the texts go."""
    hook = small(compress_cached=True)
    body = conversation("messages")
    body["messages"][6]["content"][-1] |= MARK
    made = await cut(hook, body)
    assert long("penguins") in left_out(hook).values()
    assert expanded(made, left_out(hook)) == body


async def test_images_beside_a_result_stay() -> None:
    """Of a result with text and image only the text goes."""
    content = [{"type": "text", "text": long("page")}, IMAGE]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}]}
    made = await cut(small(), request_body("messages") | {"messages": [result, *ASKED, *ASKED]})
    (block,) = made["messages"][0]["content"]
    assert [one["type"] for one in block["content"]] == ["text", "image"]
    assert TOOL in block["content"][0]["text"]
    assert block["content"][1] == IMAGE


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"functions": []},
        {"model": "other"},
        {"tools": [{"type": "function", "function": {"name": TOOL}}]},
        {"messages": "x"},
    ],
)
async def test_requests_that_cannot_be_cut(more: dict[str, Any]) -> None:
    """Where the model could not fetch anything back, nothing is left out."""
    hook = small(models=["m"])
    body = conversation("chat_completions") | more
    assert await cut(hook, body, dialect="chat_completions") == body
    assert hook.tools() == ()


@pytest.mark.parametrize(("marked", "offered"), [(True, 1), (False, 0)])
async def test_a_cache_wants_the_same_tools_always(*, marked: bool, offered: int) -> None:
    """Where a request marks a prefix behind its tools, the tool is offered before anything is left out."""
    hook = small(threshold_tokens=100_000)
    body = conversation("messages")
    if marked:
        body["system"] = [{"type": "text", "text": "s", **MARK}]
    assert await cut(hook, body) == body
    assert len(hook.tools()) == offered


# --- the way back ---


async def test_a_long_text_comes_in_pieces() -> None:
    """Each piece says how to get the next one; together they are the text."""
    hook = small()
    whole = "".join(f"{number:07d} " for number in range(PIECE // 4))
    await cut(hook, request_body("messages") | {"messages": [{"role": "user", "content": whole}, *ASKED, *ASKED]})
    (key,) = left_out(hook)
    got, start = "", 0
    while True:
        piece = await hook.call(TOOL, {"key": key, "start": start}, context())
        said = re.search(r"\n\[\d+ more characters: fetch_original with start=(\d+)\]$", piece)
        got += piece[: said.start()] if said else piece
        if not said:
            break
        start = int(said[1])
    assert got == whole
    with pytest.raises(ToolError, match="nothing is behind"):
        await hook.call(TOOL, {"key": key, "start": len(whole)}, context())


@pytest.mark.parametrize("arguments", [{}, {"key": 7}, {"key": "x", "start": -1}, {"key": "x", "more": 1}])
async def test_arguments_that_are_wrong(arguments: Any) -> None:
    """The model is told what to mend."""
    with pytest.raises(ToolError, match="are wrong"):
        await small().call(TOOL, arguments, context())


async def test_another_key_reads_nothing() -> None:
    """A text is kept for its caller alone, and the same text has another key for another caller."""
    store = MemoryStore(most_bytes=1_000_000)
    first, later = small(), small()
    first.bind_store(store)
    later.bind_store(store)
    body = conversation("messages")
    await cut(first, body, name="team-a")
    key = next(iter(left_out(first)))
    assert await later.call(TOOL, {"key": key}, context("team-a")) == left_out(first)[key]
    with pytest.raises(ToolError, match="no text under this key"):
        await later.call(TOOL, {"key": key}, context("team-b"))
    await cut(later, body, name="team-b")
    assert not set(left_out(first)) & set(left_out(later))


async def test_a_lost_store_loses_nothing_of_the_exchange() -> None:
    """What this exchange has left out is there, whatever the store does."""
    hook = small()
    hook.bind_store(MemoryStore(most_bytes=10))
    await cut(hook, conversation("messages"))
    for key, original in left_out(hook).items():
        assert await hook.call(TOOL, {"key": key}, context()) == original


# --- through the gateway ---


@both
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_the_model_fetches_a_text_back(dialect: str, *, stream: bool) -> None:
    """The upstream gets stand-ins and the tool; the original comes back in the loop, and the client sees none of it."""

    def decide(request: Recorded) -> Reply:
        if request.number == 1:
            return Reply(call(TOOL, {"key": KEY_IN.findall(json.dumps(request.body).replace("\\", ""))[0]}))
        return Reply(text("Fish."))

    body = conversation(dialect)
    async with gateway_over({"m": decide}, [small()]) as run:
        if dialect == "messages":
            async with anthropic.AsyncAnthropic(base_url=run.url, api_key=KEY, max_retries=0) as client:
                if stream:
                    async with client.messages.stream(**body) as events:
                        message = await events.get_final_message()
                else:
                    message = await client.messages.create(**body)
                said: list[Any] = [block.to_dict() for block in message.content]
        else:
            async with openai.AsyncOpenAI(base_url=run.url + "/v1", api_key=KEY, max_retries=0) as other:
                if stream:
                    chunks = [chunk async for chunk in await other.chat.completions.create(**body, stream=True)]
                    said = ["".join(c.choices[0].delta.content or "" for c in chunks if c.choices)]
                    assert not [c for c in chunks if c.choices and c.choices[0].delta.tool_calls]
                else:
                    message_ = (await other.chat.completions.create(**body)).choices[0].message
                    said = [message_.content]
                    assert not message_.tool_calls
        log = [json.loads(line) for line in run.log.getvalue().splitlines()]
    first, second = run.model.requests
    names = [one.get("function", one)["name"] for one in first.body["tools"]]
    assert names == ["read", TOOL]
    assert long("penguins") not in first.raw.decode()
    result = second.body["messages"][-1]
    assert (result["content"][0] if dialect == "messages" else result)["content"] == long("penguins")
    assert "Fish." in json.dumps(said)
    assert TOOL not in json.dumps(said)
    (told,) = [line for line in log if line["event"] == "compressed"]
    assert told["tokens_before"] > 1000
    assert told["tokens_after"] < told["tokens_before"]
    assert (told["model"], told["texts"], told["dialect"]) == ("m", 4, dialect)


@both
async def test_a_small_request_passes_unchanged(dialect: str) -> None:
    """With the built-in configured, what is under the threshold keeps its bytes, and nobody watches it."""
    body = json.dumps(conversation(dialect), indent=1).encode()
    async with gateway_over({"m": [Reply(text("So."))]}, [small(threshold_tokens=100_000)]) as run:
        answer = await run.post(dialect, body)
    assert answer.status_code == 200
    assert run.model.requests[0].raw == body


# --- whatever the history is ---

WORDS = st.sampled_from([long("apples", 900), long("pears", 1200), "short", long("plums", SHORTEST - 1)])
TEXT_BLOCK = st.builds(
    lambda words, mark: {"type": "text", "text": words, **mark}, WORDS, st.sampled_from([{}, {}, MARK])
)
RESULT_CONTENT = st.one_of(WORDS, st.lists(st.one_of(TEXT_BLOCK, st.just(IMAGE)), max_size=2))


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any]:
    """Messages with calls and results that pair."""
    messages: list[Any] = []
    for number in range(draw(st.integers(0, 6))):
        match draw(st.sampled_from(["say", "answer", "call"])):
            case "say":
                messages.append({"role": "user", "content": draw(st.one_of(WORDS, st.lists(TEXT_BLOCK, max_size=2)))})
            case "answer":
                content = draw(st.one_of(WORDS, st.lists(st.one_of(TEXT_BLOCK, st.just(THOUGHT)), max_size=2)))
                messages.append({"role": "assistant", "content": content})
            case _:
                ids = [f"toolu_{number}_{place}" for place in range(draw(st.integers(1, 2)))]
                uses = [{"type": "tool_use", "id": id_, "name": "read", "input": {"p": long("p", 900)}} for id_ in ids]
                results = [{"type": "tool_result", "tool_use_id": id_, "content": draw(RESULT_CONTENT)} for id_ in ids]
                messages += [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    return request_body("messages") | {"messages": messages, "system": long("system", 900)}


def prefix(body: Any) -> list[Any]:
    """The messages up to the last one with a cache mark."""
    marked = [number for number, one in enumerate(body["messages"]) if "cache_control" in json.dumps(one)]
    taken: list[Any] = body["messages"][: marked[-1] + 1] if marked else []
    return taken


@given(histories(), st.integers(0, 3))
async def test_nothing_but_texts_changes(body: dict[str, Any], recent: int) -> None:
    """With the originals put back it is the same request: pairs, marks, images, thinking, order. Prefixes are equal."""
    hook = small(threshold_tokens=300, target_tokens=1, keep_recent_messages=recent)
    made = await cut(hook, body)
    assert expanded(made, left_out(hook)) == body
    assert prefix(made) == prefix(body)
    assert not recent or made["messages"][-recent:] == body["messages"][-recent:]
    assert all(len(one) >= SHORTEST for one in left_out(hook).values())
    said = [one for one in body["messages"] if one["role"] == "user" and "tool_result" not in json.dumps(one)]
    asked = [one for one in said if one["content"] != []]
    assert not asked or asked[-1] in made["messages"]
    assert await cut(small(threshold_tokens=300, target_tokens=1, keep_recent_messages=recent), body) == made
