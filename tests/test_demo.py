"""`loopway demo`: what it prints works, and shows a loop, to curl and to the official SDKs."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from loopway.demo import Weather, model_says
from loopway.hooks import registry
from loopway.testing import Call, Recorded, Text
from running import MODULE_SECONDS, Running

ANSWER = "In Oslo it is 4 degrees and light rain."
INTERIM = "Let me look that up."
ASK: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]


@pytest.fixture(scope="module")
def demo() -> Iterator[Running]:
    """The demo, up."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Running("demo", "--port", str(port), seconds=MODULE_SECONDS) as running:
        running.line("Stop it with")
        yield running


@pytest.fixture(scope="module")
def url(demo: Running) -> str:
    found = re.search(r"gateway on (http://127\.0\.0\.1:\d+)", demo.said)
    assert found
    return found[1]


def printed(demo: Running) -> list[httpx.Response]:
    """What the printed curl lines get, in order."""
    answers = []
    for line in re.findall(r"^ *(curl .*)$", demo.said, re.MULTILINE):
        _, flags, url, *rest = shlex.split(line)
        assert flags in ("-i", "-N")
        options = dict(zip(rest[::2], rest[1::2], strict=True))
        name, _, value = options["-H"].partition(": ")
        answers.append(httpx.post(url, content=options["-d"], headers={name: value}, timeout=20))
    return answers


def test_json_line(demo: Running) -> None:
    """The first line gets one JSON answer from two model calls, without a tool call."""
    answer = printed(demo)[0]
    assert answer.status_code == 200
    assert answer.headers["x-loopway-iterations"] == "2"
    message = answer.json()
    assert message["content"] == [{"type": "text", "text": ANSWER}]
    assert message["stop_reason"] == "end_turn"
    assert message["usage"] == {"input_tokens": 90, "output_tokens": 34}


def test_stream_line(demo: Running) -> None:
    """The second line gets one valid message from Loopway's own documentation, without a tool call."""
    _, answer = printed(demo)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    kinds = [event["type"] for event in events]
    assert (kinds.count("message_start"), kinds.count("message_stop")) == (1, 1)
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [(start["index"], start["content_block"]["type"]) for start in starts] == [(0, "text"), (1, "text")]
    words = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    assert words.startswith("Let me search the documentation.After `loop.keepalive_seconds` without a byte")
    assert words.endswith("(Streams > Keepalive, streams.md#keepalive)")
    assert "web_search" not in answer.text


def test_it_says_what_to_look_for(demo: Running) -> None:
    """The text names the header, the tool, the base_url of both SDKs and how to stop."""
    for words in ("x-loopway-iterations: 2", "get_weather", "message_start", "/v1 in OpenAI's", "Ctrl-C"):
        assert words in demo.said


def test_anthropic(url: str) -> None:
    """Anthropic's SDK gets one message, whole and as a stream."""
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        whole = client.messages.create(model="demo", max_tokens=200, messages=ASK)
        with client.messages.stream(model="demo", max_tokens=200, messages=ASK) as stream:
            streamed = stream.get_final_message()
    assert [block.model_dump()["text"] for block in whole.content] == [ANSWER]
    assert [block.model_dump()["text"] for block in streamed.content] == [INTERIM, ANSWER]
    assert whole.stop_reason == streamed.stop_reason == "end_turn"
    assert whole.usage.input_tokens == streamed.usage.input_tokens == 90


def test_openai(url: str) -> None:
    """OpenAI's SDK gets one message, whole and as a stream."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(model="demo", messages=ASK).choices[0]
        with client.chat.completions.stream(model="demo", messages=ASK) as stream:
            streamed = stream.get_final_completion().choices[0]
    assert whole.message.content == ANSWER
    assert streamed.message.content == f"{INTERIM}\n\n{ANSWER}"
    for choice in (whole, streamed):
        assert choice.finish_reason == "stop"
        assert not choice.message.tool_calls


def test_a_conversation(url: str) -> None:
    """The next question of a conversation is looked up again."""
    more = [*ASK, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "And in Taipei?"}]
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(model="demo", max_tokens=200, messages=more)
    assert answer.content[0].model_dump()["text"] == "In Taipei it is 27 degrees and sun."


def test_a_client_with_the_tool(url: str) -> None:
    """A client that declares the tool itself gets no call to it either."""
    tool: Any = {"name": "get_weather", "input_schema": {"type": "object"}}
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(model="demo", max_tokens=200, messages=ASK, tools=[tool])
    assert [block.type for block in answer.content] == ["text"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends(number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end it with 0 and no traceback."""
    with Running("demo", "--port", "0") as running:
        running.line("Stop it with")
        assert running.end(number) == 0
        assert "Traceback" not in running.said


def test_the_hook() -> None:
    """The example hook is one that a configuration may name."""
    assert registry.checked(Weather(), "loopway.demo.hook")


@pytest.mark.parametrize(
    ("content", "city"),
    [
        ("How is the weather in Nairobi?", "Nairobi"),
        ("Wie ist das Wetter in Zürich?", "Zürich"),
        ("in 臺北?", "臺北"),
        ([{"type": "text", "text": "And in Taipei?"}], "Taipei"),
        ("Hello", "Oslo"),
        ([], "Oslo"),
        (None, "Oslo"),
    ],
)
def test_the_model(content: Any, city: str) -> None:
    """The scripted model asks for the city that the question names, whatever the question is."""
    body = {"messages": [{"role": "user", "content": content}]}
    request = Recorded("/v1/messages", "", {}, b"", body, "demo", "messages")
    words, called = model_says(request).blocks
    assert isinstance(words, Text)
    assert isinstance(called, Call)
    assert json.loads("".join(called.pieces)) == {"city": city}
