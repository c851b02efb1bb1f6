"""An object whose members stay raw bytes: what is changed, what keeps its bytes, and a member that is there twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loopway.dialects.members import Members

SPACE = st.text(" \t\n\r", max_size=3)
KEYS = st.sampled_from(['"model"', '"mod\\u0065l"', '"Model"', '"x"', '"models"', '"é"', '"\\u00e9"', '"a\\"model\\""'])
VALUES = st.sampled_from(['"a"', "0", "null", "[ ]", '{"model": 1}', '"\\"model\\":"', '"\\u006dodel"', '"é"'])


@st.composite
def objects(draw: st.DrawFn) -> tuple[str, list[str]]:
    """The text of an object, and the names of its members as they are written, decoded."""
    pairs = draw(st.lists(st.tuples(KEYS, VALUES), max_size=7))
    space = st.just("") if draw(st.booleans()) else SPACE
    members = [f"{draw(space)}{key}{draw(space)}:{draw(space)}{value}{draw(space)}" for key, value in pairs]
    return "{" + ",".join(members) + "}", [json.loads(key) for key, _ in pairs]


@given(objects())
@example(('{"model":0,"model":0}', ["model", "model"]))
@example(('{"model":0,"mod\\u0065l":0}', ["model", "model"]))
@example(('{"model":"a","é":"","model":0}', ["model", "é", "model"]))
def test_a_member_that_is_there_twice_is_seen(made: tuple[str, list[str]]) -> None:
    """However it is spelled, and whatever stands between; so are two spellings that some readers do not tell apart."""
    text, names = made
    spelled = [name for name in names if name.lower() == "model"]
    twice = names.count("model") > 1 or any(name != "model" for name in spelled)
    assert Members.parse(text.encode()).repeated("model") is twice


@pytest.mark.parametrize("value", [{"model": "m", "messages": [1]}, {"model": "m" * 40, "n": 1, "": None}, {}])
def test_a_compact_object_is_not_searched(value: dict[str, Any]) -> None:
    """SDKs write no spaces between members: then the sizes of the members say that there is no other."""
    body = json.dumps(value, separators=(",", ":")).encode()
    members = Members.parse(body)
    assert not members._room_for("model")


@given(st.dictionaries(st.text(max_size=4), st.one_of(st.integers(), st.text(max_size=4), st.none()), max_size=5))
def test_what_is_not_changed_keeps_its_bytes(value: dict[str, Any]) -> None:
    """Also its place; what is changed is read back as what it was changed to."""
    try:
        body = json.dumps(value, ensure_ascii=False, indent=1).encode()
    except UnicodeEncodeError:
        return
    members = Members.parse(body)
    assert members.encode() == body
    assert members.fresh() == value
    changed = members.with_members({"model": "new"})
    assert json.loads(changed.encode()) == {**value, "model": "new"}
    assert list(json.loads(changed.encode())) == list({**value, "model": "new"})
