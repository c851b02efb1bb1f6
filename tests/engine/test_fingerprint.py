"""What makes two tool calls the same."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loopway.engine.fingerprint import fingerprint
from loopway.engine.reply import ToolCall

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def shuffled(value: Any) -> Any:
    """The same value with every object's keys the other way round."""
    if isinstance(value, dict):
        return {name: shuffled(item) for name, item in reversed(value.items())}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(JSON, st.text(max_size=9), st.text(max_size=9))
def test_ids_and_key_order_never_count(arguments: Any, one: Any, other: Any) -> None:
    """Two calls of one tool with the same arguments are one, in every shape that a context may have."""
    block = {"type": "tool_use", "id": one, "name": "t", "input": arguments}
    again = {"input": shuffled(arguments), "name": "t", "id": other, "type": "tool_use", "signature": one}
    chat = {"id": other, "type": "function", "function": {"name": "t", "arguments": json.dumps(arguments)}}
    prints = {fingerprint({"tool_calls": [call]}, ()) for call in (block, again, chat)}
    prints.add(fingerprint({}, [ToolCall(one, "t", arguments, json.dumps(arguments))]))
    assert len(prints) == 1


@given(JSON, JSON)
def test_other_arguments_count(one: Any, other: Any) -> None:
    """Only equal arguments give equal fingerprints."""
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (fingerprint([_block(one)], ()) == fingerprint([_block(other)], ())) is same


def _block(arguments: Any) -> Any:
    return {"type": "tool_use", "id": "x", "name": "t", "input": arguments}


def test_a_context_of_bare_inputs_counts_beside_the_names_of_the_reply() -> None:
    """A hook that keeps ids and inputs only is told apart by its inputs, and by which tool was called."""
    reply = [ToolCall("x", "t", {"n": 1}, "{}")]
    one, again = {"calls": [{"id": "a", "input": {"n": 1}}]}, {"calls": [{"id": "b", "input": {"n": 1}}]}
    other = {"calls": [{"id": "a", "input": {"n": 2}}]}
    assert fingerprint(one, reply) == fingerprint(again, reply) != fingerprint(other, reply)
    assert fingerprint(one, reply) != fingerprint(one, [ToolCall("x", "u", {"n": 1}, "{}")])


def test_without_any_call_the_context_itself_counts() -> None:
    """A hook that claims replies without calls trips on the same context twice."""
    assert fingerprint({"reason": "refusal", "id": "1"}, ()) == fingerprint({"reason": "refusal", "id": "2"}, ())
    assert fingerprint({"reason": "refusal"}, ()) != fingerprint({"reason": "empty"}, ())
    assert fingerprint(None, ()) == fingerprint(None, ())


def test_a_context_that_names_no_call_falls_back_to_the_reply() -> None:
    """The reply's calls are what is claimed."""
    one, other = [ToolCall("x", "t", {"n": 1}, "{}")], [ToolCall("x", "t", {"n": 2}, "{}")]
    assert fingerprint({"why": "because"}, one) == fingerprint({"why": "so"}, one) != fingerprint({}, other)


def test_empty_and_invalid_arguments_have_fingerprints() -> None:
    """No arguments are the empty object; text that is not JSON counts as it is."""
    empty = {"id": "1", "type": "function", "function": {"name": "t", "arguments": ""}}
    braces = {"id": "2", "type": "function", "function": {"name": "t", "arguments": " {} "}}
    broken = {"id": "3", "type": "function", "function": {"name": "t", "arguments": '{"a'}}
    assert fingerprint([empty], ()) == fingerprint([braces], ()) != fingerprint([broken], ())


def test_a_context_that_nests_without_end_is_survived() -> None:
    """A list inside itself does not hang or overflow."""
    loop: list[object] = []
    loop.append(loop)
    assert len(fingerprint({"odd": loop}, ())) == 64
