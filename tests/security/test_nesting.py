"""JSON that is nested too deeply for what hooks are given: the client's or the upstream's mistake, not ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inprocess import BOTH, gateway_over, request_body
from loopway.dialects.base import DialectName
from loopway.dialects.table import DIALECTS
from loopway.hooks.view import DEEPEST
from loopway.testing import Reply, text
from puppets import Puppet, text_of
from upstream.conftest import Call, Link, Wire

DEPTHS = (190, 250, 333, 500, 900, 1100)
BRACKETS = ("[1]", '{"a":1}')
CASES = [(depth, brackets) for depth in DEPTHS for brackets in BRACKETS]


def nested(depth: int, brackets: str) -> str:
    front, back = brackets.split("1")
    return front * depth + "1" + back * depth


class Early(Puppet):
    """Has a pre-call hook that changes nothing."""

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> Any:
        return data


@pytest.mark.parametrize("dialect", BOTH)
async def test_a_request_before_a_pre_call_hook(dialect: str, subtests: pytest.Subtests) -> None:
    """It is answered, or it is a 400; never a 500, and never the hook's fault."""
    async with gateway_over({"m": lambda _: Reply(text("fine"))}, [Early()]) as run:
        for depth, brackets in CASES:
            with subtests.test(f"{depth} of {brackets}"):
                body = json.dumps(request_body(dialect, metadata={"x": "@"})).replace('"@"', nested(depth, brackets))
                answer = await run.post(dialect, body.encode())
                assert answer.status_code == (200 if depth < DEEPEST else 400), answer.text


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_a_reply_before_a_gate(stream: bool, dialect: DialectName, subtests: pytest.Subtests) -> None:
    """It is passed to the client, or the upstream's answer is broken (502); never `internal_error`."""
    depth, brackets = CASES[0]

    async def answer(_call: Call, link: Link) -> bool:
        reply = text_of(dialect, "fine")
        holder = reply if dialect == "messages" else reply["choices"][0]["message"]
        if dialect == "messages":
            reply["content"].append({"type": "odd", "x": "@"})
        else:
            holder["x"] = "@"
        kind, body = b"application/json", json.dumps(reply).encode()
        if stream:
            kind, body = b"text/event-stream", b"".join(frame.raw for frame in DIALECTS[dialect].render(reply))
        body = body.replace(b'"@"', nested(depth, brackets).encode())
        await link.send(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body)) + body)
        return True

    wire = Wire()
    wire.script(*[answer] * len(CASES))
    await wire.start()
    try:
        async with gateway_over({"m": []}, [Puppet()], upstream={"base_url": wire.url}) as run:
            for depth, brackets in CASES:
                with subtests.test(f"{depth} of {brackets}"):
                    got = await run.post(dialect, request_body(dialect, stream=stream))
                    assert got.status_code in (200, 502), got.text
                    assert "the gateway failed" not in got.text
                    assert ('"error"' in got.text) is (depth > DEEPEST), got.text[-300:]
    finally:
        await wire.stop()
