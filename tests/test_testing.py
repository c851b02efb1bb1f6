"""The scripted model says what its script tells it: to the official SDKs, and byte by byte."""

from __future__ import annotations

import asyncio
import inspect
import json
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import anthropic
import httpx
import openai
import pytest

import loopway.testing
from loopway.testing import Recorded, Reply, ScriptedModel, call, cut, hold, raw, text, thinking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ASK: dict[str, Any] = {"model": "demo", "max_tokens": 100, "messages": [{"role": "user", "content": "Weather?"}]}
CHAT: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Weather?"}]}
BODIES = {"/v1/messages": ASK, "/v1/chat/completions": CHAT}
LOOP = [
    Reply(thinking("Hm, so.", "c2ln"), text("Let me look."), call("get_weather", {"city": "Oslo"}, "call-1")),
    Reply(text("It rains."), usage={"input_tokens": 20, "output_tokens": 7, "cache_read_input_tokens": 4}),
]


def theirs(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)


def ours(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0)


def test_anthropic_sync() -> None:
    """The synchronous SDK reads the blocks, the stop reason and the usage of each reply in turn."""
    with ScriptedModel({"demo": LOOP}) as model, theirs(model.url) as client:
        first = client.messages.create(**ASK)
        second = client.messages.create(**ASK)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    used = first.content[2]
    assert used.type == "tool_use"
    assert (used.id, used.name, used.input) == ("call-1", "get_weather", {"city": "Oslo"})
    assert (first.stop_reason, second.stop_reason) == ("tool_use", "end_turn")
    assert second.usage.cache_read_input_tokens == 4
    assert first.id != second.id


def test_anthropic_sync_stream() -> None:
    """The synchronous SDK's stream folds to the same message as JSON."""
    with ScriptedModel({"demo": LOOP[:1] * 2}) as model, theirs(model.url) as client:
        whole = client.messages.create(**ASK)
        with client.messages.stream(**ASK) as stream:
            folded = stream.get_final_message()
    assert [b.model_dump(exclude_none=True) for b in folded.content] == [
        b.model_dump(exclude_none=True) for b in whole.content
    ]
    assert folded.stop_reason == whole.stop_reason
    assert folded.usage.output_tokens == whole.usage.output_tokens


async def test_anthropic_async_stream() -> None:
    """The asynchronous SDK gets the text in as many pieces as the script says."""
    async with (
        ScriptedModel({"demo": [Reply(text("one two", pieces=["one", " two"]))]}) as model,
        anthropic.AsyncAnthropic(base_url=model.url, api_key="k", max_retries=0) as client,
        client.messages.stream(**ASK) as stream,
    ):
        assert [piece async for piece in stream.text_stream] == ["one", " two"]


def test_openai_sync() -> None:
    """The synchronous SDK reads text, reasoning, calls, finish and usage."""
    with ScriptedModel({"demo": LOOP}) as model, ours(model.url) as client:
        first = client.chat.completions.create(**CHAT)
        second = client.chat.completions.create(**CHAT)
    message = first.choices[0].message
    assert message.content == "Let me look."
    assert message.model_dump()["reasoning_content"] == "Hm, so."
    assert message.tool_calls is not None
    used = message.tool_calls[0]
    assert used.type == "function"
    assert (used.id, used.function.name, used.function.arguments) == ("call-1", "get_weather", '{"city":"Oslo"}')
    assert (first.choices[0].finish_reason, second.choices[0].finish_reason) == ("tool_calls", "stop")
    assert second.usage is not None
    assert (second.usage.prompt_tokens, second.usage.completion_tokens, second.usage.total_tokens) == (24, 7, 31)


async def test_openai_async_stream() -> None:
    """The asynchronous SDK's stream helper folds to the same completion, with the usage if it was asked for."""
    async with (
        ScriptedModel({"demo": LOOP[:1]}) as model,
        openai.AsyncOpenAI(base_url=model.url + "/v1", api_key="k", max_retries=0) as client,
        client.chat.completions.stream(**CHAT, stream_options={"include_usage": True}) as stream,
    ):
        done = await stream.get_final_completion()
    assert done.choices[0].message.content == "Let me look."
    assert done.choices[0].finish_reason == "tool_calls"
    assert done.choices[0].message.tool_calls is not None
    assert done.choices[0].message.tool_calls[0].function.arguments == '{"city":"Oslo"}'
    assert done.usage is not None
    assert done.usage.total_tokens == 15


