"""Bytes to server-sent events and back, once for the whole project.

This file must not know what an event means. The rules are WHATWG HTML, section 9.2.6 (event stream interpretation):
lines end in CR, LF or CRLF; an event ends at an empty line; `data` lines are joined with LF; one space behind the
colon is dropped; a line that begins with a colon is a comment; an unfinished event at the end is dropped.
"""

from __future__ import annotations

import re

import msgspec

LARGEST_EVENT = 32 * 1024 * 1024
"""Bytes that one event may have."""

# Two line ends in a row. A CR at the very end of what has come may be half a CRLF, so it has to wait for the next
# byte; two bare CRs need not: no line end of such a stream has an LF, and one that follows is an empty line.
_BOUNDARY = re.compile(rb"\r\r|(?:\r\n|\n)(?:\r\n|\n|\r)")
# The shape that nearly every event has.
_USUAL = re.compile(rb"event: ([^\n]*)\ndata: ([^\n]*)\n\n")
_LINE = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_LONGEST_BOUNDARY = 4


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event as it came.

    Attributes:
        raw: Its bytes with the empty line behind it.
        event: The value of its `event` field, empty if it has none.
        data: Its `data` lines, joined with LF; None for a comment or an event without data.
    """

    raw: bytes
    event: bytes
    data: bytes | None


class EventTooLarge(ValueError):
    """An event has more than `LARGEST_EVENT` bytes.

    Attributes:
        before: The frames in front of it that had not been given yet.
    """

    def __init__(self, largest: int, before: list[Frame]) -> None:
        self.before = before
        super().__init__(f"one event has more than {largest} bytes")


class Reader:
    """Feed it bytes, get the events that became whole. Cuts may fall anywhere.

    Linear in the length of the stream: what was searched once is not searched again.
    """

    def __init__(self, largest: int = LARGEST_EVENT) -> None:
        self._largest = largest
        self._pending = bytearray()
        self._first = True

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete. Raises `EventTooLarge`."""
        if self._pending:
            searched = max(0, len(self._pending) - _LONGEST_BOUNDARY + 1)
            self._pending += data
            if not self._ends_behind(searched):
                self._bound(len(self._pending), [])
                return []
            data = bytes(self._pending)
            self._pending.clear()
        if self._first:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._pending += data
                return []
            self._first = False
            data = data.removeprefix(_BOM)
        return self._cut(data)

    def rest(self) -> bytes:
        """What has come of an event that is not whole yet."""
        return bytes(self._pending)

    def _ends_behind(self, position: int) -> bool:
        """Whether an event may end behind this place."""
        if self._first or self._pending.find(b"\n\n", position) >= 0:
            return True
        return self._pending.find(b"\r", position) >= 0 and _BOUNDARY.search(self._pending, position) is not None

    def _cut(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        start = 0
        if b"\r" not in data:
            while True:
                if usual := _USUAL.match(data, start):
                    end = usual.end()
                    frame = Frame(*usual.group(0, 1, 2))
                elif (end := data.find(b"\n\n", start) + 2) > 1:
                    frame = _frame(data[start:end])
                else:
                    break
                self._bound(end - start, frames)
                frames.append(frame)
                start = end
        else:
            for match in _BOUNDARY.finditer(data):
                end = match.end()
                if end == len(data) and data.endswith(b"\n\r"):
                    break  # an LF may follow and belongs to it
                self._bound(end - start, frames)
                frames.append(_frame(data[start:end]))
                start = end
        if start < len(data):
            self._pending += data[start:]
            self._bound(len(self._pending), frames)
        return frames

    def _bound(self, size: int, before: list[Frame]) -> None:
        if size > self._largest:
            raise EventTooLarge(self._largest, before)


def _frame(raw: bytes) -> Frame:
    event = b""
    data: list[bytes] = []
    for line in raw.split(b"\n") if b"\r" not in raw else _LINE.split(raw):
        if line.startswith(b"data:"):
            data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line.startswith(b"event:"):
            event = line[7:] if line.startswith(b"event: ") else line[6:]
        elif line == b"data":
            data.append(b"")
        elif line == b"event":
            event = b""
    return Frame(raw, event, b"\n".join(data) if data else None)


def encode(event: str, data: bytes) -> bytes:
    """A named event; `data` has no line ends."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), data)


def encode_data(data: bytes) -> bytes:
    """An event without a name; `data` has no line ends."""
    return b"data: %b\n\n" % data
