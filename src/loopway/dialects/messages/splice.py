"""The streams of several iterations as one valid Messages stream. CONTRACT section 6.

This file must not know why an iteration was rerun, or how a reply is read.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from loopway.dialects.base import Keep, UsageMode
from loopway.dialects.members import Members
from loopway.dialects.messages.block import Block, written
from loopway.dialects.messages.reply import Fold
from loopway.dialects.sse import Frame, encode
from loopway.dialects.usage import added
from loopway.engine.reply import Reply

_UNSEEN = frozenset(("message_delta", "message_stop", "error", "wrong", "late"))
_INDEX = re.compile(rb'\s*\{\s*"type"\s*:\s*"content_block_\w+"\s*,\s*"index"\s*:\s*(-?\d+)')
_STOP = encode("message_stop", b'{"type":"message_stop"}')
_START = encode(
    "message_start",
    b'{"type":"message_start","message":{"id":"msg_empty","type":"message","role":"assistant","model":"",'
    b'"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":0,"output_tokens":0}}}',
)


class MessagesSplicer:
    """Makes one message of several streams; see `dialects.base.Splicer`.

    What goes on, goes in its original bytes; of a block whose index differs, only the index is changed. `finish`
    gives a valid message in every state, even if no message_start ever came.

    Args:
        usage: Whether the ending tells the sum over the counted iterations, or the last counted one's.
    """

    __slots__ = (
        "_called",
        "_counted",
        "_delivered",
        "_everything",
        "_fold",
        "_held",
        "_holds",
        "_mode",
        "_next",
        "_open",
        "_queue",
        "_started",
        "_total",
    )

    def __init__(self, *, usage: UsageMode) -> None:
        self._mode = usage
        self._fold = Fold()
        self._holds: Keep = bool
        self._everything = False
        self._counted = False
        self._started = False  # message_start has gone
        self._next = 0  # the client's next index
        self._open: set[int] = set()  # the client's blocks that have no stop yet
        self._held: list[Block] = []  # calls that wait
        self._queue: list[tuple[Frame, Block | None]] = []  # under `everything`: what waits, in order
        self._called = False  # a call has gone to the client
        self._delivered = False  # one of the current iteration
        self._total: dict[str, Any] = {}

    @property
    def ended(self) -> bool:
        """Whether message_stop has come in the current iteration."""
        return self._fold.ended

    @property
    def error(self) -> bytes | None:
        """The data of an error event in the current iteration."""
        return self._fold.error

    @property
    def content(self) -> bool:
        """Whether any content block has been returned for the client yet."""
        return self._next > 0

    def begin(self, holds: Keep, *, everything: bool = False, counted: bool = True) -> None:
        """A new iteration begins; what the last one still held is forgotten."""
        self.drop()
        self._count()
        self._fold = Fold()
        self._holds = holds
        self._everything = everything
        self._counted = counted
        self._delivered = False

    def feed(self, frame: Frame) -> bytes:
        """Take one event, give what the client gets now."""
        if self._fold.error is not None:
            return b""
        kind, block = self._fold.feed(frame)
        if block is not None:
            return self._shown(frame, block) if block.place >= 0 else self._first_or_held(frame, block)
        if kind in _UNSEEN or (kind == "message_start" and self._started):
            return b""
        if kind == "message_start":
            self._started = True
            return frame.raw if frame.event else encode(kind, _one_line(frame.data or b""))
        if self._everything and kind not in ("ping", ""):
            self._queue.append((frame, None))
            return b""
        return frame.raw

    def reply(self) -> Reply:
        """The current iteration's events, folded."""
        return self._fold.reply(delivered=self._delivered)

    def release(self) -> bytes:
        """What was held under `everything` goes now; calls wait on, since the reply has not been decided on yet."""
        self._everything = False
        queue, self._queue = self._queue, []
        out: list[bytes] = []
        for frame, block in queue:
            if block is None:
                out.append(frame.raw)
            elif block.place < 0 and block.type == "tool_use":
                self._hold(frame, block)
            else:
                out.append(self._shown(frame, block) if block.place >= 0 else self._opened(frame, block))
        return b"".join(out)

    def drop(self) -> None:
        """Forget what is held."""
        self._held.clear()
        self._queue.clear()

    def finish(self, keep: Keep) -> bytes:
        """Release or drop what is held, and write the one ending from the outcome.

        A stop_reason `tool_use` without a call that the client has got becomes `end_turn`, and an `end_turn` behind a
        call of an earlier iteration becomes `tool_use`.
        """
        out = [] if self._started else [_START]
        self._started = True
        refused = {id(block) for _, block in self._queue if block and block.type == "tool_use" and not keep(block.name)}
        for frame, block in self._queue:
            if block is None:
                out.append(frame.raw)
            elif id(block) not in refused:
                out.append(self._shown(frame, block) if block.place >= 0 else self._opened(frame, block))
        for block in self._held:
            if keep(block.name):
                frames = block.held or []
                out += [self._opened(frame, block) for frame in frames[:1]]
                out += [self._shown(frame, block) for frame in frames[1:]]
        self.drop()
        out += [
            encode("content_block_stop", b'{"type":"content_block_stop","index":%d}' % place)
            for place in sorted(self._open)
        ]
        self._open.clear()
        self._count()
        return b"".join((*out, self._ending(), _STOP))

    # --- blocks ---

    def _first_or_held(self, frame: Frame, block: Block) -> bytes:
        """An event of a block that the client has not seen: it waits, or is the first that goes."""
        if self._everything:
            self._queue.append((frame, block))
            return b""
        if block.held is not None or (block.type == "tool_use" and self._holds(block.name)):
            self._hold(frame, block)
            return b""
        return self._opened(frame, block)

    def _hold(self, frame: Frame, block: Block) -> None:
        if block.held is None:
            block.held = []
            self._held.append(block)
        block.held.append(frame)

    def _opened(self, frame: Frame, block: Block) -> bytes:
        """The start of a block that the client sees from now on."""
        if block.type == "tool_use":
            self._called = self._delivered = True
        block.place = self._next
        self._next += 1
        self._open.add(block.place)
        return self._shown(frame, block)

    def _shown(self, frame: Frame, block: Block) -> bytes:
        place = block.place
        if block.closed:  # its stop is this event, or among those that are released with it
            self._open.discard(place)
        if place == block.index and frame.event:
            return frame.raw
        return _moved(frame, place)

    # --- the ending ---

    def _count(self) -> None:
        """Add the usage of the iteration that is over."""
        if self._counted and self._fold.usage:
            one = self._fold.usage
            self._total = added(self._total, one) if self._mode == "sum" else one

    def _ending(self) -> bytes:
        fold = self._fold
        delta = {"stop_reason": msgspec.Raw(b"null"), "stop_sequence": msgspec.Raw(b"null"), **fold.delta}
        said = msgspec.json.decode(delta["stop_reason"])
        reason = said
        if not isinstance(said, str):
            reason = "tool_use" if self._called else "end_turn"
        elif said == "tool_use" and not self._called:
            reason = "end_turn"
        elif said == "end_turn" and self._called and not self._delivered:
            reason = "tool_use"
        if reason != said:
            delta["stop_reason"] = msgspec.Raw(msgspec.json.encode(reason))
        usage = {"output_tokens": 0, **self._total}
        members = {
            "type": msgspec.Raw(b'"message_delta"'),
            "delta": msgspec.Raw(written(delta)),
            "usage": msgspec.Raw(msgspec.json.encode(usage)),
            **fold.outer,
        }
        return encode("message_delta", _one_line(written(members)))


def _moved(frame: Frame, place: int) -> bytes:
    """The event with another index; all its other members keep their bytes."""
    data = frame.data or b""
    found = _INDEX.match(data)
    if found is not None and data.count(b'"index"') == 1:
        moved = b"%b%d%b" % (data[: found.start(1)], place, data[found.end(1) :])
    else:
        moved = _moved_slowly(data, place)
    if frame.event and frame.raw.endswith(data + b"\n\n"):
        return frame.raw[: -len(data) - 2] + moved + b"\n\n"
    name = frame.event.decode() if frame.event else Members.parse(moved).get("type")
    return encode(name, _one_line(moved))


def _moved_slowly(data: bytes, place: int) -> bytes:
    try:
        return Members.parse(data).with_members({"index": place}).encode()
    except ValueError:  # half a surrogate pair
        return json.dumps({**json.loads(data.decode("utf-8", "replace")), "index": place}).encode()


def _one_line(data: bytes) -> bytes:
    """JSON without line ends: they stand between its tokens only."""
    return data.replace(b"\r", b" ").replace(b"\n", b" ")