@pytest.mark.parametrize("asked", [None, {}, {"include_usage": False}])
def test_no_usage_unless_asked(asked: Any) -> None:
    """Without include_usage no chunk has one, and every chunk has a choice."""
    options = {} if asked is None else {"stream_options": asked}
    with ScriptedModel({"demo": LOOP}) as model, ours(model.url) as client:
        chunks = list(client.chat.completions.create(**CHAT, stream=True, **options))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize(("sdk", "path"), [(theirs, "/v1/messages"), (ours, "/v1/chat/completions")])
def test_errors_are_the_dialects_own(sdk: Any, path: str) -> None:
    """A status with a text reaches the SDK as its own error, with that text."""
    wrong = anthropic.RateLimitError if sdk is theirs else openai.RateLimitError
    with ScriptedModel({"demo": [Reply(error=(429, "slow down"))]}) as model, sdk(model.url) as client:
        ask = client.messages if sdk is theirs else client.chat.completions
        with pytest.raises(wrong, match="slow down"):
            ask.create(**BODIES[path])


# --- byte by byte ---


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=5) as made:
        yield made


@pytest.mark.parametrize("path", BODIES)
async def test_requests_are_recorded(client: httpx.AsyncClient, path: str) -> None:
    """Path, query, headers, bytes and JSON of every request are there, and each model's count."""
    async with ScriptedModel({"demo": LOOP, "other": LOOP}) as model:
        for name in ("demo", "other", "demo"):
            body = {**BODIES[path], "model": name}
            sent = await client.post(f"{model.url}{path}?beta=%C3%A9", json=body, headers={"X-Mine": "yes"})
            assert sent.status_code == 200
    assert [(request.model, request.number) for request in model.requests] == [("demo", 1), ("other", 1), ("demo", 2)]
    assert model.calls == {"demo": 2, "other": 1}
    first = model.requests[0]
    assert (first.path, first.query, first.headers["x-mine"]) == (path, "beta=%C3%A9", "yes")
    assert first.body == json.loads(first.raw) == {**BODIES[path], "model": "demo"}
    assert first.state == "answered"


@pytest.mark.parametrize("path", BODIES)
async def test_a_function_decides(client: httpx.AsyncClient, path: str) -> None:
    """A function of the request, plain or asynchronous, can say anything."""

    def plain(request: Recorded) -> Reply:
        return Reply(text(f"call {request.number}, stream {request.stream}"))

    async def later(request: Recorded) -> Reply:
        await asyncio.sleep(0)
        return plain(request)

    async with ScriptedModel({"plain": plain, "later": later}) as model:
        for name in ("plain", "later"):
            for number in (1, 2):
                answer = await client.post(model.url + path, json={**BODIES[path], "model": name})
                assert f"call {number}, stream False" in answer.text


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"model": "absent"}, 404, "'absent'"),
        ({}, 404, "no model ''"),
        ({"model": "empty"}, 400, "0 replies"),
        ({"model": "broken"}, 400, "ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("path", BODIES)
async def test_what_the_script_does_not_say(
    client: httpx.AsyncClient, path: str, body: Any, status: int, told: str
) -> None:
    """An unknown model, an empty script and a failing function say so, with a status that no SDK tries again."""

    def broken(_: Recorded) -> Reply:
        raise ZeroDivisionError

    async with ScriptedModel({"empty": [], "broken": broken}) as model:
        answer = await client.post(model.url + path, json=body)
    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b'{"model": 5}'])
async def test_any_body_is_recorded(client: httpx.AsyncClient, body: bytes) -> None:
    """A body that is no request is recorded, and answered as an unknown model."""
    async with ScriptedModel({}) as model:
        assert (await client.post(f"{model.url}/v1/messages", content=body)).status_code == 404
    assert (model.requests[0].raw, model.requests[0].model) == (body, "")


