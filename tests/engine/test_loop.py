"""The loop, by playbooks: call, reply, gate, claim, plan, decision … ending."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from engine.playbook import OVERRIDE, SKIP, TERMINATE, Play, call, claim, reply, rerun
from loopway.engine.limits import Limits
from loopway.engine.loop import Finished, Overridden, Stopped

MINE = reply(call("mine", {"n": 1}))
TEXT = reply()


def test_a_reply_that_nobody_claims_is_the_answer() -> None:
    """Gates are asked once, and their no ends the exchange."""
    play = Play(TEXT, None)
    assert play.log == ["call 0", "gate 0", "skip"]
    assert play.result == Finished(TEXT, 1)


def test_a_rerun_calls_the_model_again_one_deeper() -> None:
    """The patch makes the next request, and depth counts reruns."""
    play = Play(MINE, claim(), rerun(model="other"), TEXT, None)
    assert play.log == ["call 0", "gate 0", "plan 0 hook0", "rerun", "call 1", "gate 1", "skip"]
    assert play.requests[1].story == ("patched other",)
    assert play.result == Finished(TEXT, 2)


def test_an_override_is_the_result() -> None:
    """No further call is made."""
    play = Play(MINE, claim(), OVERRIDE)
    assert play.log[-1] == "override"
    assert play.result == Overridden({"content": []}, MINE, 1)


def test_terminate_ends_with_the_current_reply() -> None:
    """The reply at hand is the answer."""
    play = Play(MINE, claim(), TERMINATE)
    assert play.log[-1] == "terminate"
    assert play.result == Finished(MINE, 1)


def test_a_skip_asks_the_gates_behind_that_hook() -> None:
    """The next gates are asked, not the same ones, on the same reply."""
    play = Play(MINE, claim(hook=2), SKIP, claim(hook=5), SKIP, None)
    assert play.log == ["call 0", "gate 0", "plan 0 hook2", "gate 0 after 2", "plan 0 hook5", "gate 0 after 5", "skip"]


def test_a_skipped_claim_leaves_no_fingerprint() -> None:
    """Two hooks may claim the same calls of one reply; only a rerun counts as a time."""
    play = Play(MINE, claim(hook=0), SKIP, claim(hook=1), rerun(), TEXT, None)
    assert isinstance(play.result, Finished)


# --- repeats ---


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([call("mine", {"a": 1, "b": 2}, id="x")], [call("mine", {"b": 2, "a": 1}, id="y")]),
        ([call("mine", {}, id="x")], [call("mine", {}, id="y")]),
        ([call("mine", {"n": 1}), call("mine", {"n": 2})], [call("mine", {"n": 2}), call("mine", {"n": 1})]),
        ([call("mine", {"n": 1})], [call("mine", {"n": 1.0})]),
    ],
)
def test_the_same_calls_a_second_time_abort(first: Any, second: Any) -> None:
    """Ids, key order, the order of parallel calls and 1 or 1.0 make no difference; no plan is asked for."""
    play = Play(reply(*first), claim(), rerun(), reply(*second), claim())
    assert play.log[-2:] == ["gate 1", "terminate fingerprint"]
    assert isinstance(play.result, Stopped)
    assert play.result.breach == "fingerprint"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (call("mine", {"n": 1}), call("mine", {"n": 2})),
        (call("mine", {"n": 1}), call("also", {"n": 1})),
        (call("mine", {"n": [1, 2]}), call("mine", {"n": [2, 1]})),
        (call("mine", {"n": "1"}), call("mine", {"n": 1})),
    ],
)
def test_other_calls_do_not_abort(first: Any, second: Any) -> None:
    """Another name, another value, another order inside a list: another call."""
    play = Play(reply(first), claim(), rerun(), reply(second), claim(), rerun(), TEXT, None)
    assert isinstance(play.result, Finished)


def test_a_repeat_counts_over_other_calls_between() -> None:
    """The second time need not follow the first at once."""
    other = reply(call("mine", {"n": 2}))
    play = Play(MINE, claim(), rerun(), other, claim(), rerun(), MINE, claim())
    assert play.result == Stopped(MINE, 3, "fingerprint")


def test_a_repeat_is_seen_before_the_limit() -> None:
    """Where both would cut, the reason is the fingerprint."""
    play = Play(MINE, claim(), rerun(), MINE, claim(), limits=Limits(loops=1))
    assert play.decided[-1].breach == "fingerprint"


def test_tell_model_answers_a_repeat_instead_of_running_it() -> None:
    """The model is told, and the loop goes on; the rerun counts."""
    play = Play(
        MINE, claim(), rerun(), MINE, claim(), TEXT, None, limits=Limits(on_repeat="tell_model")
    )  # fmt: skip
    assert play.requests[2].story == ("patched", "answered 1")
    assert play.log[-3:] == ["call 2", "gate 2", "skip"]
    assert isinstance(play.result, Finished)


def test_tell_model_is_still_bound_by_the_limit() -> None:
    """A model that repeats itself for ever is cut."""
    lines: list[Any] = [MINE, claim(), rerun(), *[MINE, claim()] * 3]
    play = Play(*lines, limits=Limits(on_repeat="tell_model", loops=3))
    assert play.result == Stopped(MINE, 4, "max_agentic_loops")


def test_tell_model_aborts_where_a_call_is_the_clients() -> None:
    """What the client has to answer cannot be answered for it."""
    mixed = reply(call("mine", {"n": 1}), call("theirs", id="c2"))
    play = Play(MINE, claim(), rerun(), mixed, claim({"calls": [{"name": "mine", "input": {"n": 1}}]}),
                limits=Limits(on_repeat="tell_model"))  # fmt: skip
    assert play.decided[-1].breach == "fingerprint"


# --- limits ---


@pytest.mark.parametrize("loops", [0, 1, 3, 7])
def test_so_many_reruns_and_no_more(loops: Any) -> None:
    """A model that always calls with new arguments is called loops + 1 times."""
    numbers = itertools.count()
    lines: list[object] = []
    for _ in range(loops):
        lines += [reply(call("mine", {"n": next(numbers)})), claim(), rerun()]
    last = reply(call("mine", {"n": next(numbers)}))
    play = Play(*lines, last, claim(), limits=Limits(loops=loops))  # type: ignore[arg-type]
    assert play.result == Stopped(last, loops + 1, "max_agentic_loops")
    assert play.log[-1] == "terminate max_agentic_loops"


def test_a_patch_sets_the_limit_of_the_exchange() -> None:
    """kwargs.max_agentic_loops of a patch counts from then on."""
    one, two = reply(call("mine", {"n": 1})), reply(call("mine", {"n": 2}))
    play = Play(one, claim(), rerun(kwargs={"max_agentic_loops": 1}), two, claim())
    assert play.result == Stopped(two, 2, "max_agentic_loops")


def test_a_patch_cannot_ask_for_more_than_the_ceiling() -> None:
    """What is over the ceiling is clamped."""
    lines: list[object] = [reply(call("mine", {"n": 0})), claim(), rerun(kwargs={"max_agentic_loops": 99})]
    lines += [reply(call("mine", {"n": 1})), claim(), rerun(), reply(call("mine", {"n": 2})), claim()]
    play = Play(*lines, limits=Limits(ceiling=2))  # type: ignore[arg-type]
    assert play.decided[-1].breach == "max_agentic_loops"


def test_the_wall_clock_cuts_between_iterations() -> None:
    """No further iteration starts once the seconds are over."""
    play = Play(MINE, claim(), rerun(), reply(call("mine", {"n": 2})), claim(), seconds=[1.0, 300.0])
    assert play.decided[-1].breach == "max_seconds"


def test_calls_of_owned_tools_are_counted_over_the_exchange() -> None:
    """The reply that goes over is not run; calls to other tools do not count."""
    many = reply(*(call("mine", {"n": n}) for n in range(3)), call("theirs"))
    more = reply(*(call("mine", {"n": n}) for n in range(3, 6)))
    play = Play(many, claim(), rerun(), more, claim(), limits=Limits(tool_calls=5))
    assert play.decided[-1].breach == "max_tool_calls"
    play = Play(many, claim(), rerun(), more, claim(), rerun(), TEXT, None, limits=Limits(tool_calls=6))
    assert isinstance(play.result, Finished)


def test_final_answer_spends_one_more_call_without_tools() -> None:
    """The calls are answered with a refusal, tools stay, the choice is none, and no gate is asked again."""
    play = Play(MINE, claim(), TEXT, limits=Limits(loops=0, on_limit="final_answer"))
    assert play.log == ["call 0", "gate 0", "rerun max_agentic_loops", "call 1", "skip"]
    assert play.requests[1].story == ("answered 1 none",)
    assert play.result == Stopped(TEXT, 2, "max_agentic_loops")


def test_final_answer_stops_where_a_call_is_the_clients() -> None:
    """A call that only the client can answer ends the loop with it."""
    mixed = reply(call("mine"), call("theirs", id="c2"))
    play = Play(mixed, claim({"calls": [{"name": "mine"}]}), limits=Limits(loops=0, on_limit="final_answer"))
    assert play.result == Stopped(mixed, 1, "max_agentic_loops")


def test_final_answer_answers_a_declared_tool_that_the_hook_claims() -> None:
    """A tool that the client declared, but that a hook answers, is the hook's."""
    watched = reply(call("theirs", {"n": 1}))
    play = Play(watched, claim({"calls": [{"name": "theirs", "input": {"n": 1}}]}), TEXT,
                limits=Limits(loops=0, on_limit="final_answer"))  # fmt: skip
    assert play.requests[1].story == ("answered 1 none",)


