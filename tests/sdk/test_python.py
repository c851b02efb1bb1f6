"""The official Python SDKs over a merged stream: they end with the message that the contract's `interim_text` says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from inprocess import KEY
from sdk.loops import (
    BROKEN,
    INTERIM,
    ITERATIONS,
    completion,
    joined,
    message,
    read_completion,
    read_message,
    request,
    unwatched,
)

every_interim = pytest.mark.parametrize("interim", INTERIM)
every_length = pytest.mark.parametrize("model", ITERATIONS)
OPTIONS: dict[str, Any] = {"api_key": KEY, "max_retries": 0, "timeout": 20}


@pytest.fixture(scope="module")
def claude(urls: dict[str, str]) -> Iterator[dict[str, anthropic.Anthropic]]:
    """Anthropic's synchronous client for each gateway."""
    clients = {interim: anthropic.Anthropic(base_url=url, **OPTIONS) for interim, url in urls.items()}
    yield clients
    for client in clients.values():
        client.close()


@pytest.fixture(scope="module")
def gpt(urls: dict[str, str]) -> Iterator[dict[str, openai.OpenAI]]:
    """OpenAI's synchronous client for each gateway."""
    clients = {interim: openai.OpenAI(base_url=f"{url}/v1", **OPTIONS) for interim, url in urls.items()}
    yield clients
    for client in clients.values():
        client.close()


