"""What a Chat Completions reply says in neutral terms, and what chunks fold to.

This file must not know how a stream is spliced.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from loopway.dialects.chat_completions import CHAT_COMPLETIONS
from loopway.dialects.chat_completions.reply import CallKeys, Fold
from loopway.engine.reply import ToolCall


def completion(message: dict[str, Any], finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion", "created": 1, "model": "m1", "choices": [choice], **more}


def read(value: Any) -> Any:
    return CHAT_COMPLETIONS.reply(json.dumps(value).encode())


def folded(*deltas: dict[str, Any], **more: Any) -> dict[str, Any]:
    fold = Fold()
    for delta in deltas:
        fold.add(json.dumps({"id": "c1", "choices": [{"index": 0, "delta": delta}], **more}).encode())
    message = fold.reply().value()["choices"][0]["message"]
    assert isinstance(message, dict)
    return message


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"5",
        b"null",
        b"{}",
        b'{"choices":null}',
        b'{"choices":[]}',
        b'{"choices":{}}',
        b'{"choices":["a"]}',
        b'{"choices":[{}]}',
        b'{"choices":[{"message":null}]}',
        b'{"error":{"message":"no"}}',
        b'{"a":' + b"[" * 100_000,
    ],
)
def test_no_chat_completion(raw: bytes) -> None:
    """What is no chat completion is refused with a ValueError."""
    with pytest.raises(ValueError, match="chat completion"):
        CHAT_COMPLETIONS.reply(raw)


def test_plain_members() -> None:
    """Bytes, id, model and usage are the reply's own."""
    raw = json.dumps(completion({"content": "a"}, usage={"prompt_tokens": 1})).encode()
    reply = CHAT_COMPLETIONS.reply(raw)
    assert (reply.raw, reply.id, reply.model, reply.usage) == (raw, "c1", "m1", {"prompt_tokens": 1})
    assert (reply.fault, reply.delivered, reply.calls, reply.broken) == (None, False, (), None)


@pytest.mark.parametrize(
    ("finish", "message", "ending"),
    [
        ("stop", {"content": "a"}, "end"),
        ("tool_calls", {}, "tool_calls"),
        ("function_call", {}, "tool_calls"),
        ("length", {"content": "a"}, "max_tokens"),
        ("content_filter", {}, "refusal"),
        ("eos", {"content": "a"}, "other"),
        (None, {"content": "a"}, "other"),
        (7, {"content": "a"}, "other"),
        ("stop", {"refusal": "no"}, "refusal"),
        ("stop", {"refusal": "no", "content": "a"}, "end"),
        ("stop", {"refusal": None}, "end"),
    ],
)
def test_ending(finish: Any, message: dict[str, Any], ending: str) -> None:
    """How a reply ended is read from its finish_reason and its refusal."""
    assert read(completion(message, finish)).ending == ending


@pytest.mark.parametrize(
    ("arguments", "parsed", "raw", "valid"),
    [
        ('{"a": 1}', {"a": 1}, '{"a": 1}', True),
        ("", {}, "", True),
        ("  \n", {}, "  \n", True),
        (None, {}, "", True),
        ("[1]", [1], "[1]", True),
        ('{"a":', None, '{"a":', False),
        ("sunny", None, "sunny", False),
        ({"a": 1}, {"a": 1}, '{"a":1}', True),
    ],
)
def test_arguments(arguments: Any, parsed: Any, raw: str, valid: bool) -> None:
    """Arguments are JSON in a text; none at all are {}; what is no JSON is not valid."""
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    assert read(completion({"tool_calls": [call]})).calls == (ToolCall("t1", "f", parsed, raw, valid=valid),)


@pytest.mark.parametrize(
    ("message", "calls"),
    [
        ({"tool_calls": None}, ()),
        ({"tool_calls": []}, ()),
        (
            {"tool_calls": [{"id": "t1", "type": "custom", "custom": {"name": "sql", "input": "{no json"}}]},
            (ToolCall("t1", "sql", "{no json", "{no json"),),
        ),
        ({"function_call": {"name": "f", "arguments": "{}"}}, (ToolCall("", "f", {}, "{}"),)),
        ({"tool_calls": [{"id": None, "function": {"name": "f"}}]}, (ToolCall("", "f", {}, ""),)),
        ({"tool_calls": [{"id": "t1"}]}, (ToolCall("t1", "", {}, ""),)),
    ],
)
def test_calls(message: dict[str, Any], calls: tuple[ToolCall, ...]) -> None:
    """Calls of every kind are calls."""
    assert read(completion(message)).calls == calls


def test_half_a_surrogate_pair() -> None:
    """JSON with half a character is read, with U+FFFD in its place."""
    raw = json.dumps(completion({"content": "X"})).encode().replace(b"X", rb"a\ud83cb")
    assert CHAT_COMPLETIONS.reply(raw).value()["choices"][0]["message"]["content"] == "a\ufffdb"


