"""Errors in Anthropic's shape, as a body and as an event.

This file must not know when an error comes up.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from dialects.laws import frames_of
from loopway import errors
from loopway.dialects.messages import MESSAGES

OVERLOADED = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded","x":1.50},"request_id":"up"}'
OPENAI = b'{"error":{"message":"m","type":"server_error","code":null}}'


Make = Callable[[bytes], errors.ExchangeError]


class Odd(errors.ExchangeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__("words")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_types(status: int, kind: str) -> None:
    """Each status has Anthropic's type, in a body and in an event."""
    wanted = {"type": "error", "error": {"type": kind, "message": "words"}, "request_id": "req_1"}
    assert json.loads(MESSAGES.error_body(Odd(status), "req_1")) == wanted
    (frame,) = frames_of(MESSAGES.error_event(Odd(status), "req_1"))
    assert (frame.event, json.loads(frame.data or b"")) == (b"error", wanted)


def test_threads_are_refused_as_the_sdks_understand() -> None:
    """The details are those that make the tool runners send the whole history."""
    told = json.loads(MESSAGES.error_body(errors.ThreadUnsupported(), "r"))["error"]
    assert told["type"] == "invalid_request_error"
    assert told["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


@pytest.mark.parametrize("body", [OVERLOADED, OPENAI, b"<html>", b""])
def test_a_refusal_has_its_own_body(body: bytes) -> None:
    """What the upstream said before the first byte comes back as it is."""
    assert MESSAGES.error_body(errors.Refused("up", 529, [], body), "r") == body


@pytest.mark.parametrize("data", [OVERLOADED, b" " + OVERLOADED.replace(b",", b",\r\n ")])
@pytest.mark.parametrize("make", [lambda d: errors.Refused("up", 529, [], d), lambda d: errors.Reported("up", d)])
def test_the_upstreams_own_words_go_on_in_an_event(data: bytes, make: Make) -> None:
    """An error in Anthropic's shape is passed on whole, as one event."""
    (frame,) = frames_of(MESSAGES.error_event(make(data), "r"))
    assert frame.event == b"error"
    assert (frame.data or b"").replace(b" ", b"") == OVERLOADED.replace(b" ", b"")


@pytest.mark.parametrize(
    "data",
    [
        OPENAI,
        b"<html>",
        b"",
        b"[]",
        b'{"type":"error","error":"x"}',
        b"\xff",
        OVERLOADED.replace(b"up", b"\xff"),
        b'{"type":"ok"}',
    ],
)
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda d: errors.Refused("up", 429, [], d), "rate_limit_error"),
        (lambda d: errors.Reported("up", d), "api_error"),
        (lambda d: errors.Refused("up", 799, [], d), "api_error"),
    ],
)
def test_other_words_are_not_passed_on_in_an_event(data: bytes, make: Make, kind: str) -> None:
    """What is not in Anthropic's shape becomes an error that is."""
    (frame,) = frames_of(MESSAGES.error_event(make(data), "r"))
    told = json.loads(frame.data or b"")
    assert (frame.event, told["type"], told["request_id"]) == (b"error", "error", "r")
    assert told["error"]["type"] == kind
    assert "'up'" in told["error"]["message"]
