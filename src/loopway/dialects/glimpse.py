"""What can be seen of a reply that nobody parses: its id, model, ending and usage, for who watches.

A JSON reply is glanced at whole, a stream at both its ends. This file must not change a byte, nor fail on any.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

_END = 4096
"""Bytes at each end of a stream that are looked at."""
_CONTENT = (b'"content_block', b'"content":"', b'"content": "', b'"tool_calls"', b'"reasoning', b'"text":', b'"error"')
"""What a chunk holds once there is content; what comes before is a role, a `message_start` or a ping."""
_EMPTY = (b'"content":""', b'"content": ""')
_TELLS = (b'"usage"', b'"finish_reason":"', b'"finish_reason": "', b'"stop_reason":"', b'"stop_reason": "')


class Glimpse(msgspec.Struct):
    """What was seen.

    Attributes:
        usage: The dialect's own usage object; empty if none was seen.
        id: The server's id of the reply.
        model: The model that the server says has answered.
        finish: How it ended, in the dialect's own word.
    """

    usage: dict[str, Any] = msgspec.field(default_factory=dict)
    id: str = ""
    model: str = ""
    finish: str = ""


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Message(msgspec.Struct):
    usage: dict[str, Any] | None = None
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    choices: list[_Choice] | None = None


class _Event(_Message):
    message: _Message | None = None
    delta: _Message | None = None


_REPLY = msgspec.json.Decoder(_Message)
_EVENT = msgspec.json.Decoder(_Event)


def glimpse(body: bytes) -> Glimpse:
    """What a JSON reply says of itself; an empty glimpse if it is none."""
    seen = Glimpse()
    with contextlib.suppress(msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        _add(seen, _REPLY.decode(body))
    return seen


class Ends:
    """The two ends of a stream that passes by, in either dialect.

    Attributes:
        content: Whether any content has passed.
        last: The last bytes.
    """

    __slots__ = ("_first", "_whole", "content", "last")

    def __init__(self) -> None:
        self._first = b""
        self._whole = False
        self.content = False
        self.last = b""

    def passed(self, chunk: bytes) -> None:
        """A chunk has come."""
        if not self._whole:
            self._first += chunk[: _END - len(self._first)]
            self._whole = len(self._first) >= _END
        if not self.content:
            seen = chunk
            for empty in _EMPTY:
                seen = seen.replace(empty, b"")
            self.content = any(word in seen for word in _CONTENT)
        self.last = chunk[-_END:] if len(chunk) >= _END else (self.last + chunk)[-_END:]

    def told(self) -> Glimpse:
        """What the ends say."""
        seen = Glimpse()
        first = self._first.splitlines()
        for line in first[:4]:  # Messages opens with `message_start`, Chat Completions with its first chunk
            _line(seen, line)
        last = self.last.splitlines()
        for line in last[1:] if self._whole else last:  # the first line may be the end of a longer one
            if any(word in line for word in _TELLS):
                _line(seen, line)
        return seen


def _line(seen: Glimpse, line: bytes) -> None:
    if not line.startswith(b"data:"):
        return
    try:
        event = _EVENT.decode(line[5:])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return
    if event.message is not None:
        _add(seen, event.message)
    if event.delta is not None:
        _add(seen, event.delta)
    _add(seen, event)


def _add(seen: Glimpse, told: _Message) -> None:
    """What is told later wins: usage in a stream is a running total, member by member."""
    for name, value in (told.usage or {}).items():
        if value is not None:
            seen.usage[name] = value
    seen.id = told.id or seen.id
    seen.model = told.model or seen.model
    seen.finish = told.stop_reason or seen.finish
    if told.choices:
        seen.finish = told.choices[0].finish_reason or seen.finish
