"""A call of the client's in a rerun's reply that a post hook has seen: it is the client's or the hook's, never both."""

from __future__ import annotations

from typing import Any

import pytest

from inprocess import BOTH, gateway_over, request_body
from loopway.testing import Reply, call, text
from puppets import Puppet
from streams import calls, live, words


class Late(Puppet):
    """Has a post hook that changes nothing."""

    async def async_post_agentic_loop_response_hook(self, response: Any, plan: Any, kwargs: dict[str, Any]) -> Any:
        return response


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("hook", [Puppet, Late], ids=["without a post hook", "with a post hook"])
async def test_a_mixed_reply_of_a_rerun(hook: type[Puppet], dialect: str) -> None:
    """Once the client has its call, the loop is over, as it is where no post hook has held the reply."""
    script = [
        Reply(call("mine", {"n": 1})),
        Reply(call("theirs", {"n": 1}), call("mine", {"n": 2})),
        Reply(text("end", pieces=1)),
    ]
    async with gateway_over({"m": script}, [hook()]) as run:
        async with live(run, dialect, request_body(dialect)) as stream:
            got = await stream.rest()
        asked = len(run.model.requests)
    assert (calls(dialect, got), words(dialect, got), asked) in (
        (["theirs"], "", 2),  # it was sent, so the client answers it
        ([], "end", 3),  # it was held, and the hook has answered the reply
    )
