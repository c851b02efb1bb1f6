"""The laws of DESIGN over every case file of Chat Completions, and over recorded streams of real providers.

This file must not know how the laws are checked.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.chat_completions.grammar import CHAT_GRAMMAR
from dialects.laws import Case, at, bytewise, cases, check_laws, frames_of, play, recorded, whole
from loopway.dialects.chat_completions import CHAT_COMPLETIONS

CASES = cases(Path(__file__).parent / "cases")
NAMES = [case.name for case in CASES]
RECORDED = recorded("chat_completions")


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_laws_hold_over_whole_streams(case: Case) -> None:
    """Every law holds where a stream comes in one read."""
    check_laws(CHAT_COMPLETIONS, case, CHAT_GRAMMAR, whole)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_laws_hold_byte_by_byte(case: Case) -> None:
    """Every law holds where each byte comes alone."""
    check_laws(CHAT_COMPLETIONS, case, CHAT_GRAMMAR, bytewise)


@given(case=st.sampled_from(CASES), places=st.lists(st.integers(0, 5000), max_size=12))
@settings(max_examples=150, deadline=None)
def test_laws_hold_over_any_cuts(case: Case, places: list[int]) -> None:
    """Every law holds wherever the reads are cut."""
    check_laws(CHAT_COMPLETIONS, case, CHAT_GRAMMAR, at(places))


def test_there_are_cases() -> None:
    """The folder of the cases was found: there are more than forty."""
    assert len(CASES) > 40


@pytest.mark.parametrize("held", [False, True], ids=["sent", "held"])
@pytest.mark.parametrize(("name", "payloads"), RECORDED, ids=[name for name, _ in RECORDED])
def test_laws_hold_over_recorded_streams(name: str, payloads: list[bytes], held: bool) -> None:
    """Every law holds over what real providers have sent, in a rerun of itself, too."""
    stream = b"".join(b"data: " + payload + b"\n\n" for payload in payloads) + b"data: [DONE]\n\n"
    declared = frozenset(("weather", "webSearch"))
    once = Case(name=name, streams=(stream,), declared=declared, watched=held, untouched=name == "openai-text")
    once = msgspec.structs.replace(once, replies=tuple(reply.value() for reply in play(CHAT_COMPLETIONS, once).replies))
    check_laws(CHAT_COMPLETIONS, once, CHAT_GRAMMAR, whole)
    twice = msgspec.structs.replace(once, streams=(stream, stream), replies=once.replies * 2, watched=True)
    check_laws(CHAT_COMPLETIONS, twice, CHAT_GRAMMAR, at(range(0, 100_000, 61)))


@pytest.mark.parametrize(("name", "payloads"), RECORDED, ids=[name for name, _ in RECORDED])
def test_recorded_streams_read_alike_on_both_sides(name: str, payloads: list[bytes]) -> None:
    """What the client reads of a recorded stream is what the reply says."""
    stream = b"".join(b"data: " + payload + b"\n\n" for payload in payloads)
    played = play(CHAT_COMPLETIONS, Case(name=name, streams=(stream,), declared=frozenset(("weather",))))
    told = CHAT_GRAMMAR.fold(frames_of(played.wire))
    value = played.replies[0].value()
    message = value["choices"][0]["message"]
    assert {name: member for name, member in told["message"].items() if member} == {
        name: member for name, member in message.items() if member
    }
    assert (told["usage"], told["id"]) == (value["usage"], value["id"])
