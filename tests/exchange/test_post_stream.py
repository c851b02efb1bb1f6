"""A post hook in a stream: its rerun waits for it, and then goes out as it made it."""

from __future__ import annotations

from typing import Any

import pytest

from inprocess import BOTH, gateway_over, request_body
from loopway.testing import Reply, call, text
from puppets import Puppet, text_of

SCRIPT = [
    Reply(text("one", pieces=1), call("mine", {"n": 1})),
    Reply(text("two", pieces=1), call("mine", {"n": 2})),
    Reply(text("three", pieces=1)),
]


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize(
    ("replace", "interim", "shown"),
    [
        ((), "stream", ["one", "two", "three"]),
        ((), "never", ["three"]),
        (("three",), "stream", ["one", "two", "made"]),
        (("two",), "stream", ["one", "made"]),
        (("three",), "never", ["made"]),
    ],
)
async def test_what_a_post_hook_leaves_is_shown(dialect: Any, replace: Any, interim: Any, shown: Any) -> None:
    """Also in the middle of a loop: a rerun's text goes out once the hook has answered, and what it made of it."""

    class Post(Puppet):
        async def async_post_agentic_loop_response_hook(self, response: Any, plan: Any, kwargs: Any) -> Any:
            return text_of(dialect, "made") if any(word in str(response) for word in replace) else response

    loop = {"interim_text": interim}
    body = request_body(dialect, tools=["mine"])
    async with gateway_over({"m": SCRIPT}, [Post()], loop=loop) as run, run.stream(dialect, body) as answer:
        raw = (await answer.aread()).decode()
    places = [raw.find(f'"{word}"') for word in ("one", "two", "three", "made")]
    found = [word for word, place in zip(("one", "two", "three", "made"), places, strict=True) if place >= 0]
    assert sorted(found) == sorted(shown)
    assert "mine" not in raw
