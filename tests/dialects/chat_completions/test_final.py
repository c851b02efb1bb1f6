"""The JSON answer that is made of the last reply.

This file must not know how an exchange came to its last reply.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from loopway.dialects.chat_completions import CHAT_COMPLETIONS


def call(name: str, id: str = "t1") -> dict[str, Any]:  # noqa: A002
    return {"id": id, "type": "function", "function": {"name": name, "arguments": "{ }"}}


CUSTOM = {"id": "t1", "type": "custom", "custom": {"name": "srv", "input": ""}}
BOTH = [call("srv"), call("cli", "t2")]


def raw(message: dict[str, Any], finish: str = "stop", **more: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    return json.dumps({"id": "c1", "choices": [choice], "usage": {"prompt_tokens": 1}, **more}).encode()


def client(name: str) -> bool:
    return name == "cli"


def final(body: bytes, interim: list[bytes] | None = None, usage: dict[str, Any] | None = None) -> bytes:
    earlier = [CHAT_COMPLETIONS.reply(one) for one in interim or []]
    return CHAT_COMPLETIONS.final(CHAT_COMPLETIONS.reply(body), keep=client, interim=earlier, usage=usage)


@pytest.mark.parametrize(
    "body",
    [
        raw({"content": "a"}),
        raw({"content": "a", "tool_calls": []}),
        raw({"tool_calls": [call("cli")]}, "tool_calls"),
        raw({"function_call": {"name": "cli", "arguments": "{}"}}, "function_call"),
        b' { "choices" : [ {"message": {"content":"\\u00e9" } } ] }\n',
    ],
)
def test_nothing_to_change(body: bytes) -> None:
    """Where nothing has to change the answer is the reply's own bytes."""
    assert final(body) == body
    assert final(body, [raw({})], CHAT_COMPLETIONS.reply(body).usage) == body


@pytest.mark.parametrize(
    ("message", "finish", "wanted", "reason"),
    [
        ({"tool_calls": [call("srv")]}, "tool_calls", {}, "stop"),
        ({"tool_calls": [call("srv")]}, "length", {}, "length"),
        ({"tool_calls": BOTH}, "tool_calls", {"tool_calls": [call("cli", "t2")]}, "tool_calls"),
        ({"tool_calls": [CUSTOM]}, "tool_calls", {}, "stop"),
        ({"tool_calls": [{"id": "t1"}]}, "tool_calls", {}, "stop"),
        ({"function_call": {"name": "srv", "arguments": ""}}, "function_call", {}, "stop"),
        ({"content": "a"}, "tool_calls", {"content": "a"}, "stop"),
    ],
)  # fmt: skip
def test_calls_that_nobody_may_see(message: dict[str, Any], finish: str, wanted: dict[str, Any], reason: str) -> None:
    """Calls to other tools go, and a finish that announces calls becomes `stop` if none is left."""
    (choice,) = json.loads(final(raw(message, finish)))["choices"]
    assert choice["message"] == {"role": "assistant", "content": None, **wanted}
    assert choice["finish_reason"] == reason


def test_every_choice_is_looked_at() -> None:
    """A call that nobody may see is removed from the second choice, too."""
    body = json.loads(raw({"content": "a"}))
    body["choices"] += json.loads(raw({"tool_calls": [call("srv")]}, "tool_calls"))["choices"]
    made = json.loads(final(json.dumps(body).encode()))
    assert made["choices"][0] == body["choices"][0]
    assert "tool_calls" not in made["choices"][1]["message"]


@pytest.mark.parametrize(
    ("earlier", "own", "wanted"),
    [
        ([{"content": "a"}], {"content": "b"}, {"content": "a\n\nb"}),
        ([{"content": "a"}, {"content": ""}, {"content": "c"}], {"content": "d"}, {"content": "a\n\nc\n\nd"}),
        ([{"content": "a"}], {"content": None}, {"content": "a"}),
        ([{"content": None}], {"content": "b"}, {"content": "b"}),
        ([{"reasoning_content": "a"}], {"content": "b"}, {"content": "b", "reasoning_content": "a"}),
        ([{"reasoning": "a"}], {"content": "b", "reasoning": "c"}, {"content": "b", "reasoning": "a\n\nc"}),
        ([{"content": "a"}], {"content": [{"type": "x"}]}, {"content": [{"type": "text", "text": "a"}, {"type": "x"}]}),
    ],
)  # fmt: skip
def test_interim_text(earlier: list[dict[str, Any]], own: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Texts of earlier replies stand in front, a blank line between each two."""
    (choice,) = json.loads(final(raw(own), [raw(one) for one in earlier]))["choices"]
    assert choice["message"] == {"role": "assistant", **wanted}


def test_untouched_members_keep_their_bytes() -> None:
    """Only what has to change is written anew."""
    body = b'{"x": 1.0, "choices":[{"message":{"content":"\\u00e9","tool_calls":[]}, "y":[1,  2]}],"usage":{"a":1}}'
    assert final(body, usage={"a": 2}) == (
        b'{"x":1.0,"choices":[{"message":{"content":"\\u00e9","tool_calls":[]}, "y":[1,  2]}],"usage":{"a":2}}'
    )
    assert final(body, [raw({"content": "a"})]) == (
        b'{"x":1.0,"choices":[{"message":{"content":"a\\n\\n\xc3\xa9","tool_calls":[]},"y":[1,  2]}],"usage":{"a":1}}'
    )