# --- the fold ---


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        ([{"role": "assistant"}], {}),
        ([{"content": ""}], {}),
        ([{"content": None}, {"content": "a"}, {"content": None}, {"content": "b"}], {"content": "ab"}),
        ([{"x": "a"}, {"x": None}, {"x": "b"}], {"x": "ab"}),
        ([{"x": 1}, {"x": 2}], {"x": 2}),
        ([{"x": None}, {"x": [1]}, {"x": [2]}], {"x": [1, 2]}),
        ([{"x": {"a": "b", "n": 1}}, {"x": {"a": "c", "n": 2}}], {"x": {"a": "bc", "n": 2}}),
        ([{"x": None}], {"x": None}),
        ([{"annotations": [{"type": "url_citation"}]}], {"annotations": [{"type": "url_citation"}]}),
        (
            [{"audio": {"id": "a"}}, {"audio": {"id": "a", "data": "AA"}}, {"audio": {"data": "BB", "expires_at": 9}}],
            {"audio": {"id": "a", "data": "AABB", "expires_at": 9}},
        ),
        (
            [{"content": "a"}, {"content": [{"type": "thinking"}]}, {"content": "b"}, {"content": "c"}],
            {"content": [{"type": "text", "text": "a"}, {"type": "thinking"}, {"type": "text", "text": "bc"}]},
        ),
        (
            [{"function_call": {"name": "f"}}, {"function_call": {"arguments": "{}"}}],
            {"function_call": {"name": "f", "arguments": "{}"}},
        ),
    ],
)  # fmt: skip
def test_fold_of_deltas(deltas: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Strings and lists that come in pieces are joined, objects by member, of all else the last wins, null never."""
    assert folded(*deltas) == {"role": "assistant", "content": None, **message}


@pytest.mark.parametrize(
    ("fragments", "wanted"),
    [
        ([(0, "a", "f"), (0, "", ""), (1, "b", "g"), (0, "", "")], [0, 0, 1, 0]),
        ([(5, "a", "f"), (2, "b", "g"), (5, None, None)], [0, 1, 0]),
        ([(0, "a", "f"), (0, "b", "g"), (0, "", "")], [0, 1, 1]),
        ([(0, "a", "f"), (0, "x", ""), (0, "y", "")], [0, 0, 0]),
        ([(0, "a", "f"), (0, "a", "f")], [0, 0]),
        ([(None, "a", "f"), (None, "b", "f"), (None, "a", ""), (None, "", "")], [0, 1, 0, 0]),
        ([(None, "", "f"), (None, "", ""), (None, "", "f")], [0, 0, 1]),
        ([(None, "", "f"), (None, "a", ""), (None, "b", "")], [0, 0, 1]),
        ([(None, "", "")], [0]),
    ],
)
def test_which_call_a_fragment_belongs_to(fragments: list[tuple[Any, ...]], wanted: list[int]) -> None:
    """A fragment belongs to its index; without one, a new id or name is a new call, and all else goes on."""
    keys = CallKeys()
    assert [keys.of(*fragment) for fragment in fragments] == wanted


def test_fold_keeps_what_is_beside_a_call() -> None:
    """A signature beside a call is kept, and every call has id, type, name and arguments."""
    extra = {"google": {"thought_signature": "c2ln"}}
    message = folded(
        {"tool_calls": [{"index": 0, "extra_content": extra, "function": {"name": "f", "arguments": None}}]}
    )
    assert message["tool_calls"] == [
        {"extra_content": extra, "function": {"name": "f", "arguments": ""}, "id": "", "type": "function"}
    ]


def test_fold_takes_the_first_id() -> None:
    """Of ids that differ from fragment to fragment the first is the call's."""
    function = {"name": "f", "arguments": ""}
    message = folded(
        {"tool_calls": [{"index": 0, "id": "t1", "function": function}]},
        {"tool_calls": [{"index": 0, "id": "t2", "function": {"arguments": "{}"}}]},
    )
    assert [(call["id"], call["function"]["arguments"]) for call in message["tool_calls"]] == [("t1", "{}")]


def test_fold_of_other_choices() -> None:
    """Only the first choice counts."""
    fold = Fold()
    fold.add(b'{"choices":[{"index":1,"delta":{"content":"b"}},{"index":0,"delta":{"content":"a"}}]}')
    assert fold.reply().value()["choices"][0]["message"]["content"] == "a"


def test_fold_of_a_cut_stream() -> None:
    """A stream without a finish_reason is at fault; one with it is not, though its [DONE] is missing."""
    fold = Fold()
    assert fold.reply().fault == "the stream was cut"
    fold.finished = True
    assert fold.reply().fault is None


@pytest.mark.parametrize(
    "value",
    [
        completion({"content": "a"}),
        completion({"content": "a", "refusal": None, "annotations": []}, "length", system_fingerprint="f", x=[1]),
        completion({"content": "a", "reasoning_content": "r"}, usage={"prompt_tokens": 1}),
        completion({"tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}),
        completion({"function_call": {"name": "f", "arguments": "{}"}}, "function_call"),
    ],
)
def test_render_tells_the_same(value: dict[str, Any]) -> None:
    """A completion that is told as a stream folds to itself."""
    fold = Fold()
    for frame in CHAT_COMPLETIONS.render(value)[:-1]:
        fold.add(frame.data or b"")
    assert fold.reply().value() == value


@pytest.mark.parametrize("value", [{}, {"choices": []}, {"choices": [{"message": "a"}]}, {"choices": 5}])
def test_render_of_no_completion(value: dict[str, Any]) -> None:
    """What is no completion cannot be told."""
    with pytest.raises(ValueError, match="chat completion"):
        CHAT_COMPLETIONS.render(value)


def test_render_of_what_is_no_json() -> None:
    """A value that JSON has no word for cannot be told."""
    with pytest.raises(ValueError, match="no JSON"):
        CHAT_COMPLETIONS.render({"choices": [{"message": {"content": object()}}]})


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({}, {}),
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}, {"input": 5, "output": 2}),
        ({"prompt_tokens": 0, "completion_tokens": None}, {}),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}, {"input": 5, "cache_read": 4}),
        ({"prompt_tokens_details": None, "completion_tokens_details": {"reasoning_tokens": 3}}, {"reasoning": 3}),
        ({"prompt_tokens": True, "completion_tokens": "7", "prompt_tokens_details": []}, {}),
    ],
)
def test_tokens(usage: dict[str, Any], tokens: dict[str, int]) -> None:
    """Token counts go by neutral names; what is zero or no number is left out."""
    assert CHAT_COMPLETIONS.tokens(usage) == tokens
