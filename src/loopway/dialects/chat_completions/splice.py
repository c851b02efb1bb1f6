"""One valid stream of chunks made of the streams of several iterations. CONTRACT, section 6.

This file must not know who asked for an iteration, or why a call is held.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import msgspec

from loopway.dialects.base import Keep, UsageMode
from loopway.dialects.chat_completions.calls import Call, Calls, Waiting, fragment_of
from loopway.dialects.chat_completions.chunk import (
    EMPTY,
    NULL,
    TEXTS,
    Chunk,
    Delta,
    Draft,
    Fragment,
    Unreadable,
    decoded,
    fragments,
    framed,
    function_call,
    marked,
)
from loopway.dialects.chat_completions.head import Head
from loopway.dialects.chat_completions.reply import ERROR, UNREADABLE, Fold
from loopway.dialects.chat_completions.shape import Shape
from loopway.dialects.members import Members, NotAnObject
from loopway.dialects.sse import Frame
from loopway.dialects.usage import added
from loopway.engine.reply import Reply

DONE: Final = b"[DONE]"
_CALLS = ("tool_calls", "function_call")
JOINT: Final = "\n\n"
"""What stands between the texts of two iterations."""
_SHAPES = 16
"""How often in one iteration a shape for the chunks that follow is looked for."""


class ChatSplicer:
    """The `Splicer` of Chat Completions. Usage may still come behind what makes `ended` true."""

    def __init__(self, *, usage: UsageMode, include_usage: bool) -> None:
        self._mode = usage
        self._include_usage = include_usage
        # of the whole stream
        self._head = Head(include_usage=include_usage)
        self._role_sent = False
        self._content = False
        self._numbers = itertools.count()
        self._delivered = False
        self._said: set[str] = set()
        self._usage: dict[str, Any] = {}
        # of the current iteration
        self._begin(lambda _: True, everything=False, counted=False)

    def _begin(self, holds: Keep, *, everything: bool, counted: bool) -> None:
        self._holds = holds
        self._everything = everything
        self._counted = counted
        self._error: bytes | None = None
        self._fold = Fold()
        self._calls = Calls()
        self._texts: list[Frame] = []
        self._saying: set[str] = set()
        self._reason: str | None = None
        self._last: bytes | None = None  # the chunk that ends it, if it has nothing else in it
        self._own_usage: msgspec.Raw | None = None
        self._shape: Shape | None = None
        self._held: Call | None = None  # where chunks of the shape wait
        self._shapes = _SHAPES

    # --- what the driver reads ---

    @property
    def ended(self) -> bool:
        """Whether a finish_reason came in the current iteration."""
        return self._fold.finished

    @property
    def error(self) -> bytes | None:
        """The data of an error in the current iteration."""
        return self._error

    @property
    def content(self) -> bool:
        """Whether any text or call has been returned yet."""
        return self._content

    # --- the road of an iteration ---

    def begin(self, holds: Keep, *, everything: bool = False, counted: bool = True) -> None:
        """A new iteration begins; see `Splicer.begin`."""
        self._settle()
        self._said |= self._saying
        self._begin(holds, everything=everything, counted=counted)

    def feed(self, frame: Frame) -> bytes:
        """Take one event, give what the client gets now."""
        data = frame.data
        if self._error is not None:
            return b""
        if self._shape is not None and data is not None:
            text = self._shape.text(data)
            if text is not None:
                self._fold.add_text(self._shape.of, text)
                if self._held is None:
                    return self._shape.sent(data, frame.raw)
                self._held.waiting.append(Waiting(data, frame.raw, 0, alone=True, shape=self._shape))
                return b""
        if data is None:
            return frame.raw if frame.raw.startswith(b":") and not frame.event else b""
        if frame.event == b"error":
            self._error = data
            return b""
        if not data or data.strip() == DONE or frame.event == b"ping":
            return b""
        return self._read(frame, data)

    def reply(self) -> Reply:
        """The current iteration, folded."""
        if self._error is not None:
            self._fold.fault = ERROR
        return self._fold.reply(delivered=self._delivered)

    def release(self) -> bytes:
        """Text that was held under `everything` goes now; calls stay where they are."""
        self._everything = False
        texts, self._texts = self._texts, []
        return b"".join([self._sent(frame, frame.data or b"", Draft(frame.data or b"")) for frame in texts])

    def drop(self) -> None:
        """What is held of the current iteration never goes."""
        self._texts.clear()
        self._calls.drop()

    def finish(self, keep: Keep) -> bytes:
        """Release or drop what is held, and write the ending: a finish_reason, the usage, `[DONE]`."""
        self._settle()
        out = [self.release()]
        for call in self._calls.kept(keep):
            out += self._released(call)
        out.append(self._ending())
        if self._include_usage and self._usage:
            out.append(self._head.chunk({"choices": [], "usage": self._usage}))
        out.append(framed(DONE))
        return b"".join(out)

    # --- reading ---

    def _read(self, frame: Frame, data: bytes) -> bytes:
        try:
            try:
                chunk = decoded(data)
            except Unreadable:
                made = marked(data)
                if made is None:
                    raise
                chunk, data = decoded(made), made
            if bytes(chunk.error) not in (b"", b"null"):
                self._error = frame.data
                return b""
            self._fold.add(frame.data or b"")
            return self._take(frame, data, chunk)
        except (Unreadable, NotAnObject, msgspec.MsgspecError):
            self._fold.fault = UNREADABLE
            return b""

    def _take(self, frame: Frame, data: bytes, chunk: Chunk) -> bytes:
        self._head.learn(chunk)
        has_usage = bytes(chunk.usage) not in (b"", b"null")
        if has_usage:
            self._own_usage = chunk.usage
        choice = chunk.choices[0] if chunk.choices else None
        if choice is None:
            # Azure's prompt_filter_results come in a chunk without choices.
            draft = Draft(data)
            top, _ = self._head.changes(draft)
            return b"" if has_usage else draft.encode(top) if top else frame.raw
        changed = has_usage or not self._head.fits(chunk)
        reason = choice.finish_reason
        if reason:
            self._reason = reason
            self._fold.finished = True
            self._last = data
            changed = True
        delta = choice.delta or Delta()
        has_calls = bytes(delta.tool_calls) not in EMPTY or bytes(delta.function_call) not in EMPTY
        has_role = bytes(delta.role) != b""
        if not changed and not has_calls and not (has_role and self._role_sent) and not self._everything:
            if has_role:
                self._role_sent = True
            out = self._joint(delta) + frame.raw
            self._look(data, delta, None)
            return out
        draft = Draft(data)
        if has_calls:
            return self._take_calls(frame, data, delta, draft)
        return self._rest(frame, data, draft)

    def _look(self, data: bytes, delta: Delta, sent: bytes | None) -> None:
        """Look for the shape of the chunks of text that follow."""
        for name in TEXTS:
            if self._shapes and bytes(getattr(delta, name)) not in EMPTY:
                self._shapes -= 1
                shape = Shape.of_text(data, name)
                self._shape = shape if sent is None or (shape and shape.becomes(data, sent)) else None
                self._held = None
                return

    # --- sending ---

    def _joint(self, delta: Delta) -> bytes:
        """What joins a text to that of an earlier iteration; notes what is said."""
        out = b""
        for name in TEXTS:
            raw = bytes(getattr(delta, name))
            if raw not in EMPTY:
                self._content = True
                if name not in self._saying:
                    self._saying.add(name)
                    if name in self._said:
                        out += self._text(name)
        if bytes(delta.refusal) not in EMPTY or bytes(delta.audio) not in EMPTY:
            self._content = True
        return out

    def _text(self, name: str) -> bytes:
        delta: dict[str, Any] = {name: JOINT}
        if not self._role_sent:
            self._role_sent = True
            delta = {"role": "assistant", **delta}
        return self._head.chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    def _rest(self, frame: Frame, data: bytes, draft: Draft) -> bytes:
        """What a chunk has beside calls: goes now, or with everything else."""
        if not self._everything:
            return self._sent(frame, data, draft)
        if draft.says:
            self._texts.append(Frame(frame.raw, b"", data))
            self._last = None if self._last == data else self._last
        return b""

    def _sent(self, frame: Frame, data: bytes, draft: Draft, calls: dict[str, msgspec.Raw] | None = None) -> bytes:
        """A chunk as the client gets it; empty if nothing is left of it.

        Args:
            frame: As it came.
            data: Its data.
            draft: The same, to be changed.
            calls: The fragments that go, in the place of its own; empty: its own; None: none of them.
        """
        choice, delta = draft.choice, draft.delta
        if choice is None or delta is None:
            return b""
        without = [name for name in _CALLS if calls is None and (delta.raw(name) or b"") not in EMPTY]
        if "role" in delta and self._role_sent:
            without.append("role")
        changed = bool(calls or without)
        if changed:
            draft.delta = delta = delta.with_members(calls or {}, tuple(without))
        if calls is not None:
            self._content = self._delivered = True
        elif not draft.says and (changed or draft.finishes):
            return b""
        self._last = None if self._last == data else self._last
        self._role_sent = self._role_sent or "role" in delta
        read = msgspec.json.decode(delta.encode(), type=Delta)
        joint = self._joint(read)
        top, untold = self._head.changes(draft)
        changed = changed or bool(untold) or draft.finishes
        if not changed and not top:
            return joint + frame.raw
        out = draft.encode(top, untold, **draft.unfinished)
        if not changed and calls is None:
            self._look(data, read, out)
        return joint + out

    def _ending(self) -> bytes:
        reason = self._reason or "stop"
        if reason in ("tool_calls", "function_call") and not self._delivered:
            reason = "stop"
        elif reason == "stop" and self._delivered and not self._calls.sent:
            reason = "tool_calls"  # a call of an earlier iteration is still the client's to answer
        role = {} if self._role_sent else {"role": "assistant"}
        self._role_sent = True
        if self._last is None:
            choice = {"index": 0, "delta": role, "logprobs": None, "finish_reason": reason}
            return self._head.chunk({"choices": [choice]})
        draft = Draft(self._last)
        top, without = self._head.changes(draft)
        draft.delta = Members.parse(msgspec.json.encode(role))
        return draft.encode(top, without, finish_reason=reason)

    # --- calls ---

    def _take_calls(self, frame: Frame, data: bytes, delta: Delta, draft: Draft) -> bytes:
        """A chunk with fragments of calls: some go with it, some wait."""
        legacy = bytes(delta.tool_calls) in EMPTY
        if legacy:
            found = [(bytes(delta.function_call), function_call(delta.function_call))]
        else:
            found = fragments(delta.tool_calls)
        self._shape = None
        alone = len(found) == 1 and not draft.says_beside(*_CALLS) and not draft.finishes
        going: list[bytes] = []
        call = None
        for place, (raw, fragment) in enumerate(found):
            call = self._calls.of(fragment, legacy=legacy)
            if call.held is None and call.name:
                call.held = self._everything or self._holds(call.name)
            if call.held is False:
                late, call.waiting = call.waiting, []
                going += [call.told(*fragment_of(waiting, legacy=legacy), self._numbers) for waiting in late]
                going.append(call.told(raw, fragment, self._numbers))
            else:
                call.waiting.append(Waiting(data, frame.raw, place, alone))
        out = self._going(frame, data, draft, None if legacy else "tool_calls", going, found)
        if alone and call is not None and not legacy:
            self._look_at_call(data, call, *found[0], out if out != frame.raw else None)
        return out

    def _going(
        self,
        frame: Frame,
        data: bytes,
        draft: Draft,
        name: str | None,
        going: list[bytes],
        found: list[tuple[bytes, Fragment]],
    ) -> bytes:
        """What goes of a chunk with calls."""
        if not going:
            return self._rest(frame, data, draft)
        if going == [raw for raw, _ in found]:
            return self._sent(frame, data, draft, {})
        pieces = going[0] if name is None else b"[" + b",".join(going) + b"]"
        return self._sent(frame, data, draft, {name or "function_call": msgspec.Raw(pieces)})

    def _look_at_call(self, data: bytes, call: Call, raw: bytes, fragment: Fragment, sent: bytes | None) -> None:
        """Look for the shape of the fragments that follow: those that only go on with the arguments."""
        if not self._shapes or fragment.name or not call.name or fragment.index is None:
            return
        self._shapes -= 1
        shape = Shape.of_arguments(data, call.key, raw, fragment)
        if shape is None:
            return
        if call.held:
            call.waiting[-1].shape = shape
        elif sent is not None and not shape.becomes(data, sent):
            return
        self._held = call if call.held else None
        self._shape = shape

    def _released(self, call: Call) -> list[bytes]:
        """The fragments of a call that was held, each as a chunk."""
        out: list[bytes] = []
        known: Shape | None = None
        for waiting in call.waiting:
            if known is not None and waiting.shape is known:
                out.append(known.sent(waiting.data, waiting.raw))
                continue
            out.append(self._release(call, waiting))
            known = waiting.shape
            if known is not None and out[-1] != waiting.raw and not known.becomes(waiting.data, out[-1]):
                known = None
        return out

    def _release(self, call: Call, waiting: Waiting) -> bytes:
        """A fragment that was held, as a chunk of its own; the chunk that it came in, where that will do."""
        raw, fragment = fragment_of(waiting, legacy=call.legacy)
        piece = call.told(raw, fragment, self._numbers)
        self._content = self._delivered = True
        draft = Draft(waiting.data)
        top, without = self._head.changes(draft)
        if waiting.alone and piece == raw and not top and not without and "role" not in (draft.delta or ()):
            return waiting.raw
        delta = b'{"role":"assistant",' if not self._role_sent else b"{"
        self._role_sent = True
        whole = b'"function_call":' + piece if call.legacy else b'"tool_calls":[' + piece + b"]"
        draft.delta = Members.parse(delta + whole + b"}")
        changed = {name: NULL for name in ("finish_reason", "logprobs") if name in (draft.choice or ())}
        return draft.encode(top, without, **changed)

    # --- usage ---

    def _settle(self) -> None:
        """Count the usage of the iteration that is over, once."""
        if not self._counted:
            return
        own = msgspec.json.decode(self._own_usage) if self._own_usage is not None else None
        usage = own if isinstance(own, dict) else {}
        self._usage = added(self._usage, usage) if self._mode == "sum" else usage
