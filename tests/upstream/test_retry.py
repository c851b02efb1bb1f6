"""Pauses and whether there is one; and what undoes an encoding. Pure."""

from __future__ import annotations

import gzip
import zlib
from email.utils import formatdate
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopway.upstream.inflate import LARGEST_PIECE, InflateError, Inflater
from loopway.upstream.retry import LONGEST_PAUSE, PATIENCE, asked_pause, backoff, pause_after_status

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({}, None),
        ({b"retry-after": b"2"}, 2.0),
        ({b"retry-after": b"1.5"}, 1.5),
        ({b"retry-after": b"-4"}, 0.0),
        ({b"retry-after": b""}, None),
        ({b"retry-after": b"nan"}, None),
        ({b"retry-after": b"inf"}, None),
        ({b"retry-after": b"later"}, None),
        ({b"retry-after": b"\xff"}, None),
        ({b"retry-after": formatdate(NOW + 7, usegmt=True).encode()}, 7.0),
        ({b"retry-after": formatdate(NOW - 7, usegmt=True).encode()}, 0.0),
        ({b"retry-after-ms": b"1500"}, 1.5),
        ({b"retry-after-ms": b"1500", b"retry-after": b"9"}, 1.5),
        ({b"retry-after-ms": b"x", b"retry-after": b"9"}, 9.0),
    ],
)
def test_asked_pause(headers: dict[bytes, bytes], pause: float | None) -> None:
    """Milliseconds before seconds or a date; nonsense is as if absent."""
    assert asked_pause(headers, NOW) == pause


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_backoff_is_bounded(tries: int, draw: float) -> None:
    """However many tries, the pause lies between nothing and the longest one."""
    assert 0 <= backoff(tries, draw) <= LONGEST_PAUSE


@given(st.integers(100, 599), st.dictionaries(st.sampled_from([b"retry-after", b"retry-after-ms"]), st.binary()))
def test_pause_is_sane_or_none(status: int, headers: dict[bytes, bytes]) -> None:
    """Whatever an upstream writes there, a pause is short and no error comes."""
    pause = pause_after_status(status, headers, tries=1, draw=0.5, now=NOW)
    assert pause is None or 0 <= pause <= PATIENCE


def raw_deflate(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return engine.compress(data) + engine.flush()


def members(data: bytes) -> bytes:
    return gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :])


PACKED: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (b"gzip", gzip.compress),
    "members": (b"gzip", members),
    "zlib": (b"deflate", zlib.compress),
    "raw": (b"deflate", raw_deflate),
}


@pytest.mark.parametrize("kind", PACKED)
@given(data=st.binary(max_size=2000), cuts=st.lists(st.integers(0, 3000), max_size=6))
def test_cuts_may_fall_anywhere(kind: str, data: bytes, cuts: list[int]) -> None:
    """However the encoded bytes are cut, the same plain ones come out."""
    encoding, pack = PACKED[kind]
    packed = pack(data)
    inflater = Inflater(encoding)
    places = [0, *sorted(min(cut, len(packed)) for cut in cuts), len(packed)]
    out = [piece for a, b in pairwise(places) for piece in inflater.feed(packed[a:b])]
    inflater.end()
    assert b"".join(out) == data


@pytest.mark.parametrize("kind", PACKED)
def test_pieces_are_bounded(kind: str) -> None:
    """Ten megabytes in a few bytes come out in small pieces."""
    encoding, pack = PACKED[kind]
    sizes = [len(piece) for piece in Inflater(encoding).feed(pack(bytes(10_000_000)))]
    assert sum(sizes) == 10_000_000
    assert max(sizes) <= LARGEST_PIECE


@pytest.mark.parametrize("kind", PACKED)
def test_too_short(kind: str) -> None:
    """An encoded stream that is cut is an error at its end."""
    encoding, pack = PACKED[kind]
    inflater = Inflater(encoding)
    list(inflater.feed(pack(b"some text that is long enough")[:-3]))
    with pytest.raises(InflateError):
        inflater.end()


def test_nothing_at_all() -> None:
    """No bytes are no bytes, encoded or not."""
    inflater = Inflater(b"gzip")
    assert list(inflater.feed(b"")) == []
    inflater.end()
