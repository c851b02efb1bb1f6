"""The laws over exchanges that nobody thought of: any blocks, in any number of iterations, interleaved in any way.

This file must not know how a splicer works.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.laws import MESSAGES_GRAMMAR, Case, at, check_laws
from loopway.dialects.messages import MESSAGES

NAMES = st.sampled_from(["owned", "mine", "nobody's"])
WORDS = st.text(max_size=12)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
INPUTS = st.dictionaries(WORDS, DATA, max_size=3)


def block(kind: str, **members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **members})


BLOCKS = st.lists(
    st.one_of(
        block("text", text=WORDS),
        block("thinking", thinking=WORDS, signature=WORDS),
        block("redacted_thinking", data=WORDS),
        block("tool_use", id=WORDS, name=NAMES, input=INPUTS),
        block("server_tool_use", id=WORDS, name=NAMES, input=INPUTS),
        block("vendor_block", payload=DATA),
    ),
    max_size=5,
)
USAGE = st.fixed_dictionaries(
    {"input_tokens": st.integers(0, 99), "output_tokens": st.integers(0, 99)},
    optional={
        "cache_read_input_tokens": st.none() | st.integers(0, 99),
        "cache_creation": st.fixed_dictionaries({"ephemeral_5m_input_tokens": st.integers(0, 99)}),
    },
)


def event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data}, ensure_ascii=False)}\n\n".encode()


def lane(index: int, whole: dict[str, Any], draw: st.DrawFn) -> list[bytes]:
    """The events of one block, its text in random pieces."""
    start = dict(whole)
    pieces: list[dict[str, Any]] = []
    told: dict[str, tuple[str, str]] = {
        "text": ("text", "text_delta"),
        "thinking": ("thinking", "thinking_delta"),
        "tool_use": ("partial_json", "input_json_delta"),
        "server_tool_use": ("partial_json", "input_json_delta"),
    }
    member, kind = told.get(whole["type"], ("", ""))
    if member:
        text = json.dumps(whole["input"]) if member == "partial_json" else whole[member]
        start["input" if member == "partial_json" else member] = {} if member == "partial_json" else ""
        size = draw(st.integers(1, 30))
        pieces += [{"type": kind, member: text[place : place + size]} for place in range(0, len(text), size)]
    if "signature" in whole:
        start["signature"] = ""
        pieces.append({"type": "signature_delta", "signature": whole["signature"]})
    return [
        event("content_block_start", index=index, content_block=start),
        *(event("content_block_delta", index=index, delta=piece) for piece in pieces),
        event("content_block_stop", index=index),
    ]


def summed(usages: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of these usages, by their only fields."""
    total: dict[str, Any] = {}
    for name in ("input_tokens", "output_tokens", "cache_read_input_tokens"):
        if found := [usage[name] for usage in usages if name in usage]:
            numbers = [number for number in found if number is not None]
            total[name] = sum(numbers) if numbers else None
    if created := [usage["cache_creation"] for usage in usages if "cache_creation" in usage]:
        name = "ephemeral_5m_input_tokens"
        total["cache_creation"] = {name: sum(one[name] for one in created)}
    return total


@st.composite
def exchanges(draw: st.DrawFn) -> Case:
    """An exchange, with the message that the client must get made by hand."""
    streams: list[bytes] = []
    replies: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 3))):
        blocks, usage = draw(BLOCKS), draw(USAGE)
        calls = any(one["type"] == "tool_use" for one in blocks)
        reply: dict[str, Any] = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": blocks,
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": usage,
        }
        empty = {**reply, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
        events = [event("message_start", message=empty)]
        waiting = [lane(index, one, draw) for index, one in enumerate(blocks)]
        open_: list[list[bytes]] = []
        while waiting or open_:
            if waiting and (not open_ or draw(st.integers(0, 3)) == 0):
                open_.append(waiting.pop(0))
                events.append(open_[-1].pop(0))
            else:
                one = draw(st.sampled_from(open_))
                events.append(one.pop(0))
                open_ = [rest for rest in open_ if rest]
        delta = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
        events.append(event("message_delta", delta=delta, usage={"output_tokens": usage["output_tokens"]}))
        events.append(event("message_stop"))
        streams.append(b"".join(events))
        replies.append(reply)
    shown = [one for reply in replies for one in reply["content"] if one["type"] != "tool_use" or one["name"] == "mine"]
    final = {
        **replies[0],
        "usage": summed([reply["usage"] for reply in replies]),
        "content": shown,
        "stop_reason": "tool_use" if any(one["type"] == "tool_use" for one in shown) else "end_turn",
    }
    return Case(
        name="any",
        streams=tuple(streams),
        owned=frozenset(["owned"]),
        declared=frozenset(["mine"]),
        replies=tuple(replies),
        final=final,
    )


@settings(max_examples=60, deadline=None, database=None)
@given(case=exchanges(), places=st.lists(st.integers(0, 5000), max_size=6))
def test_any_exchange_obeys_the_laws(case: Case, places: list[int]) -> None:
    """Whatever the model says, in whatever order, the client gets one valid message without a server call."""
    check_laws(MESSAGES, case, MESSAGES_GRAMMAR, at(places))
