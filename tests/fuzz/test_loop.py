"""Any sequence of replies, claims and decisions: the loop ends, within its limits, and asks in order.

This file must not know why a hook decides what it does.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.playbook import Asked, call, claim, reply, rerun
from loopway.engine.answers import Answers
from loopway.engine.limits import Limits
from loopway.engine.loop import Call, Claim, Decided, Finished, Gate, Keep, Overridden, Plan, Stopped, run
from loopway.engine.plan import Answered, Override, Skip, Terminate

HOOKS = 4
OWNED, DECLARED, SERVED = frozenset({"mine", "tool"}), frozenset({"theirs"}), frozenset({"tool"})

CALLS = st.lists(
    st.builds(
        call,
        st.sampled_from(["mine", "tool", "theirs", "nobody's"]),
        st.dictionaries(st.sampled_from("ab"), st.integers(0, 1), max_size=1),
        id=st.sampled_from(["c1", "c2"]),
        valid=st.sampled_from([True, True, True, False]),
    ),
    max_size=4,
)
REPLIES = st.builds(
    lambda calls, **more: reply(*calls, **more),
    CALLS,
    ending=st.sampled_from([None, None, None, "length"]),
    fault=st.sampled_from([None, None, None, None, "cut"]),
    delivered=st.sampled_from([False, False, False, True]),
)
LIMITS = st.builds(
    Limits,
    loops=st.integers(0, 5),
    ceiling=st.integers(0, 7),
    seconds=st.sampled_from([0.0, 3.0, 100.0]),
    tool_calls=st.integers(0, 12),
    on_limit=st.sampled_from(["stop", "final_answer"]),
    on_repeat=st.sampled_from(["abort", "tell_model"]),
)
CONTEXTS = st.sampled_from([None, {}, {"calls": [{"name": "mine", "input": {}}]}, {"query": 1}, {"query": 2}])


@settings(max_examples=1000, deadline=None)
@given(data=st.data(), limits=LIMITS, tick=st.sampled_from([0.0, 0.5]))
def test_any_exchange_ends_in_order(data: st.DataObject, limits: Limits, tick: float) -> None:
    """Depths rise by one, gates are asked behind one another, each iteration is decided once, the limits hold."""
    now = 0.0
    loop = run(Asked(), limits, owned=OWNED, declared=DECLARED, served=SERVED, seconds=lambda: now)
    calls, decided = 0, 0
    most = limits.loops
    current: Any = None
    claimed: Claim | None = None
    asked_behind = -1
    answer: Any = None
    for _ in range(2000):
        now += tick
        try:
            command = loop.send(answer)
        except StopIteration as done:
            result = done.value
            break
        answer = None
        match command:
            case Call(_, depth):
                assert (depth, decided) == (calls, calls)
                calls += 1
                asked_behind = -1
                current = answer = data.draw(REPLIES)
            case Gate():
                assert command.reply is current
                assert command.depth == calls - 1
                assert command.after >= asked_behind
                assert not current.fault
                asked_behind = command.after
                claimed = answer = None
                if command.after + 1 < HOOKS and data.draw(st.booleans()):
                    claimed = answer = claim(data.draw(CONTEXTS), data.draw(st.integers(command.after + 1, HOOKS - 1)))
            case Plan():
                assert command.claim is claimed
                assert command.depth == calls - 1
                assert not (current.broken and current.calls)
                assert len(set(command.fingerprints)) == len(command.fingerprints)
                answer = data.draw(st.sampled_from(["skip", "end", "over", "again", "more", "answer"]))
                if answer == "more":
                    asked = data.draw(st.integers(0, 20))
                    most = max(most, min(asked, limits.ceiling))
                    answer = rerun(kwargs={"max_agentic_loops": asked})
                else:
                    answer = {
                        "skip": Skip(),
                        "end": Terminate(),
                        "over": Override({}),
                        "again": rerun(),
                        "answer": Answered(Answers(current, ())),
                    }[answer]
            case Keep():
                names = {one.name for one in current.calls}
                assert not current.broken
                assert names & SERVED
                assert names & DECLARED
            case Decided(depth):
                assert depth == decided
                decided += 1
    else:
        raise AssertionError("it does not end")
    assert isinstance(result, (Finished, Overridden, Stopped))
    assert result.iterations == calls == decided
    assert calls - 1 <= most + (limits.on_limit == "final_answer")
    assert result.reply is current