class Plain:
    """What a plain loop over the events of `create(stream=True)` keeps."""

    def __init__(self) -> None:
        self.text = ""
        self.ending: str | None = None
        self.usage: dict[str, Any] = {}

    def messages(self, event: Any) -> None:
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            self.text += event.delta.text
        elif event.type == "message_delta":
            self.ending = event.delta.stop_reason
            self.usage = event.usage.model_dump()

    def chat(self, chunk: Any) -> None:
        if chunk.usage:
            self.usage = chunk.usage.model_dump()
        for choice in chunk.choices:
            self.text += choice.delta.content or ""
            self.ending = choice.finish_reason or self.ending

    def against(self, wanted: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What was kept, and what should have been."""
        want = joined(wanted)
        if isinstance(want["usage"], dict):
            usage: Any = {name: self.usage.get(name) for name in want["usage"]}
        else:
            usage = [self.usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
        return {"text": self.text, "ending": self.ending, "usage": usage}, want


# --- Messages ---


@every_interim
@every_length
def test_anthropic_stream_helper(claude: dict[str, anthropic.Anthropic], interim: str, model: str) -> None:
    """`messages.stream().get_final_message()`: content, stop reason, usage."""
    with claude[interim].messages.stream(**request("messages", model)) as stream:
        got = stream.get_final_message()
    assert read_message(got.model_dump()) == message(model, interim, streamed=True)


@every_interim
@every_length
async def test_anthropic_stream_helper_async(urls: dict[str, str], interim: str, model: str) -> None:
    """The same with the asynchronous client."""
    async with (
        anthropic.AsyncAnthropic(base_url=urls[interim], **OPTIONS) as client,
        client.messages.stream(**request("messages", model)) as stream,
    ):
        got = await stream.get_final_message()
    assert read_message(got.model_dump()) == message(model, interim, streamed=True)


@every_interim
@every_length
def test_anthropic_events(claude: dict[str, anthropic.Anthropic], interim: str, model: str) -> None:
    """A plain loop over `messages.create(stream=True)`."""
    kept = Plain()
    with claude[interim].messages.create(**request("messages", model), stream=True) as stream:
        for event in stream:
            kept.messages(event)
    got, want = kept.against(message(model, interim, streamed=True))
    assert got == want


@every_length
async def test_anthropic_events_async(urls: dict[str, str], model: str) -> None:
    """The same with the asynchronous client."""
    kept = Plain()
    async with anthropic.AsyncAnthropic(base_url=urls["stream"], **OPTIONS) as client:
        async for event in await client.messages.create(**request("messages", model), stream=True):
            kept.messages(event)
    got, want = kept.against(message(model, "stream", streamed=True))
    assert got == want


@every_interim
@every_length
def test_anthropic_json(claude: dict[str, anthropic.Anthropic], interim: str, model: str) -> None:
    """The call that is not streamed; under `always` and `never` it is what the stream told."""
    got = read_message(claude[interim].messages.create(**request("messages", model)).model_dump())
    assert got == message(model, interim, streamed=False)
    if interim != "stream":
        assert got == message(model, interim, streamed=True)


# --- Chat Completions ---


@every_interim
@every_length
def test_openai_stream_helper(gpt: dict[str, openai.OpenAI], interim: str, model: str) -> None:
    """`chat.completions.stream().get_final_completion()`: text, reasoning, calls, finish reason, usage."""
    with gpt[interim].chat.completions.stream(**request("chat_completions", model)) as stream:
        got = stream.get_final_completion()
    assert read_completion(got.model_dump()) == completion(model, interim, streamed=True)


@every_interim
@every_length
async def test_openai_stream_helper_async(urls: dict[str, str], interim: str, model: str) -> None:
    """The same with the asynchronous client."""
    async with (
        openai.AsyncOpenAI(base_url=f"{urls[interim]}/v1", **OPTIONS) as client,
        client.chat.completions.stream(**request("chat_completions", model)) as stream,
    ):
        got = await stream.get_final_completion()
    assert read_completion(got.model_dump()) == completion(model, interim, streamed=True)


@every_interim
@every_length
def test_openai_chunks(gpt: dict[str, openai.OpenAI], interim: str, model: str) -> None:
    """A plain loop over `chat.completions.create(stream=True)` with `include_usage`."""
    kept = Plain()
    with gpt[interim].chat.completions.create(**request("chat_completions", model), stream=True) as stream:
        for chunk in stream:
            kept.chat(chunk)
    got, want = kept.against(completion(model, interim, streamed=True))
    assert got == want


@every_length
async def test_openai_chunks_async(urls: dict[str, str], model: str) -> None:
    """The same with the asynchronous client."""
    kept = Plain()
    async with openai.AsyncOpenAI(base_url=f"{urls['stream']}/v1", **OPTIONS) as client:
        async for chunk in await client.chat.completions.create(**request("chat_completions", model), stream=True):
            kept.chat(chunk)
    got, want = kept.against(completion(model, "stream", streamed=True))
    assert got == want


@every_interim
@every_length
def test_openai_json(gpt: dict[str, openai.OpenAI], interim: str, model: str) -> None:
    """The call that is not streamed; under `always` and `never` it is what the stream told."""
    body = request("chat_completions", model)
    del body["stream_options"]
    got = read_completion(gpt[interim].chat.completions.create(**body).model_dump())
    assert got == completion(model, interim, streamed=False)
    if interim != "stream":
        assert got == completion(model, interim, streamed=True)


# --- errors and silence ---


def listen(client: anthropic.Anthropic | openai.OpenAI, how: str, body: dict[str, Any], kept: Plain) -> None:
    """Read a stream to its end, with the helper or with a plain loop; `kept` has the text so far."""
    if isinstance(client, anthropic.Anthropic):
        if how == "events":
            for event in client.messages.create(**body, stream=True):
                kept.messages(event)
            return
        with client.messages.stream(**body) as stream:
            for event in stream:
                if event.type == "text":
                    kept.text += event.text
            stream.get_final_message()
    elif how == "events":
        for chunk in client.chat.completions.create(**body, stream=True):
            kept.chat(chunk)
    else:
        with client.chat.completions.stream(**body) as chunks:
            for one in chunks:
                if one.type == "content.delta":
                    kept.text += one.delta
            chunks.get_final_completion()


@pytest.mark.parametrize("how", ["helper", "events"])
@pytest.mark.parametrize("model", BROKEN)
def test_anthropic_raises_what_goes_wrong_in_mid_stream(
    claude: dict[str, anthropic.Anthropic], model: str, how: str
) -> None:
    """With the error's own words, behind the text so far; no block has to be closed for it."""
    kept = Plain()
    with pytest.raises(anthropic.APIStatusError, match=BROKEN[model]):
        listen(claude["stream"], how, request("messages", model), kept)
    assert kept.text == "Seen."


@pytest.mark.parametrize("how", ["helper", "events"])
@pytest.mark.parametrize("model", BROKEN)
def test_openai_raises_what_goes_wrong_in_mid_stream(gpt: dict[str, openai.OpenAI], model: str, how: str) -> None:
    """With the error's own words, behind the text so far."""
    kept = Plain()
    with pytest.raises(openai.APIError, match=BROKEN[model]):
        listen(gpt["stream"], how, request("chat_completions", model), kept)
    assert kept.text == "Seen."


@pytest.mark.parametrize("how", ["helper", "events"])
def test_half_an_event_of_a_stream_that_nobody_watches(
    claude: dict[str, anthropic.Anthropic], gpt: dict[str, openai.OpenAI], how: str
) -> None:
    """It has gone when upstream breaks off: Anthropic's SDK overlooks it, OpenAI's finds no JSON; both raise."""
    with pytest.raises(anthropic.APIStatusError, match="broke off"):
        listen(claude["stream"], how, unwatched("messages", "half"), Plain())
    with pytest.raises(json.JSONDecodeError):
        listen(gpt["stream"], how, unwatched("chat_completions", "half"), Plain())


def test_pings_are_as_if_absent(claude: dict[str, anthropic.Anthropic], gpt: dict[str, openai.OpenAI]) -> None:
    """A stream with keepalives before the head and in the reply tells the same message."""
    with claude["stream"].messages.stream(**request("messages", "silent")) as stream:
        got = stream.get_final_message()
    assert read_message(got.model_dump()) == message("one", "stream", streamed=True)
    with gpt["stream"].chat.completions.stream(**request("chat_completions", "silent")) as chunks:
        told = chunks.get_final_completion()
    assert read_completion(told.model_dump()) == completion("one", "stream", streamed=True)
