"""Rules: plain functions that fail a request or an answer by its text."""

from __future__ import annotations

from typing import Any

import pytest

from inprocess import BOTH, KEY, gateway_over, request_body
from loopway import ConfigError
from loopway.app import build
from loopway.engine.notes import HookRan
from loopway.testing import Reply, call, text
from puppets import Puppet

both = pytest.mark.parametrize("dialect", BOTH)

MODULE = """
def no_secrets(text):
    return "secret" not in text

def long_enough(input):
    if len(input) < 5:
        return {"decision": False, "message": "This answer is too short."}
    return {"decision": True}

def broken(text):
    raise RuntimeError("inside")

def odd(text):
    return "yes"

class Rule:
    pass

async def waits(text):
    return True
"""


@pytest.fixture
def rules_module(tmp_path: Any, monkeypatch: Any) -> Any:
    """A module of rules on the path, by the name of `house_rules_here`."""
    (tmp_path / "house_rules_here.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "house_rules_here"


@pytest.fixture
def gateway(rules_module: Any) -> Any:
    """A gateway with these rules."""

    def make(scripts: Any, hooks: Any = (), **rules: Any) -> Any:
        named = {kind: [f"{rules_module}.{name}" for name in names] for kind, names in rules.items()}
        return gateway_over(scripts, hooks, rules=named)

    return make


@both
async def test_a_pre_call_rule_refuses_by_the_text_of_the_messages(dialect: Any, gateway: Any) -> None:
    """A 400 in the dialect's shape; nothing is sent upstream."""
    async with gateway({"m": [Reply(text("fine"))]}, pre_call=["no_secrets"]) as run:
        refused = await run.post(dialect, request_body(dialect, words="my secret"))
        good = await run.post(dialect, request_body(dialect, words="hello"))
        assert len(run.model.requests) == 1
    assert (refused.status_code, good.status_code) == (400, 200)
    assert "rule" in refused.json()["error"]["message"]


@both
async def test_a_post_call_rule_refuses_the_last_reply(dialect: Any, gateway: Any) -> None:
    """Its own message, a 500; also for a request that no hook watches."""
    async with gateway({"m": [Reply(text("no")), Reply(text("long enough"))]}, post_call=["long_enough"]) as run:
        refused = await run.post(dialect, request_body(dialect))
        good = await run.post(dialect, request_body(dialect))
    assert (refused.status_code, good.status_code) == (500, 200)
    assert refused.json()["error"]["message"] == "This answer is too short."


@both
async def test_a_post_call_rule_sees_the_answer_of_the_loop(dialect: Any, gateway: Any) -> None:
    """Not the replies that were rerun."""
    script = [Reply(text("x"), call("mine", {"n": 1})), Reply(text("long enough"))]
    async with gateway({"m": script}, [Puppet()], post_call=["long_enough"]) as run:
        assert (await run.post(dialect, request_body(dialect))).status_code == 200


@both
async def test_in_a_stream_the_rule_ends_it_with_an_error(dialect: Any, gateway: Any) -> None:
    """The text has been shown; the client is told that it does not count."""
    rules = gateway({"m": [Reply(text("no"))]}, post_call=["long_enough"])
    async with rules as run, run.stream(dialect, request_body(dialect)) as answer:
        raw = (await answer.aread()).decode()
    assert "This answer is too short." in raw
    assert "message_stop" not in raw
    assert "[DONE]" not in raw


@both
@pytest.mark.parametrize("name", ["broken", "odd"])
async def test_a_rule_that_fails_by_itself_fails_the_exchange(dialect: Any, name: Any, gateway: Any) -> None:
    """A policy that cannot be asked is no yes; the log has the cause, the answer has not."""
    async with gateway({"m": [Reply(text("fine"))]}, pre_call=[name]) as run:
        refused = await run.post(dialect, request_body(dialect))
        assert [note.error is not None for note in run.told(HookRan)] == [True]
    assert refused.status_code == 500
    assert name in refused.json()["error"]["message"]
    assert "inside" not in refused.text


async def test_several_replies_cannot_be_asked_for_where_rules_read_the_answer(gateway: Any) -> None:
    """N > 1 would pass a rule by."""
    async with gateway({"m": [Reply(text("fine"))]}, post_call=["long_enough"]) as run:
        refused = await run.post("chat_completions", request_body("chat_completions", n=2))
    assert refused.status_code == 400


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Rule", "is a class"),
        ("absent", "has no 'absent'"),
        ("waits", "async def"),
        ("MODULE_NAME", "has no"),
    ],
)
def test_what_is_no_rule_is_refused_at_start(name: Any, words: Any, rules_module: Any) -> None:
    """With the key path."""
    config = {
        "auth": {"keys": [{"name": "a", "key": KEY}]},
        "upstreams": {"u": {"base_url": "http://127.0.0.1:9"}},
        "models": [{"name": "m", "upstream": "u"}],
        "rules": {"post_call": [f"{rules_module}.{name}"]},
    }
    with pytest.raises(ConfigError) as refused:
        build(config)
    assert "rules.post_call[0]" in str(refused.value)
    assert words in str(refused.value)


@both
async def test_rules_see_results_of_tools_and_the_system_prompt(dialect: Any, gateway: Any) -> None:
    """Text is text, wherever it stands in the request."""
    if dialect == "messages":
        result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "secret"}]}
        bodies = [
            request_body(dialect, messages=[{"role": "user", "content": [result]}]),
            request_body(dialect, system="secret"),
        ]
    else:
        turn = {"role": "tool", "tool_call_id": "a", "content": "secret"}
        bodies = [request_body(dialect, messages=[turn])]
    async with gateway({"m": [Reply(text("fine"))]}, pre_call=["no_secrets"]) as run:
        assert [(await run.post(dialect, body)).status_code for body in bodies] == [400] * len(bodies)
