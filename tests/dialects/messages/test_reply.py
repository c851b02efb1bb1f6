"""Reading Messages replies, whole and folded, where the case files do not reach.

This file must not know what a client is shown.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dialects.laws import frames_of
from loopway.dialects.messages.reply import Fold, parse
from loopway.engine.reply import Reply, ToolCall


def message(*content: Any, **more: Any) -> bytes:
    return json.dumps({"content": list(content), **more}).encode()


def fold(*events: dict[str, Any] | bytes) -> Reply:
    made = Fold()
    for event in events:
        raw = event if isinstance(event, bytes) else f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
        for frame in frames_of(raw):
            made.feed(frame)
    return made.reply()


START = {"type": "message_start", "message": {"id": "m", "content": [], "usage": {"input_tokens": 1}}}
STOP = {"type": "message_stop"}


def call(*pieces: str, given: Any = None) -> list[dict[str, Any]]:
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {} if given is None else given}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return [
        START,
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        STOP,
    ]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nothing",
        b"[]",
        b"1",
        b"null",
        b"{}",
        b'{"content": null}',
        b'{"content": "text"}',
        b'{"content": {}}',
        b'{"content": ["x"]}',
        b'{"content": []',
        b'{"content": [], "x": NaN}',
        b'{"type":"error","error":{"type":"x","message":"y"}}',
        b'{"content": ' + b"[" * 100_000,
    ],
    ids=lambda raw: raw[:24].decode(),
)
def test_what_is_no_reply_is_refused(raw: bytes) -> None:
    """A reply is a JSON object with a list of blocks."""
    with pytest.raises(ValueError, match=r"."):
        parse(raw)


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ("end_turn", "end"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "max_tokens"),
        ("model_context_window_exceeded", "max_tokens"),
        ("refusal", "refusal"),
        ("stop_sequence", "stop_sequence"),
        ("pause_turn", "other"),
        ("something_new", "other"),
        (None, "other"),
        (5, "other"),
        ({}, "other"),
    ],
)
def test_endings(reason: Any, ending: str) -> None:
    """Each stop_reason has its neutral name."""
    assert parse(message(stop_reason=reason)).ending == ending


def test_calls_are_tool_use_only() -> None:
    """What a provider runs itself is no call."""
    blocks: list[dict[str, Any]] = [
        {"type": kind, "id": "i", "name": "n", "input": {}} for kind in ("server_tool_use", "mcp_tool_use", "x")
    ]
    assert parse(message(*blocks)).calls == ()


@pytest.mark.parametrize(
    ("block", "wanted"),
    [
        ({"input": {"a": [1, 2.5]}}, ToolCall("t", "f", {"a": [1, 2.5]}, '{"a": [1, 2.5]}')),
        ({"input": {}}, ToolCall("t", "f", {}, "{}")),
        ({}, ToolCall("t", "f", {}, "{}")),
        ({"input": None}, ToolCall("t", "f", {}, "{}")),
        ({"input": [1]}, ToolCall("t", "f", [1], "[1]")),
        ({"input": '{"a'}, ToolCall("t", "f", None, '{"a', valid=False)),
        ({"input": {}, "id": 5, "name": None}, ToolCall("", "", {}, "{}")),
    ],
)
def test_arguments(block: dict[str, Any], wanted: ToolCall) -> None:
    """The input as data and as its own text; a text in its place is what could not be read."""
    assert parse(message({"type": "tool_use", "id": "t", "name": "f", **block})).calls == (wanted,)


def test_the_reply_keeps_its_bytes() -> None:
    """Nothing is written anew."""
    raw = b'{ "content" : [ ],"x":1.50, "stop_reason":"end_turn" }'
    assert parse(raw).raw is raw


def test_a_reply_with_half_a_character_can_be_read() -> None:
    """Half a surrogate pair is JSON, though no text; it is replaced."""
    assert parse(b'{"content":[{"type":"text","text":"x\\ud83dy"}]}').value()["content"][0]["text"] == "x\ufffdy"


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        ((), ToolCall("t", "f", {}, "{}")),
        (("",), ToolCall("t", "f", {}, "{}")),
        ((" ", "\n"), ToolCall("t", "f", {}, "{}")),
        (('{"a":', " 1}"), ToolCall("t", "f", {"a": 1}, '{"a": 1}')),
        (('{"a":',), ToolCall("t", "f", None, '{"a":', valid=False)),
        (('{"a": NaN}',), ToolCall("t", "f", None, '{"a": NaN}', valid=False)),
        (('{"a": 1} {"b": 2}',), ToolCall("t", "f", None, '{"a": 1} {"b": 2}', valid=False)),
        (('{"a": "\\ud83d"}',), ToolCall("t", "f", None, '{"a": "\\ud83d"}', valid=False)),
        (("[" * 5000,), ToolCall("t", "f", None, "[" * 5000, valid=False)),
        (
            ('{"a":' * 3000 + "1" + "}" * 3000,),
            ToolCall("t", "f", None, '{"a":' * 3000 + "1" + "}" * 3000, valid=False),
        ),
    ],
    ids=range(10),
)
def test_folded_arguments(pieces: tuple[str, ...], wanted: ToolCall) -> None:
    """Arguments in pieces; what is no JSON never counts as arguments, and stays as the text that came."""
    reply = fold(*call(*pieces))
    assert (reply.calls, reply.fault) == ((wanted,), None)
    if not wanted.valid:
        assert reply.value()["content"][0]["input"] == wanted.raw
        assert reply.broken == "invalid_arguments"


def test_pieces_win_over_the_input_of_the_start() -> None:
    """A start that holds an input which is then told again in pieces is not doubled."""
    assert fold(*call('{"b": 2}', given={"a": 1})).calls[0].arguments == {"b": 2}


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([START, STOP], None),
        ([START], "cut"),
        ([], "cut"),
        ([STOP], "cut"),
        ([START, {"type": "error", "error": {}}], "error"),
        ([START, {"type": "error", "error": {}}, STOP], "error"),
        ([START, STOP, {"type": "error", "error": {}}], None),
        ([START, STOP, START, STOP], None),
        ([START, START, STOP], "malformed"),
        ([{"type": "message_start", "message": []}, STOP], "malformed"),
        ([START, {"type": "content_block_start", "index": 0, "content_block": "x"}, STOP], "malformed"),
        ([START, {"type": "content_block_start", "index": "0", "content_block": {}}, STOP], "malformed"),
        ([START, {"type": "content_block_delta", "index": 3, "delta": {}}, STOP], "malformed"),
        ([START, {"type": "content_block_stop", "index": 3}, STOP], "malformed"),
        ([START, {"type": "message_delta", "delta": []}, STOP], "malformed"),
        ([{"type": "message_delta", "delta": {}}, START, STOP], "malformed"),
        ([START, b"event: content_block_start\ndata: x\n\n", STOP], "malformed"),
        ([START, b"data: [DONE]\n\n", STOP], "malformed"),
        ([START, b"event: vendor\ndata: x\n\n", STOP], None),
        ([START, b"event: vendor\ndata: [1]\n\n", STOP], None),
        ([START, b": x\n\n", b"event: ping\n\n", STOP], None),
        ([START, {"type": "message_delta"}, STOP], None),
    ],
)
def test_faults(events: list[Any], fault: str | None) -> None:
    """A stream is whole, or has one of three faults."""
    assert fold(*events).fault == fault


def test_bytes_that_are_no_text_do_not_break_a_reply() -> None:
    """What is not UTF-8 is replaced, so that the reply can be read."""
    delta = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\xffb"}}\n\n'
    block_ = b'{"type":"text","text":"","x":"\xfe"}'
    start = b'data: {"type":"content_block_start","index":0,"content_block":%b}\n\n' % block_
    other = start.replace(b'"index":0', b'"index":1')
    blocks = fold(START, start, delta, other, STOP).value()["content"]
    assert blocks == [{"type": "text", "text": text, "x": "\ufffd"} for text in ("a\ufffdb", "")]


@pytest.mark.parametrize(
    ("start", "deltas", "wanted"),
    [
        ({"text": "a"}, [{"type": "text_delta", "text": "b"}], {"text": "ab"}),
        ({"thinking": "a"}, [{"type": "thinking_delta", "thinking": "b"}], {"thinking": "ab"}),
        ({}, [{"type": "text_delta", "text": "b"}], {"text": "b"}),
        ({"text": None}, [{"type": "text_delta", "text": "b"}], {"text": "b"}),
        ({"signature": "a"}, [{"type": "signature_delta", "signature": "b"}], {"signature": "b"}),
        ({"citations": [1]}, [{"type": "citations_delta", "citation": 2}], {"citations": [1, 2]}),
        ({"citations": [1]}, [{"type": "citations_delta", "citation": 2}, {"type": "x"}], {"citations": [1, 2]}),
        ({"signature": "a"}, [{"type": "signature_delta", "signature": "b"}, {"type": "x"}], {"signature": "b"}),
        ({"a": "x", "b": 1}, [{"type": "x", "a": "y", "b": 2}], {"a": "xy", "b": 2}),
        ({"a": "x", "b": 1}, [{"type": "x", "a": None, "c": None}], {"a": "x", "b": 1, "c": None}),
        ({"input": {}}, [{"type": "input_json_delta", "partial_json": "{"}, {"type": "x"}], {"input": "{"}),
    ],
)
def test_what_a_start_has_is_grown(start: dict[str, Any], deltas: list[dict[str, Any]], wanted: dict[str, Any]) -> None:
    """Text and lists are joined to what the start holds; a signature and other values replace it."""
    events = [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    reply = fold(START, {"type": "content_block_start", "index": 0, "content_block": start}, *events, STOP)
    assert reply.value()["content"] == [wanted]


def test_a_constant_that_is_no_json_is_named() -> None:
    """The reader of JSON with halves of characters takes nothing else that JSON does not have."""
    with pytest.raises(ValueError, match="NaN is no JSON"):
        parse(b'{"content": [], "x": NaN}')


def test_odd_deltas_are_left_out() -> None:
    """A delta that is no object takes nothing away from the rest of the block."""
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "0"}}
    reply = fold(START, start, text, {**text, "delta": 5}, {"type": "content_block_delta", "index": 0}, text, STOP)
    assert reply.value()["content"] == [{"type": "text", "text": "0aa"}]


def test_delivered_is_told_beside_the_fold() -> None:
    """Whether the client has a call already, only the splicer knows."""
    assert Fold().reply(delivered=True).delivered
    assert not Fold().reply().delivered


def test_a_null_in_the_ending_takes_nothing_away() -> None:
    """What message_start has, a null in message_delta leaves; what it lacks becomes null."""
    start = {"type": "message_start", "message": {"content": [], "container": {"id": "c"}}}
    delta = {"type": "message_delta", "delta": {"container": None, "stop_reason": "end_turn", "stop_sequence": None}}
    wanted: dict[str, Any] = {"content": [], "container": {"id": "c"}, "stop_reason": "end_turn", "stop_sequence": None}
    assert fold(start, delta, STOP).value() == wanted