async def test_a_chunked_request_is_read(client: httpx.AsyncClient) -> None:
    """A body without a length is read, too."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"model":'
        yield b'"demo"}'

    async with ScriptedModel({"demo": LOOP}) as model:
        assert (await client.post(f"{model.url}/v1/messages", content=pieces())).status_code == 200


async def test_another_path(client: httpx.AsyncClient) -> None:
    """Any other path is answered by an error of the script, whatever its status; a reply is a 404 there."""
    script = [Reply(error=(200, {"input_tokens": 7})), Reply(text("x"))]
    async with ScriptedModel({"demo": script}) as model:
        counted = await client.post(f"{model.url}/v1/messages/count_tokens", json=ASK)
        absent = await client.post(f"{model.url}/v1/messages/count_tokens", json=ASK)
    assert counted.json() == {"input_tokens": 7}
    assert absent.status_code == 404


@pytest.mark.parametrize("path", BODIES)
async def test_a_gate_before_the_head(client: httpx.AsyncClient, path: str) -> None:
    """No head comes before its gate is open."""
    gate = asyncio.Event()
    async with ScriptedModel({"demo": [Reply(text("x"), gate=gate)]}) as model:
        asking = asyncio.ensure_future(client.post(model.url + path, json=BODIES[path]))
        await model.until(lambda: len(model.requests) == 1)
        assert not asking.done()
        gate.set()
        assert (await asking).status_code == 200


@pytest.mark.parametrize("path", BODIES)
async def test_a_gate_between_two_blocks(client: httpx.AsyncClient, path: str) -> None:
    """What stands before the gate is on the wire while it is closed, what stands behind it is not."""
    gate = asyncio.Event()
    script = [Reply(text("before", pieces=1), hold(gate.wait), text("behind", pieces=1))]
    async with (
        ScriptedModel({"demo": script}) as model,
        client.stream("POST", model.url + path, json={**BODIES[path], "stream": True}) as response,
    ):
        seen = b""
        async for piece in response.aiter_raw():
            seen += piece
            if b"before" in seen and not gate.is_set():
                assert b"behind" not in seen
                gate.set()
    assert b"behind" in seen


def test_a_gate_of_another_thread() -> None:
    """A synchronous test opens a gate from its own thread."""
    gate = threading.Event()
    script = [Reply(text("before"), hold(gate), text("behind"))]
    with ScriptedModel({"demo": script}) as model, theirs(model.url) as client:
        words = ""
        with client.messages.stream(**ASK) as stream:
            for piece in stream.text_stream:
                words += piece
                if words == "before":
                    gate.set()
    assert words == "beforebehind"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_leaves_is_noticed(client: httpx.AsyncClient, path: str, streamed: bool) -> None:
    """A request whose client went away before its answer is marked so, whatever the reply waits for."""
    script = [Reply(text("before"), hold(asyncio.Event()))]
    async with ScriptedModel({"demo": script}) as model:
        asking = asyncio.ensure_future(client.post(model.url + path, json={**BODIES[path], "stream": streamed}))
        await model.until(lambda: len(model.requests) == 1)
        assert model.requests[0].state == "open"
        asking.cancel()
        await model.until(lambda: model.requests[0].state == "left")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_a_cut(client: httpx.AsyncClient, path: str, streamed: bool) -> None:
    """A cut breaks the connection behind what was said so far."""
    async with ScriptedModel({"demo": [Reply(text("before", pieces=1), cut(), text("behind", pieces=1))]}) as model:
        seen = b""

        async def read() -> None:
            nonlocal seen
            async with client.stream("POST", model.url + path, json={**BODIES[path], "stream": streamed}) as response:
                async for piece in response.aiter_raw():
                    seen += piece

        with pytest.raises(httpx.RemoteProtocolError):
            await read()
        await model.until(lambda: model.requests[0].state == "cut")
    assert seen
    assert b"behind" not in seen


@pytest.mark.parametrize("path", BODIES)
async def test_raw_bytes_of_a_stream(client: httpx.AsyncClient, path: str) -> None:
    """Bytes of the script's own stand in the stream where they were put."""
    reply = Reply(text("a", pieces=1), raw(b": comment\n\n"), text("b", pieces=1))
    async with ScriptedModel({"demo": [reply]}) as model:
        answer = await client.post(model.url + path, json={**BODIES[path], "stream": True})
    assert answer.text.index('"a"') < answer.text.index("\n: comment\n\n") < answer.text.index('"b"')


async def test_the_stream_of_messages(client: httpx.AsyncClient) -> None:
    """Each event is there once, in the order of the protocol, with running indices."""
    async with ScriptedModel({"demo": LOOP}) as model:
        answer = await client.post(f"{model.url}/v1/messages", json={**ASK, "stream": True})
    assert answer.headers["content-type"] == "text/event-stream"
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n") if line.startswith("data")]
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    assert kinds == [
        "message_start", *["content_block_start", "content_block_stop"] * 3, "message_delta", "message_stop"
    ]  # fmt: skip
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1, 2]


