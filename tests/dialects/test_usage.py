"""Sums of usage objects.

This file must not know the fields of any dialect.
"""

from __future__ import annotations

from typing import Any

import pytest

from loopway.dialects.usage import added

TABLE: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("nothing", {}, {}, {}),
    ("numbers add up", {"a": 1, "b": 0.5}, {"a": 2, "b": 1}, {"a": 3, "b": 1.5}),
    ("a field of one side stays", {"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
    ("null counts as absent behind", {"a": 1}, {"a": None}, {"a": 1}),
    ("null counts as absent in front", {"a": None}, {"a": 2}, {"a": 2}),
    ("null on both sides", {"a": None}, {"a": None}, {"a": None}),
    ("objects add member by member", {"a": {"x": 1, "y": 1}}, {"a": {"x": 2, "z": 3}}, {"a": {"x": 3, "y": 1, "z": 3}}),
    ("lists are joined", {"a": [1]}, {"a": [2]}, {"a": [1, 2]}),
    ("the later text wins", {"a": "x"}, {"a": "y"}, {"a": "y"}),
    ("booleans are no numbers", {"a": True}, {"a": True}, {"a": True}),
    ("two kinds: the later wins", {"a": {"x": 1}}, {"a": 2}, {"a": 2}),
]


@pytest.mark.parametrize(("total", "one", "wanted"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_added(total: dict[str, Any], one: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Two usage objects add up to this, and stay as they were."""
    before = repr((total, one))
    made = added(total, one)
    assert made == wanted
    assert [type(value) for value in made.values()] == [type(value) for value in wanted.values()]
    assert repr((total, one)) == before
