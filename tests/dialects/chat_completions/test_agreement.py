"""Where two ways lead to the same answer: in full or by shape, streamed or not.

This file must not know how either way works.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.chat_completions.grammar import CHAT_GRAMMAR
from dialects.laws import Case, bytewise, cases, frames_of, play
from loopway.dialects.chat_completions import CHAT_COMPLETIONS, splice
from loopway.dialects.usage import added

CASES = cases(Path(__file__).parent / "cases")
REPLIED = [case for case in CASES if not case.fault and case.override is None]

WORDS = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ['"', '\\"', "\\", '"content":', '{"content":"a"}', '","obfuscation":"x"}', "\n", "\u2028", "🎉", "null", ""]
)
TEXT = st.tuples(st.sampled_from(["content", "reasoning_content"]), WORDS)
CALL = st.tuples(st.sampled_from(["call"]), st.sampled_from(["cli", "srv"]))
MORE = st.tuples(st.integers(0, 2), WORDS)
STREAM = st.lists(TEXT | TEXT | CALL | MORE | MORE, max_size=25)


def stream(number: int, parts: list[tuple[Any, str]], members: dict[str, Any], spaces: bool) -> bytes:
    """A whole stream of these parts: texts, calls that begin, and arguments of the n-th last call."""
    separators = (", ", ": ") if spaces else (",", ":")
    head: dict[str, Any] = {"id": f"c{number}", "object": "chat.completion.chunk", "created": number, "model": "m"}
    events: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    calls = 0
    for kind, words in parts:
        if kind == "call":
            function: dict[str, Any] = {"name": words, "arguments": ""}
            one: dict[str, Any] = {"index": calls, "id": f"t{number}-{calls}", "type": "function", "function": function}
            events.append({"tool_calls": [one]})
            calls += 1
        elif isinstance(kind, int):
            if calls > kind:
                one = {"index": calls - 1 - kind, "function": {"arguments": words}}
                events.append({"tool_calls": [one]})
        else:
            events.append({kind: words})
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in events
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]})
    padded = [{**chunk, "obfuscation": "x" * (place % 4)} for place, chunk in enumerate(chunks)]
    told: list[dict[str, Any]] = [{**head, **members, **chunk} for chunk in (padded if number % 2 else chunks)]
    return b"".join(b"data: %b\n\n" % json.dumps(one, separators=separators).encode() for one in told)


@given(
    parts=st.lists(STREAM, min_size=1, max_size=3),
    members=st.sampled_from([{}, {"usage": None}, {"service_tier": "default", "x": {"content": 1}}]),
    spaces=st.booleans(),
    watched=st.booleans(),
    never=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_read_in_full_or_by_shape(
    parts: list[list[tuple[Any, str]]], members: dict[str, Any], spaces: bool, watched: bool, never: bool
) -> None:
    """Chunks that are told by their shape go and fold as if each had been read in full; the wire is one message."""
    case = Case(
        name="made",
        streams=tuple(stream(number, one, members, spaces) for number, one in enumerate(parts)),
        owned=frozenset(("srv",)),
        declared=frozenset(("cli",)),
        watched=watched,
        interim="never" if never else "stream",
    )
    played = play(CHAT_COMPLETIONS, case)
    with patch.object(splice, "_SHAPES", 0):
        assert played == play(CHAT_COMPLETIONS, case)
    frames = frames_of(played.wire)
    assert CHAT_GRAMMAR.breaches(frames, ended=True) == []
    message = CHAT_GRAMMAR.fold(frames)["message"]
    texts = ["".join(words for kind, words in one if kind == "content") for one in parts]
    shown = texts[-1:] if never else texts
    assert (message["content"] or "") == "\n\n".join(text for text in shown if text)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_cases_read_in_full_or_by_shape(case: Case) -> None:
    """Every case comes out the same where no chunk is told by its shape."""
    with patch.object(splice, "_SHAPES", 0):
        full = play(CHAT_COMPLETIONS, case, bytewise)
    assert full == play(CHAT_COMPLETIONS, case, bytewise)


@pytest.mark.parametrize("interim", ["always", "never"])
@pytest.mark.parametrize("case", REPLIED, ids=[case.name for case in REPLIED])
def test_streamed_or_not(case: Case, interim: Any) -> None:
    """Under `always` and under `never` a stream tells the same message as the JSON answer does."""
    case = msgspec.structs.replace(case, interim=interim)
    played = play(CHAT_COMPLETIONS, case)
    streamed = CHAT_GRAMMAR.fold(frames_of(played.wire))
    *earlier, last = [CHAT_COMPLETIONS.reply(json.dumps(reply).encode()) for reply in case.replies]
    usage: dict[str, Any] = {}
    for reply in (*earlier, last) if case.usage == "sum" else (last,):
        usage = added(usage, reply.usage)
    body = CHAT_COMPLETIONS.final(last, keep=case.keep, interim=earlier if interim == "always" else (), usage=usage)
    whole = json.loads(body)
    (choice,) = whole["choices"]
    assert streamed["finish_reason"] == choice["finish_reason"]
    assert streamed.get("usage", {}) == whole.get("usage", {})
    for name in ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call"):
        assert (streamed["message"].get(name) or None) == (choice["message"].get(name) or None)
