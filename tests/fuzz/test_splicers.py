"""A splicer driven in any order that a driver may: at each step a valid beginning, at the end one valid message.

This file must not know how a splicer works.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from inprocess import BOTH
from loopway.dialects.base import Dialect
from loopway.dialects.sse import Reader
from loopway.dialects.table import DIALECTS
from puppets import text_of
from streams import GRAMMAR, event

BY_NAME: dict[str, Dialect] = dict(DIALECTS.items())
WORDS = st.text('aé"\\{}[]:,\n\u2028🎉', max_size=5)
TOOLS = ("theirs", "ours", "nobodys")
"""What the client declared, what only the server runs, what nobody knows."""


class Model:
    """Says a reply in events of a dialect, piece by piece.

    Attributes:
        texts: What it has said.
        calls: The names of the tools that it has called.
    """

    def __init__(self, dialect: str, number: int) -> None:
        self._dialect = dialect
        self._number = number
        self._blocks = 0
        self._open = ""
        self.texts: list[str] = []
        self.calls: list[str] = []

    def begins(self) -> bytes:
        if self._dialect == "messages":
            empty = {**text_of("messages", ""), "id": f"msg_{self._number}", "content": [], "stop_reason": None}
            return event("message_start", message=empty)
        return self._chunk({"role": "assistant", "content": ""})

    def says(self, words: str) -> bytes:
        self.texts.append(words)
        if self._dialect != "messages":
            return self._chunk({"content": words})
        front = b"" if self._open == "text" else self._block("text", text="")
        return front + self._delta("text_delta", text=words)

    def calls_for(self, tool: str) -> bytes:
        id_ = f"call_{self._number}_{len(self.calls)}"
        self.calls.append(tool)
        if self._dialect == "messages":
            return self._block("tool_use", id=id_, name=tool, input={})
        function = {"name": tool, "arguments": ""}
        return self._chunk(
            {"tool_calls": [{"index": len(self.calls) - 1, "id": id_, "type": "function", "function": function}]}
        )

    def argues(self, words: str) -> bytes:
        """Goes on with the arguments of the last call; nothing if it is over."""
        if self._dialect == "messages":
            return self._delta("input_json_delta", partial_json=words) if self._open == "tool_use" else b""
        if not self.calls:
            return b""
        return self._chunk({"tool_calls": [{"index": len(self.calls) - 1, "function": {"arguments": words}}]})

    def ends(self) -> bytes:
        if self._dialect == "messages":
            ending = {"stop_reason": "tool_use" if self.calls else "end_turn", "stop_sequence": None}
            last = event("message_delta", delta=ending, usage={"output_tokens": 1})
            return self._stop() + last + event("message_stop")
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        finish = "tool_calls" if self.calls else "stop"
        return self._chunk({}, finish) + self._line(choices=[], usage=usage) + b"data: [DONE]\n\n"

    def _block(self, kind: str, **members: Any) -> bytes:
        front = self._stop()
        self._open = kind
        self._blocks += 1
        return front + event("content_block_start", index=self._blocks - 1, content_block={"type": kind, **members})

    def _delta(self, kind: str, **members: Any) -> bytes:
        return event("content_block_delta", index=self._blocks - 1, delta={"type": kind, **members})

    def _stop(self) -> bytes:
        was, self._open = self._open, ""
        return event("content_block_stop", index=self._blocks - 1) if was else b""

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return self._line(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])

    def _line(self, **members: Any) -> bytes:
        head = {"id": f"c{self._number}", "object": "chat.completion.chunk", "created": self._number, "model": "m"}
        return b"data: %b\n\n" % json.dumps({**head, **members}).encode()


class Driving(RuleBasedStateMachine):
    """Exchanges, one behind the other. `wire` is what a client has, `shown` the texts of it, by iteration."""

    over = False

    dialect = ""

    @initialize(watched=st.booleans(), everything=st.booleans())
    def begins(self, watched: bool, everything: bool) -> None:
        self._begin(watched, everything)

    @precondition(lambda self: self.over)
    @rule(watched=st.booleans(), everything=st.booleans())
    def begins_another(self, watched: bool, everything: bool) -> None:
        self._begin(watched, everything)

    def _begin(self, watched: bool, everything: bool) -> None:
        self.watched, self.everything = watched, everything
        self.splicer = BY_NAME[self.dialect].splicer(usage="sum", include_usage=True)
        self.reader = Reader()
        self.wire = b""
        self.shown: list[str] = []
        self.iterations = 0
        self.over = False
        self._iterate()

    def _iterate(self) -> None:
        self.model = Model(self.dialect, self.iterations)
        self.iterations += 1
        self.splicer.begin(self._holds, everything=self.everything)
        self._feed(self.model.begins())

    def _holds(self, name: str) -> bool:
        return self.watched or name != "theirs"

    def _feed(self, data: bytes) -> None:
        self.wire += b"".join(self.splicer.feed(frame) for frame in self.reader.feed(data))

    # --- what a model does ---

    @precondition(lambda self: not self.over)
    @rule(words=WORDS)
    def says(self, words: str) -> None:
        self._feed(self.model.says(words))

    @precondition(lambda self: not self.over)
    @rule(tool=st.sampled_from(TOOLS))
    def calls(self, tool: str) -> None:
        self._feed(self.model.calls_for(tool))

    @precondition(lambda self: not self.over)
    @rule(words=WORDS)
    def argues(self, words: str) -> None:
        self._feed(self.model.argues(words))

    @precondition(lambda self: not self.over)
    @rule(noise=st.sampled_from([b": ping\n\n", b'event: ping\ndata: {"type":"ping"}\n\n', b"event: new\n\n"]))
    def makes_noise(self, noise: bytes) -> None:
        self._feed(noise if self.dialect == "messages" or noise.startswith(b":") else b"")

    # --- what a driver does when a reply is whole ---

    def _whole(self) -> Any:
        """The reply, which must be what the model said."""
        self._feed(self.model.ends())
        reply = self.splicer.reply()
        assert reply.fault is None
        assert [call.name for call in reply.calls] == self.model.calls
        return reply

    def _said(self) -> str:
        return "".join(self.model.texts)

    @precondition(lambda self: not self.over)
    @rule(release=st.booleans())
    def reruns(self, release: bool) -> None:
        """A hook has claimed the reply. One whose call is at the client already is never rerun: it is the answer."""
        self._whole()
        if release:
            self.wire += self.splicer.release()
        if self.splicer.reply().delivered:
            self._answers()
            return
        self.shown.append(self._said() if release or not self.everything else "")
        self.splicer.drop()
        self._iterate()

    @precondition(lambda self: not self.over)
    @rule(words=WORDS)
    def overrides(self, words: str) -> None:
        if self._whole().delivered:
            self._answers()
            return
        self.shown.append("" if self.everything else self._said())
        self.splicer.drop()
        self.splicer.begin(lambda _name: False, everything=False, counted=False)
        for frame in BY_NAME[self.dialect].render(text_of(self.dialect, words)):
            self.wire += self.splicer.feed(frame)
        self.shown.append(words)
        self._finish([])

    @precondition(lambda self: not self.over)
    @rule()
    def is_cut(self) -> None:
        """The upstream is gone in mid-reply: an error follows, which is not the splicer's."""
        assert self.splicer.reply().fault is not None
        self.over = True

    def _answers(self) -> None:
        self.shown.append(self._said())
        self._finish([name for name in self.model.calls if name == "theirs"])

    def _finish(self, called: list[str]) -> None:
        self.over = True
        self.wire += self.splicer.finish(lambda name: name == "theirs")
        frames = Reader().feed(self.wire)
        assert GRAMMAR[self.dialect].breaches(frames, ended=True) == []
        told = GRAMMAR[self.dialect].fold(frames)
        assert GRAMMAR[self.dialect].calls(told) == called
        joint = "" if self.dialect == "messages" else "\n\n"
        assert GRAMMAR[self.dialect].text(frames) == joint.join(text for text in self.shown if text)
        ending = told["stop_reason"] if self.dialect == "messages" else told["finish_reason"]
        assert (ending in ("tool_use", "tool_calls")) == bool(called)
        counted = told["usage"]["output_tokens" if self.dialect == "messages" else "completion_tokens"]
        assert counted == self.iterations

    @invariant()
    def what_the_client_has_is_the_beginning_of_one_message(self) -> None:
        frames = Reader().feed(self.wire)
        assert b"".join(frame.raw for frame in frames) == self.wire
        assert GRAMMAR[self.dialect].breaches(frames, ended=False) == []
        assert b"ours" not in self.wire
        assert b"nobodys" not in self.wire

    def teardown(self) -> None:
        if not self.over:
            self._whole()
            self._answers()


@pytest.mark.parametrize("dialect", BOTH)
def test_any_order_of_steps(dialect: str) -> None:
    """Texts in their order, only the client's calls of the last reply, one ending, every iteration's usage."""
    machine = type(f"Driving{dialect}", (Driving,), {"dialect": dialect})
    limits = settings(max_examples=60, stateful_step_count=25, deadline=None, database=None)
    run_state_machine_as_test(machine, settings=limits)
