"""Members of streamed events that have another shape than documented: no error of ours, whatever they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from fuzz.targets import stream
from loopway.demo import Weather

ODD: tuple[Any, ...] = (
    None,
    1,
    "s",
    [],
    ["s"],
    {},
    {"name": 3},
    {"name": "f", "arguments": 3},
    {"name": ["f"], "arguments": ["x"]},
    {"arguments": {"a": 1}},
)


def chunks(function: Any) -> Iterator[list[Any]]:
    """Streams of Chat Completions in which something is `function`."""
    for other, index in product(ODD[:5], (0, None, "0", [0])):
        calls = [{"index": index, "id": "a", "function": function}, {"index": index, "function": other}]
        for delta in (
            {"tool_calls": calls},
            {"tool_calls": function},
            {"content": "x", "tool_calls": [function, other]},
            {"function_call": function},
            {"content": function},
            {"role": function},
            function,
        ):
            for choices in (
                [{"index": 0, "delta": delta, "finish_reason": None}, {"index": index, "delta": delta}],
                [{"delta": {}}, {"delta": delta}],
                [function, {"delta": delta}],
                function,
            ):
                text = {"index": 0, "delta": {"content": "y"}}
                yield [{"id": "x", "choices": choices}, {"choices": [text, {"index": 0, "delta": delta}]}]


def events(odd: Any) -> Iterator[list[Any]]:
    """Streams of Messages in which something is `odd`."""
    start = {"type": "message_start", "message": {"id": "m", "content": [], "usage": {}}}
    tool = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    for block, index in product(
        (tool, odd, {**tool, "input": odd}, {"type": odd}, {"type": "text", "text": odd}), (0, odd)
    ):
        for delta in (odd, {"type": "input_json_delta", "partial_json": odd}, {"type": "text_delta", "text": odd}):
            yield [
                start,
                {"type": "content_block_start", "index": index, "content_block": block},
                {"type": "content_block_delta", "index": index, "delta": delta},
                {"type": "content_block_stop", "index": index},
                {"type": "message_delta", "delta": odd, "usage": odd},
                {"type": "message_stop"},
            ]
    yield [{"type": "message_start", "message": odd}, start]
    yield [{"type": odd}, odd]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_odd_members(odd: Any) -> None:
    """A splicer takes them or says that it cannot read them."""
    for said in chunks(odd):
        stream(b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in said))
    for said in events(odd):
        lines = [(one.get("type") if isinstance(one, dict) else "x", one) for one in said]
        stream(
            b"".join(b"event: %b\ndata: %b\n\n" % (str(kind).encode(), json.dumps(one).encode()) for kind, one in lines)
        )


@pytest.mark.parametrize("call_type", ["acompletion", "anthropic_messages"])
@pytest.mark.parametrize("odd", ODD, ids=repr)
async def test_tools_that_the_demo_gets(odd: Any, call_type: str) -> None:
    """The demo's hook offers its tool beside whatever a client declared; the upstream refuses that."""
    for tools in (odd, [odd], [{"function": odd}]):
        await Weather().async_pre_call_hook(None, None, {"tools": tools}, call_type)
