"""Bytes to events and back: the rules of WHATWG HTML, section 9.2.6.

This file must not know what an event means.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopway.dialects.sse import EventTooLarge, Frame, Reader, encode, encode_data

Cut = Callable[[bytes], list[bytes]]


def read(*pieces: bytes, largest: int = 1 << 20) -> list[Frame]:
    reader = Reader(largest)
    return [frame for piece in pieces for frame in reader.feed(piece)]


def bytewise(stream: bytes) -> list[bytes]:
    return [stream[place : place + 1] for place in range(len(stream))]


TABLE = [
    ("the usual", b"event: a\ndata: {}\n\n", (b"a", b"{}")),
    ("no name", b"data: x\n\n", (b"", b"x")),
    ("no space", b"event:a\ndata:x\n\n", (b"a", b"x")),
    ("one space only is dropped", b"event:  a\ndata:  x\n\n", (b" a", b" x")),
    ("data in front", b"data: x\nevent: a\n\n", (b"a", b"x")),
    ("several data lines", b"data: x\ndata:\ndata: y\n\n", (b"", b"x\n\ny")),
    ("data without a colon", b"data\n\n", (b"", b"")),
    ("data lines without a colon", b"data: x\ndata\n\n", (b"", b"x\n")),
    ("empty data", b"data:\n\n", (b"", b"")),
    ("the last name counts", b"event: a\nevent: b\ndata: x\n\n", (b"b", b"x")),
    ("a name without a colon is empty", b"event: a\nevent\ndata: x\n\n", (b"", b"x")),
    ("a comment", b": hello\n\n", (b"", None)),
    ("a comment inside", b"event: a\n: data: y\ndata: x\n\n", (b"a", b"x")),
    ("other fields", b"id: 1\nretry: 5\ndatas: z\nevent: a\ndata: x\n\n", (b"a", b"x")),
    ("a name without data", b"event: a\n\n", (b"a", None)),
    ("an empty line in front", b"\nevent: a\ndata: x\n\n", (b"a", b"x")),
    ("CRLF", b"event: a\r\ndata: x\r\n\r\n", (b"a", b"x")),
    ("CR", b"event: a\rdata: x\r\r", (b"a", b"x")),
    ("mixed line ends", b"event: a\rdata: x\r\ndata: y\n\r\n", (b"a", b"x\ny")),
    ("a colon in the value", b"data: a: b\n\n", (b"", b"a: b")),
]


@pytest.mark.parametrize("cut", [lambda stream: [stream], bytewise], ids=["whole", "bytewise"])
@pytest.mark.parametrize(("stream", "wanted"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_one_event(stream: bytes, wanted: tuple[bytes, bytes | None], cut: Cut) -> None:
    """One event is read with its name, its data and all of its bytes."""
    assert read(*cut(stream)) == [Frame(stream, *wanted)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_told_at_once(end: bytes) -> None:
    """A whole event does not wait for the next byte."""
    assert [frame.data for frame in read(b"data: x" + end + end)] == [b"x"]


def test_half_a_line_end_waits() -> None:
    """A CR behind a line that ended in CRLF may be half of one; its LF belongs to the event."""
    reader = Reader()
    assert reader.feed(b"data: x\r\n\r") == []
    assert reader.feed(b"\n") == [Frame(b"data: x\r\n\r\n", b"", b"x")]


def test_a_byte_order_mark_is_dropped_once() -> None:
    """One mark in front is no part of the first field, a second one is."""
    mark = b"\xef\xbb\xbf"
    assert read(*bytewise(mark + b"data: x\n\n"))[0].data == b"x"
    assert read(mark + mark + b"data: x\n\n")[0].data is None


def test_what_is_no_mark_is_kept() -> None:
    """Bytes that only begin like a mark are an event's."""
    assert read(b"\xef", b"\xbb: x\ndata: y\n\n") == [Frame(b"\xef\xbb: x\ndata: y\n\n", b"", b"y")]


def test_the_rest_is_what_is_not_whole() -> None:
    """An unfinished event is no frame, and can be seen."""
    reader = Reader()
    assert reader.feed(b"data: x\n\ndata: y\n") == [Frame(b"data: x\n\n", b"", b"x")]
    assert reader.rest() == b"data: y\n"


