"""`loopway.hooks.view`: one value that reads as attributes and as a mapping."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopway.hooks.view import View, fresh, plain, view

few = settings(max_examples=40, deadline=None)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=10,
)
NAMES = st.text("abcdefg_", min_size=1, max_size=6).filter(lambda name: not hasattr(dict, name))
OBJECTS = st.dictionaries(NAMES, JSON, max_size=5)
CHAT = {
    "choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "get"}}]}}],
}


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same type at every level: True is no 1 here, and a view no dict."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@few
@given(OBJECTS)
def test_attribute_and_mapping_read_the_same(data: dict[str, Any]) -> None:
    """Each member reads the same as an attribute and as an item."""
    seen = view(copy.deepcopy(data))
    for name in data:
        assert getattr(seen, name) is seen[name]
        assert seen.get(name) is seen[name]
    assert set(seen) == set(data)


@few
@given(JSON)
def test_plain_undoes_view(data: Any) -> None:
    """`plain` of a view is the data that it was made of, at every level."""
    assert same(plain(view(copy.deepcopy(data))), data)


@few
@given(JSON)
def test_msgspec_encodes_a_view_as_its_data(data: Any) -> None:
    """A view in a patch goes on the wire as the data that it shows."""
    assert msgspec.json.encode(view(copy.deepcopy(data))) == msgspec.json.encode(data)


@few
@given(JSON)
def test_json_encodes_a_view_as_its_data(data: Any) -> None:
    """The standard library's encoder takes a view, too."""
    assert json.dumps(view(copy.deepcopy(data))) == json.dumps(data)


@few
@given(JSON)
def test_a_view_equals_its_data(data: Any) -> None:
    """A view compares equal to the data that it was made of."""
    assert view(copy.deepcopy(data)) == data


@few
@given(OBJECTS)
def test_a_fresh_copy_shares_no_container(data: dict[str, Any]) -> None:
    """What is written into a fresh copy, at any level, is not seen in the original."""
    original = view(copy.deepcopy(data))
    copied = fresh(original)
    assert same(copied, original)
    spoil(copied)
    assert same(plain(original), data)


def spoil(value: Any) -> None:
    if isinstance(value, dict):
        for item in list(value.values()):
            spoil(item)
        value["spoiled"] = True
    elif isinstance(value, list):
        for item in value:
            spoil(item)
        value.append("spoiled")


@pytest.mark.parametrize("kind", [tuple, set, list])
def test_a_fresh_copy_keeps_the_kind_of_container(kind: type) -> None:
    """A tuple stays a tuple and a set a set."""
    assert same(fresh({"a": kind([1, 2])}), {"a": kind([1, 2])})


def test_a_list_inside_a_tuple_is_copied() -> None:
    """A tuple is no hiding place for what is shared."""
    inner: list[int] = []
    fresh({"pair": (inner,)})["pair"][0].append(1)
    assert inner == []


def test_lists_hold_views_and_blocks_are_dicts() -> None:
    """`choices[0].message.tool_calls[0].function.name` reads through lists, and each block is a `dict`."""
    seen = view(copy.deepcopy(CHAT))
    call = seen.choices[0].message.tool_calls[0]
    assert call.function.name == call["function"]["name"] == "get"
    assert isinstance(call, dict)


def test_a_missing_member_is_an_attribute_error() -> None:
    """`getattr` with a default, and `hasattr`, work on a member that is not there."""
    assert getattr(view({}), "content", "none") == "none"
    assert not hasattr(view({}), "content")
    with pytest.raises(AttributeError, match="content"):
        _ = view({}).content


def test_a_message_without_calls_has_none_of_them() -> None:
    """`message.tool_calls or []` works on a message that has no such member, which is still not in it."""
    message = view({"role": "assistant"})
    assert (message.tool_calls or []) == []
    assert "tool_calls" not in message


@pytest.mark.parametrize("name", ["items", "keys", "values", "get", "pop", "update", "copy"])
def test_a_member_named_like_a_method_is_read_as_an_item(name: str) -> None:
    """The mapping's own methods stay callable, whatever the model's JSON names its members."""
    seen = view({name: 1})
    assert callable(getattr(seen, name))
    assert seen[name] == 1


def test_setting_an_attribute_sets_the_member() -> None:
    """An attribute that is written is a member of the mapping, and can be deleted as one."""
    seen = view({"a": 1})
    seen.a = 2
    seen.b = 3
    assert plain(seen) == {"a": 2, "b": 3}
    del seen.a
    assert plain(seen) == {"b": 3}
    with pytest.raises(AttributeError, match="a"):
        del seen.a


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda seen: pickle.loads(pickle.dumps(seen))])
def test_a_view_can_be_copied(copied: Any) -> None:
    """Copying and pickling give a view again."""
    twin = copied(view({"a": {"b": [1]}}))
    assert isinstance(twin, View)
    assert twin.a.b == [1]
    assert isinstance(view({"a": 1}).copy(), View)


def test_model_dump_gives_plain_data() -> None:
    """`model_dump` of the SDKs' models works, with `exclude_none` at every level and options that change nothing."""
    seen = view({"a": None, "b": [{"c": None, "d": 0}]})
    assert same(seen.model_dump(mode="json"), {"a": None, "b": [{"c": None, "d": 0}]})
    assert same(seen.model_dump(exclude_none=True), {"b": [{"d": 0}]})