# --- broken replies ---


@pytest.mark.parametrize(
    "broken",
    [
        reply(call("mine"), ending="max_tokens"),
        reply(call("mine"), ending="refusal"),
        reply(call("mine", valid=False)),
        reply(call("mine"), call("mine", valid=False, id="c2")),
        reply(call("mine"), fault="cut"),
        reply(fault="error"),
    ],
)
def test_no_hook_is_asked_about_a_broken_reply(broken: Any) -> None:
    """Length, refusal, bad arguments, a cut: nothing runs."""
    play = Play(broken)
    assert play.log == ["call 0", "skip"]
    assert play.result == Finished(broken, 1)


@pytest.mark.parametrize("ending", ["max_tokens", "refusal"])
def test_a_reply_without_calls_may_be_claimed_however_it_ended(ending: Any) -> None:
    """A hook may answer a refusal with another model; no tool is in danger."""
    play = Play(reply(ending=ending), claim(), rerun(model="other"), TEXT, None)
    assert play.requests[1].story == ("patched other",)


def test_a_reply_whose_call_the_client_has_is_not_claimed() -> None:
    """What the client is already answering is not answered on the server as well."""
    play = Play(reply(call("theirs"), call("mine"), delivered=True))
    assert play.log == ["call 0", "skip"]


@pytest.mark.parametrize(
    ("answer", "outcome", "hook", "fingerprint"),
    [(None, "skip", None, False), (rerun(), "rerun", "hook0", True), (TERMINATE, "terminate", "hook0", True)],
)
def test_a_decision_tells_who_made_it(answer: Any, outcome: Any, hook: Any, fingerprint: Any) -> None:
    """Outcome, hook and fingerprint of each iteration are there for who watches."""
    lines = [MINE, None] if answer is None else [MINE, claim(), answer]
    play = Play(*lines, *([TEXT, None] if outcome == "rerun" else []))
    first = play.decided[0]
    assert (first.outcome, first.hook, first.fingerprint is not None) == (outcome, hook, fingerprint)