LINES = st.sampled_from([b"data: x", b"data:", b"data", b"event: a", b":c", b"id: 1", b"", b"\xc3\xa4", b"data: {}"])
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=30).map(lambda parts: b"".join(a + b for a, b in parts))


def by_the_book(stream: bytes) -> list[tuple[bytes, bytes]]:
    """The events that the standard's own steps give, line by line; those without data are not dispatched."""
    found: list[tuple[bytes, bytes]] = []
    name = b""
    data: list[bytes] = []
    text = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line in text.split(b"\n")[:-1]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            if data:
                found.append((name, b"\n".join(data)))
            name, data = b"", []
        elif field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return found


@settings(deadline=None, database=None, max_examples=300)
@given(stream=STREAMS, places=st.lists(st.integers(0, 200), max_size=10))
def test_any_stream_reads_by_the_book_and_wherever_it_is_cut(stream: bytes, places: list[int]) -> None:
    """Events are those of the standard, cuts change nothing, and no byte is lost."""
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    reader = Reader()
    frames = [frame for a, b in pairwise(edges) for frame in reader.feed(stream[a:b])]
    assert b"".join(frame.raw for frame in frames) + reader.rest() == stream
    assert frames == read(stream)
    told = [(frame.event, frame.data) for frame in frames if frame.data is not None]
    wanted = by_the_book(stream)
    # A CR at the very end may be half of a CRLF, so that the last event can be still to come.
    assert told == (wanted if reader.rest()[-2:] != b"\n\r" else wanted[: len(told)])


@pytest.mark.parametrize("cut", [lambda stream: [stream], bytewise], ids=["whole", "bytewise"])
@pytest.mark.parametrize(("size", "good"), [(100, True), (101, False), (5000, False)])
def test_an_event_is_bounded(size: int, good: bool, cut: Cut) -> None:
    """An event may have as many bytes as the bound, and none more."""
    stream = b"data: " + b"x" * (size - 8) + b"\n\n"
    if good:
        assert len(read(*cut(stream), largest=100)) == 1
        return
    with pytest.raises(EventTooLarge, match="more than 100 bytes"):
        read(*cut(stream), largest=100)


def test_an_event_that_never_ends_is_bounded() -> None:
    """Without an empty line the bound holds, too."""
    with pytest.raises(EventTooLarge):
        read(*[b"data: x\n"] * 100, largest=100)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b""], ids=["LF", "CRLF", "open"])
def test_what_came_before_an_event_that_is_too_large_is_not_lost(end: bytes) -> None:
    """Whether it came in the same piece or not, and whether the large one ends or not."""
    stream = b"data: 1\n\ndata: 2\n\n" + b"data: " + b"x" * 200 + end
    for pieces in ([stream], [stream[:9], stream[9:]], [stream[:12], stream[12:]]):
        *first, last = pieces
        reader = Reader(100)
        seen = [frame for piece in first for frame in reader.feed(piece)]
        with pytest.raises(EventTooLarge) as raised:
            reader.feed(last)
        assert [frame.data for frame in [*seen, *raised.value.before]] == [b"1", b"2"]


@pytest.mark.parametrize("piece", [b"x" * 16, b"x\rdata: ", b"x\ndata: "])
def test_reading_is_linear(piece: bytes) -> None:
    """Four times as many small reads of one event take about four times as long, not sixteen times."""

    def took(reads: int) -> float:
        best = float("inf")
        for _ in range(3):
            reader = Reader()
            began = time.process_time()
            reader.feed(b"data: ")
            for _ in range(reads):
                reader.feed(piece)
            assert len(reader.feed(b"\n\n")) == 1
            best = min(best, time.process_time() - began)
        return best

    assert took(40_000) < 9 * took(10_000)


def test_encode() -> None:
    """What is written reads back."""
    assert read(encode("a", b"{}") + encode_data(b"1")) == [
        Frame(b"event: a\ndata: {}\n\n", b"a", b"{}"),
        Frame(b"data: 1\n\n", b"", b"1"),
    ]
