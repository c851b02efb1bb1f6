"""The official Python SDKs over a merged stream: they end with the message that the contract's `interim_text` says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from inprocess import KEY

from sdk.loops import BROKEN, INTERIM, ITERATIONS, completion, joined, message, read_completion, read_message, request

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
def test_anthropic_stream_helper(claude, interim, model):
    """`messages.stream().get_final_message()`: content, stop reason, usage."""
    with claude[interim].messages.stream(**request("messages", model)) as stream:
        got = stream.get_final_message()
    assert read_message(got.model_dump()) == message(model, interim, streamed=True)


@every_interim
@every_length
async def test_anthropic_stream_helper_async(urls, interim, model):
    """The same with the asynchronous client."""
    async with (
        anthropic.AsyncAnthropic(base_url=urls[interim], **OPTIONS) as client,
        client.messages.stream(**request("messages", model)) as stream,
    ):
        got = await stream.get_final_message()
    assert read_message(got.model_dump()) == message(model, interim, streamed=True)


@every_interim
@every_length
def test_anthropic_events(claude, interim, model):
    """A plain loop over `messages.create(stream=True)`."""
    kept = Plain()
    with claude[interim].messages.create(**request("messages", model), stream=True) as stream:
        for event in stream:
            kept.messages(event)
    got, want = kept.against(message(model, interim, streamed=True))
    assert got == want


@every_length
async def test_anthropic_events_async(urls, model):
    """The same with the asynchronous client."""
    kept = Plain()
    async with anthropic.AsyncAnthropic(base_url=urls["stream"], **OPTIONS) as client:
        async with await client.messages.create(**request("messages", model), stream=True) as stream:
            async for event in stream:
                kept.messages(event)
    got, want = kept.against(message(model, "stream", streamed=True))
    assert got == want


@every_interim
@every_length
def test_anthropic_json(claude, interim, model):
    """The call that is not streamed; under `always` and `never` it is what the stream told."""
    got = read_message(claude[interim].messages.create(**request("messages", model)).model_dump())
    assert got == message(model, interim, streamed=False)
    if interim != "stream":
        assert got == message(model, interim, streamed=True)


# --- Chat Completions ---


@every_interim
@every_length
def test_openai_stream_helper(gpt, interim, model):
    """`chat.completions.stream().get_final_completion()`: text, reasoning, calls, finish reason, usage."""
    with gpt[interim].chat.completions.stream(**request("chat_completions", model)) as stream:
        got = stream.get_final_completion()
    assert read_completion(got.model_dump()) == completion(model, interim, streamed=True)


@every_interim
@every_length
async def test_openai_stream_helper_async(urls, interim, model):
    """The same with the asynchronous client."""
    async with (
        openai.AsyncOpenAI(base_url=f"{urls[interim]}/v1", **OPTIONS) as client,
        client.chat.completions.stream(**request("chat_completions", model)) as stream,
    ):
        got = await stream.get_final_completion()
    assert read_completion(got.model_dump()) == completion(model, interim, streamed=True)


@every_interim
@every_length
def test_openai_chunks(gpt, interim, model):
    """A plain loop over `chat.completions.create(stream=True)` with `include_usage`."""
    kept = Plain()
    with gpt[interim].chat.completions.create(**request("chat_completions", model), stream=True) as stream:
        for chunk in stream:
            kept.chat(chunk)
    got, want = kept.against(completion(model, interim, streamed=True))
    assert got == want


@every_length
async def test_openai_chunks_async(urls, model):
    """The same with the asynchronous client."""
    kept = Plain()
    async with openai.AsyncOpenAI(base_url=f"{urls['stream']}/v1", **OPTIONS) as client:
        async with await client.chat.completions.create(**request("chat_completions", model), stream=True) as stream:
            async for chunk in stream:
                kept.chat(chunk)
    got, want = kept.against(completion(model, "stream", streamed=True))
    assert got == want


@every_interim
@every_length
def test_openai_json(gpt, interim, model):
    """The call that is not streamed; under `always` and `never` it is what the stream told."""
    body = request("chat_completions", model)
    del body["stream_options"]
    got = read_completion(gpt[interim].chat.completions.create(**body).model_dump())
    assert got == completion(model, interim, streamed=False)
    if interim != "stream":
        assert got == completion(model, interim, streamed=True)


# --- errors and silence ---


@pytest.mark.parametrize("model", BROKEN)
def test_anthropic_raises_what_goes_wrong_in_mid_stream(claude, model):
    """Both ways of reading raise with the error's own words, and have the text so far."""
    with pytest.raises(anthropic.APIStatusError, match=BROKEN[model]):  # noqa: SIM117 - the text is looked at inside
        with claude["stream"].messages.stream(**request("messages", model)) as stream:
            try:
                stream.get_final_message()
            finally:
                assert stream.current_message_snapshot.content[0].text == "Seen."
    kept = Plain()
    with pytest.raises(anthropic.APIStatusError, match=BROKEN[model]):
        for event in claude["stream"].messages.create(**request("messages", model), stream=True):
            kept.messages(event)
    assert kept.text == "Seen."


@pytest.mark.parametrize("model", BROKEN)
def test_openai_raises_what_goes_wrong_in_mid_stream(gpt, model):
    """Both ways of reading raise with the error's own words, and have the text so far."""
    with pytest.raises(openai.APIError, match=BROKEN[model]):  # noqa: SIM117 - the text is looked at inside
        with gpt["stream"].chat.completions.stream(**request("chat_completions", model)) as stream:
            try:
                stream.get_final_completion()
            finally:
                assert stream.current_completion_snapshot.choices[0].message.content == "Seen."
    kept = Plain()
    with pytest.raises(openai.APIError, match=BROKEN[model]):
        for chunk in gpt["stream"].chat.completions.create(**request("chat_completions", model), stream=True):
            kept.chat(chunk)
    assert kept.text == "Seen."


def test_pings_are_as_if_absent(claude, gpt):
    """A stream with keepalives before the head and in the reply tells the same message."""
    with claude["stream"].messages.stream(**request("messages", "silent")) as stream:
        got = stream.get_final_message()
    assert read_message(got.model_dump()) == message("one", "stream", streamed=True)
    with gpt["stream"].chat.completions.stream(**request("chat_completions", "silent")) as chunks:
        told = chunks.get_final_completion()
    assert read_completion(told.model_dump()) == completion("one", "stream", streamed=True)
