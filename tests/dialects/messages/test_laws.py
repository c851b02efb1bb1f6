"""The laws over every case file of Messages, over recorded streams, and the SDK's own reading of what comes out.

This file must not know how a splicer works.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.laws import (
    MESSAGES_GRAMMAR,
    Case,
    Cut,
    at,
    bytewise,
    cases,
    check_laws,
    frames_of,
    play,
    recorded,
    whole,
)
from loopway.dialects.base import Dialect
from loopway.dialects.messages import MESSAGES

DIALECT: Dialect = MESSAGES
CASES = cases(Path(__file__).parent / "cases")
RECORDED = recorded("messages")
OUR_KINDS = frozenset(
    ("text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result")
)

every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
every_recording = pytest.mark.parametrize(("name", "payloads"), RECORDED, ids=[name for name, _ in RECORDED] or None)


def stream_of(payloads: list[bytes]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (json.loads(one)["type"].encode(), one) for one in payloads)


@pytest.mark.parametrize("cut", [whole, bytewise])
@every_case
def test_every_case_obeys_the_laws(case: Case, cut: Cut) -> None:
    """All six laws hold, read at once and byte by byte."""
    check_laws(DIALECT, case, MESSAGES_GRAMMAR, cut)


@settings(max_examples=200, deadline=None, database=None)
@given(case=st.sampled_from(CASES), places=st.lists(st.integers(min_value=0, max_value=20_000), max_size=8))
def test_cuts_anywhere_change_nothing(case: Case, places: list[int]) -> None:
    """The same comes out wherever the reads end."""
    assert play(DIALECT, case, at(places)) == play(DIALECT, case, whole)


@pytest.mark.parametrize("cut", [whole, bytewise])
@pytest.mark.parametrize("ours", [True, False])
@every_recording
def test_recorded_streams_obey_the_laws(name: str, payloads: list[bytes], ours: bool, cut: Cut) -> None:
    """Real streams fold to what they tell, with their calls declared by the client and owned by a hook."""
    stream = stream_of(payloads)
    told = MESSAGES_GRAMMAR.fold(frames_of(stream))
    tools = frozenset(MESSAGES_GRAMMAR.calls(told))
    final = dict(told)
    if ours and tools:
        final["content"] = [block for block in told["content"] if block["type"] != "tool_use"]
        final["stop_reason"] = "end_turn"
    case = Case(
        name=name,
        streams=(stream,),
        owned=tools if ours else frozenset(),
        declared=frozenset() if ours else tools,
        replies=(told,),
        final=final,
    )
    check_laws(DIALECT, case, MESSAGES_GRAMMAR, cut)


@every_recording
def test_recorded_streams_merge_behind_each_other(name: str, payloads: list[bytes]) -> None:
    """A real stream behind a rerun keeps all its blocks, with other indices."""
    stream = stream_of(payloads)
    told = MESSAGES_GRAMMAR.fold(frames_of(stream))
    tools = frozenset(MESSAGES_GRAMMAR.calls(told))
    shown = [block for block in told["content"] if block["type"] != "tool_use"]
    case = Case(name=name, streams=(stream, stream, stream), owned=tools, replies=(told,) * 3)
    check_laws(DIALECT, case, MESSAGES_GRAMMAR)
    assert MESSAGES_GRAMMAR.fold(frames_of(play(DIALECT, case).wire))["content"] == shown * 3


def test_cases_are_many() -> None:
    """A glob that finds nothing would make every law hold."""
    assert len(CASES) >= 100
    assert {case.fault for case in CASES} == {True, False}


# --- the SDK -------------------------------------------------------------------


def sdk_reads(wire: bytes) -> dict[str, Any]:
    """The message that the SDK's stream helper makes of a wire."""
    buffers: dict[int, bytes] = {}
    known = (b"message_", b"content_block_")
    events = [
        cast("Any", json.loads(frame.data))
        for frame in frames_of(wire)
        if frame.data is not None and frame.event.startswith(known)
    ]
    message: Any = None
    for event in events:
        message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)
    return cast("dict[str, Any]", message.to_dict(mode="json", exclude_unset=False, exclude_none=True, warnings=False))


def without_null(value: Any) -> Any:
    """The SDK drops nulls and adds them, so they do not count."""
    if isinstance(value, dict):
        return {name: without_null(member) for name, member in value.items() if member is not None}
    return [without_null(item) for item in value] if isinstance(value, list) else value


SDK_CASES = [
    case
    for case in CASES
    if case.final is not None
    and all(block["type"] in OUR_KINDS for block in case.final["content"])
    and all(isinstance(block.get("input", {}), dict) for block in case.final["content"])
    and "surrogate" not in case.name  # pydantic refuses halves; the wire passes them
]


@pytest.mark.parametrize("case", SDK_CASES, ids=[case.name for case in SDK_CASES])
def test_the_sdk_reads_the_same_message(case: Case) -> None:
    """The official SDK folds the merged stream to the message that is wanted."""
    read = sdk_reads(play(DIALECT, case).wire)
    wanted = without_null(case.final)
    for block in (*read["content"], *wanted["content"]):
        for extra in ("parsed_output", "caller"):
            block.pop(extra, None)
        if not block.get("citations"):
            block.pop("citations", None)
    for name in ("id", "role", "content", "stop_reason", "stop_sequence"):
        assert read.get(name) == wanted.get(name), name
    for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert read["usage"].get(name) == wanted["usage"].get(name), name


def test_the_sdk_reads_most_cases() -> None:
    """The list above leaves out only what the SDK has no type for."""
    assert len(SDK_CASES) > 55
