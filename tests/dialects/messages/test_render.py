"""Whole replies written out: as a stream, as the JSON answer, and as token counts.

This file must not know how a stream is spliced.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dialects.laws import MESSAGES_GRAMMAR
from loopway.dialects.base import Dialect
from loopway.dialects.messages import MESSAGES
from loopway.dialects.messages.reply import parse

DIALECT: Dialect = MESSAGES


def test_the_facts_of_the_dialect() -> None:
    """Names, path, status and ping are Anthropic's."""
    assert (DIALECT.name, DIALECT.path, DIALECT.provider) == ("messages", "/v1/messages", "anthropic")
    assert (DIALECT.call_type, DIALECT.full_status) == ("anthropic_messages", 529)
    assert DIALECT.ping == b'event: ping\ndata: {"type": "ping"}\n\n'
    assert DIALECT.tail == b"message_stop"
    assert DIALECT.request(b'{"model":"m"}').model == "m"


TEXT = {"type": "text", "text": "x"}
CALL = {"type": "tool_use", "id": "t", "name": "mine", "input": {"a": 1}}
OWNED = {"type": "tool_use", "id": "o", "name": "owned", "input": {}}
WHOLE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 2},
}


@pytest.mark.parametrize(
    "block",
    [
        TEXT,
        {"type": "text", "text": ""},
        {"type": "text", "text": "x", "citations": None},
        {"type": "text", "text": "x", "citations": []},
        {"type": "text", "text": "x", "citations": [{"type": "c", "cited_text": "y"}]},
        {"type": "thinking", "thinking": "x", "signature": "s"},
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking", "thinking": "x"},
        {"type": "redacted_thinking", "data": "AAA"},
        CALL,
        OWNED,
        {"type": "tool_use", "id": "t", "name": "mine", "input": '{"cut'},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": "ü"}},
        {"type": "mcp_tool_use", "id": "s", "name": "n", "server_name": "x", "input": [1]},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"x": 1}]},
        {"type": "vendor", "text": "x", "input": {"y": 1}},
        {"no": "type"},
    ],
    ids=json.dumps,
)
def test_a_rendered_block_reads_back(block: dict[str, Any]) -> None:
    """Every block is told in a valid stream that folds to the block."""
    value: dict[str, Any] = {
        **WHOLE,
        "content": [block, TEXT],
        "container": {"id": "c"},
        "context_management": {"x": []},
        "new": 1,
    }
    frames = DIALECT.render(value)
    assert MESSAGES_GRAMMAR.breaches(frames, ended=True) == []
    assert MESSAGES_GRAMMAR.fold(frames) == value
    assert not {"container", "context_management"} & json.loads(frames[0].data or b"")["message"].keys()


def test_text_and_arguments_are_told_as_deltas() -> None:
    """Clients show deltas; what a start holds they may overlook."""
    kinds = [json.loads(frame.data or b"")["type"] for frame in DIALECT.render({**WHOLE, "content": [TEXT, CALL]})]
    assert kinds.count("content_block_delta") == 2


@pytest.mark.parametrize(("blocks", "reason"), [([], "end_turn"), ([TEXT], "end_turn"), ([TEXT, CALL], "tool_use")])
def test_what_an_override_lacks_is_added(blocks: list[dict[str, Any]], reason: str) -> None:
    """A reply of nothing but content is told as a whole message."""
    frames = DIALECT.render({"content": blocks})
    assert MESSAGES_GRAMMAR.breaches(frames, ended=True) == []
    message = MESSAGES_GRAMMAR.fold(frames)
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == (blocks, reason, None)


@pytest.mark.parametrize(
    "value",
    [{}, {"content": None}, {"content": "x"}, {"content": ["x"]}, {"content": [{"type": "text", "text": object()}]}],
    ids=["nothing", "null", "text", "no block", "no JSON"],
)
def test_what_is_no_reply_is_not_rendered(value: dict[str, Any]) -> None:
    """A value without blocks, or that is no JSON, is refused."""
    with pytest.raises(ValueError, match="reply"):
        DIALECT.render(value)


# --- final -----------------------------------------------------------------------


def mine(name: str) -> bool:
    return name == "mine"


def reply(*content: dict[str, Any], **more: Any) -> Any:
    return parse(json.dumps({**WHOLE, "content": list(content), **more}, indent=1).encode())


@pytest.mark.parametrize(
    ("content", "said", "kept", "told"),
    [
        ((TEXT, OWNED), "tool_use", [TEXT], "end_turn"),
        ((TEXT, OWNED, CALL), "tool_use", [TEXT, CALL], "tool_use"),
        ((OWNED,), "max_tokens", [], "max_tokens"),
        ((OWNED,), "end_turn", [], "end_turn"),
        ((TEXT,), "tool_use", [TEXT], "end_turn"),
        (({**OWNED, "type": "server_tool_use"},), "end_turn", [{**OWNED, "type": "server_tool_use"}], "end_turn"),
    ],
)
def test_refused_calls_are_removed(content: Any, said: str, kept: list[dict[str, Any]], told: str) -> None:
    """A call that the client must not see goes, and an ending that announces calls with the last of them."""
    answer = json.loads(DIALECT.final(reply(*content, stop_reason=said), keep=mine))
    assert answer == {**WHOLE, "content": kept, "stop_reason": told}


@pytest.mark.parametrize("usage", [None, {"input_tokens": 1, "output_tokens": 2}])
def test_an_answer_without_a_change_keeps_its_bytes(usage: dict[str, int] | None) -> None:
    """The upstream's own bytes come back where nothing has to change."""
    whole = reply(TEXT, CALL, stop_reason="tool_use")
    assert DIALECT.final(whole, keep=mine, usage=usage) is whole.raw


def test_untouched_members_keep_their_bytes() -> None:
    """Only what changes is written anew."""
    text = b'{"type":"text", "text":"a", "n": 2.0}'
    raw = b'{"x": 1.50, "content": [%b,{"type":"tool_use","name":"owned"}], "usage":{}}' % text
    answer = DIALECT.final(parse(raw), keep=mine, usage={"output_tokens": 1})
    assert answer == b'{"x":1.50,"content":[%b],"usage":{"output_tokens":1}}' % text


def test_interim_text_goes_in_front() -> None:
    """Blocks of earlier replies lead, all but their calls."""
    thought = {"type": "thinking", "thinking": "t", "signature": "s"}
    earlier = [reply(thought, OWNED), reply({**TEXT, "text": "two"}, CALL)]
    answer = json.loads(DIALECT.final(reply(TEXT), keep=mine, interim=earlier))
    assert answer["content"] == [thought, {**TEXT, "text": "two"}, TEXT]
    assert answer["id"] == "msg_1"


# --- tokens ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "wanted"),
    [
        ({}, {}),
        ({"input_tokens": 3, "output_tokens": 5}, {"input": 3, "output": 5}),
        (
            {"input_tokens": 3, "cache_read_input_tokens": 10, "cache_creation_input_tokens": 100, "output_tokens": 0},
            {"input": 113, "cache_read": 10, "cache_creation": 100},
        ),
        ({"input_tokens": None, "output_tokens": "5", "cache_read_input_tokens": True}, {}),
        ({"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 4}}, {"output": 9, "reasoning": 4}),
        ({"output_tokens": 9, "output_tokens_details": None}, {"output": 9}),
    ],
)
def test_tokens(usage: dict[str, Any], wanted: dict[str, int]) -> None:
    """Anthropic's fields by neutral names; the input counts the cached ones, too."""
    assert DIALECT.tokens(usage) == wanted
