"""How many model calls an exchange is said to have made: those that failed are calls, too."""

from __future__ import annotations

import pytest

from inprocess import BOTH, gateway_over, request_body
from loopway.engine.notes import Ended
from loopway.testing import Reply, call, text
from puppets import Puppet

ILL = Reply(error=(400, '{"error": {"type": "x", "message": "no"}}'))
CASES = {
    "one": ([Reply(text("fine"))], "1"),
    "one that failed": ([ILL], "1"),
    "a rerun": ([Reply(call("mine", {"n": 1})), Reply(text("fine"))], "2"),
    "a rerun that failed": ([Reply(call("mine", {"n": 1})), ILL], "2"),
}


@pytest.mark.parametrize("dialect", BOTH)
async def test_calls(dialect: str, subtests: pytest.Subtests) -> None:
    """In the header of the answer and in what telemetry is told."""
    scripts = {name: script for name, (script, _) in CASES.items()}
    async with gateway_over(scripts, [Puppet()]) as run:
        for name, (_, number) in CASES.items():
            with subtests.test(name):
                answer = await run.post(dialect, request_body(dialect, name))
                assert answer.headers["x-loopway-iterations"] == number
                assert str(run.told(Ended)[-1].iterations) == number
