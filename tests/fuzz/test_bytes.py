"""Bytes that look nearly right, given to all that reads bytes from outside."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fuzz import targets
from loopway.dialects.table import DIALECTS
from loopway.errors import BadRequest

NAMES, WORDS, NUMBERS = (st.sampled_from(one) for one in (targets.NAMES, targets.WORDS, targets.NUMBERS))
VALUES = st.recursive(
    WORDS | NUMBERS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=25,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=6)


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


REQUESTS = st.builds(lambda value, model: encoded({"model": model, **value}), OBJECTS, WORDS)
MESSAGES = st.builds(
    lambda kind, value: b"event: %b\ndata: %b\n\n" % (kind.encode(), encoded({"type": kind, **value})), WORDS, OBJECTS
)
CHUNKS = st.builds(lambda delta, more: b"data: %b\n\n" % encoded({"choices": [{"index": 0, "delta": delta}], **more}),
                   OBJECTS, OBJECTS)  # fmt: skip
LINES = st.lists(
    st.sampled_from([b"data: ", b"event: x", b"\n", b"\r", b"\r\n", b":", b"{}", b"\xef\xbb\xbf", b"data"])
)
STREAMS = st.lists(MESSAGES | CHUNKS | LINES.map(b"".join), max_size=8).map(b"".join)
ANY = REQUESTS | OBJECTS.map(encoded) | STREAMS | st.binary(max_size=40)


def changed(data: bytes, place: int, piece: bytes) -> bytes:
    """The bytes with others in one place."""
    place %= len(data) + 1
    return data[:place] + piece + data[place + len(piece) :]


BROKEN = st.builds(
    changed, ANY, st.integers(0, 500), st.sampled_from([b"\xff", b"[", b'"', b"\\ud800", b"\n\n", b"1e999"])
)


@pytest.mark.parametrize("target", targets.TARGETS, ids=lambda target: target.__name__)
def test_any_bytes(target: Any) -> None:
    """The law of the target holds for bytes that are right, nearly right and not right at all."""

    @settings(max_examples=100, deadline=None)
    @example(b'{"model":"m","stream":1e999}')
    @example(b'{"model":"\xff"}')
    @example(b'{"model":"m","messages":' + b"[" * 5000 + b"]" * 5000 + b"}")
    @example(b'data: {"choices":[{"index":0,"delta":' + b"[" * 5000 + b"\n\n")
    @example(b'event: content_block_delta\ndata: {"type":"content_block_delta","index":1e999}\n\n')
    @given(ANY | BROKEN)
    def holds(data: bytes) -> None:
        target(data)

    holds()


def test_nesting_that_only_some_can_read() -> None:
    """What is parsed at the top of the stack and cannot be decoded deep in it is the client's mistake as well."""
    request = DIALECTS["messages"].request(b'{"model":"m","messages":' + b"[" * 700 + b"]" * 700 + b"}")

    def deep(frames: int) -> list[Any]:
        return deep(frames - 1) if frames else request.messages()

    with contextlib.suppress(BadRequest):  # newer Pythons have the depth
        assert deep(450)