async def test_arguments_that_are_no_json(client: httpx.AsyncClient) -> None:
    """Arguments given as a string travel as they are, in both dialects."""
    replies = [Reply(call("f", '{"a": tru'))]
    async with ScriptedModel({"demo": replies * 2}) as model:
        chat = await client.post(f"{model.url}/v1/chat/completions", json=CHAT)
        messages = await client.post(f"{model.url}/v1/messages", json=ASK)
    assert chat.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": tru'
    assert '{"a": tru' in messages.text


async def test_ids_are_fresh(client: httpx.AsyncClient) -> None:
    """One reply said twice has two message ids and two call ids."""
    async with ScriptedModel({"demo": lambda _: Reply(call("f"))}) as model:
        answers = [(await client.post(f"{model.url}/v1/messages", json=ASK)).json() for _ in range(2)]
    assert len({answer["id"] for answer in answers} | {answer["content"][0]["id"] for answer in answers}) == 4


async def test_headers_of_a_reply(client: httpx.AsyncClient) -> None:
    """A script can set response headers, on errors too."""
    script = [Reply(text("x"), headers={"x-a": "1"}), Reply(error=(503, b"raw"), headers={"retry-after": "2"})]
    async with ScriptedModel({"demo": script}) as model:
        answers = [await client.post(f"{model.url}/v1/messages", json=ASK) for _ in range(2)]
    assert answers[0].headers["x-a"] == "1"
    assert (answers[1].headers["retry-after"], answers[1].content) == ("2", b"raw")


@pytest.mark.parametrize(
    ("usage", "path", "seen"),
    [
        ({"input_tokens": 1, "output_tokens": 2}, "/v1/messages", {"input_tokens": 1, "output_tokens": 2}),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
            "/v1/messages",
            {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 4},
        ),
        ({"prompt_tokens": 9}, "/v1/chat/completions", {"prompt_tokens": 9}),
        (
            {"input_tokens": 1, "output_tokens": 2, "cache_creation_input_tokens": 3},
            "/v1/chat/completions",
            {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6},
        ),
    ],
)
async def test_usage(client: httpx.AsyncClient, usage: Any, path: str, seen: Any) -> None:
    """Counts in either dialect's terms come out in the terms of the one that asks."""
    async with ScriptedModel({"demo": [Reply(text("x"), usage=usage)]}) as model:
        assert (await client.post(model.url + path, json=BODIES[path])).json()["usage"] == seen


@pytest.mark.parametrize(("stop", "finish"), [("max_tokens", "length"), ("refusal", "content_filter"), ("odd", "odd")])
async def test_stop(client: httpx.AsyncClient, stop: str, finish: str) -> None:
    """Why it stops is the script's word, and each dialect's name for it."""
    async with ScriptedModel({"demo": lambda _: Reply(text("x"), stop=stop)}) as model:
        messages = await client.post(f"{model.url}/v1/messages", json=ASK)
        chat = await client.post(f"{model.url}/v1/chat/completions", json=CHAT)
    assert messages.json()["stop_reason"] == stop
    assert chat.json()["choices"][0]["finish_reason"] == finish


def test_pieces_have_to_fit() -> None:
    """Pieces that do not make the words are a mistake of the script."""
    with pytest.raises(ValueError, match="do not make"):
        text("one", pieces=["o", "n"])


async def test_until_gives_up() -> None:
    """Waiting for what never comes ends."""
    async with ScriptedModel({}) as model:
        with pytest.raises(TimeoutError):
            await model.until(lambda: False, seconds=0.01)


def test_a_port_that_is_taken() -> None:
    """A thread that cannot listen says so where `with` stands."""
    with ScriptedModel({}) as model:
        taken = ScriptedModel({}, port=int(model.url.rsplit(":", 1)[1]))
        with pytest.raises(OSError, match="address already in use"), taken:
            pass


def test_the_example_of_the_docstring() -> None:
    """The example runs as it stands."""
    example = textwrap.dedent((inspect.getdoc(loopway.testing) or "").split("::\n", 1)[1])
    exec(compile(example, "example", "exec"), {})
