"""Errors in OpenAI's shape.

This file must not know how an error comes about.
"""

from __future__ import annotations

import json

import pytest

from dialects.laws import frames_of
from loopway import errors
from loopway.dialects.chat_completions import CHAT_COMPLETIONS
from loopway.errors import ExchangeError


class RateLimited(ExchangeError):
    status = 429


@pytest.mark.parametrize(
    ("error", "kind", "param", "code"),
    [
        (errors.BadRequest("no", "$.messages[0].content"), "invalid_request_error", "messages[0].content", None),
        (errors.BadRequest("no", "x-max-agentic-loops"), "invalid_request_error", "x-max-agentic-loops", None),
        (errors.BadRequest("no", "$"), "invalid_request_error", None, None),
        (errors.Rejected("no"), "invalid_request_error", None, None),
        (errors.Unauthorized("no"), "invalid_request_error", None, "invalid_api_key"),
        (errors.NotAllowed("no"), "invalid_request_error", None, "model_not_allowed"),
        (errors.NotFound("no", "$.model"), "invalid_request_error", "model", "model_not_found"),
        (errors.MethodNotAllowed("no", "POST"), "invalid_request_error", None, None),
        (errors.TooLarge("no"), "invalid_request_error", None, "request_too_large"),
        (RateLimited("no"), "rate_limit_error", None, None),
        (errors.HookFailed("h", "plan", "it raised"), "server_error", None, "hook_failed"),
        (errors.Unreachable("u", "no"), "server_error", None, "upstream_unreachable"),
        (errors.Silent("u", "no"), "server_error", None, "upstream_timeout"),
        (errors.Full(), "server_error", None, "overloaded"),
        (errors.Draining(), "server_error", None, "draining"),
        (errors.OutOfTime(5), "server_error", None, "timeout"),
    ],
)
def test_shape(error: ExchangeError, kind: str, param: str | None, code: str | None) -> None:
    """Every error has message, type, param and code, as a body and as a bare data event."""
    wanted = {"error": {"message": error.text, "type": kind, "param": param, "code": code}}
    assert json.loads(CHAT_COMPLETIONS.error_body(error, "r1")) == wanted
    (frame,) = frames_of(CHAT_COMPLETIONS.error_event(error, "r1"))
    assert (frame.event, json.loads(frame.data or b"")) == (b"", wanted)


def test_refused_body_is_its_own() -> None:
    """An upstream's own error body comes back as it is, whatever it is."""
    assert CHAT_COMPLETIONS.error_body(errors.Refused("u", 429, (), b"<html>"), "r1") == b"<html>"


@pytest.mark.parametrize(
    ("body", "event"),
    [
        (b'{"x":1,"error": {"message":"slow",\n "code":1.0}}', b'data: {"error":{"message":"slow",  "code":1.0}}\n\n'),
        (b'{"error":"slow"}', b'data: {"error":"slow"}\n\n'),
    ],
)
def test_refused_event(body: bytes, event: bytes) -> None:
    """In a stream, an upstream's own error goes out as an event on one line."""
    assert CHAT_COMPLETIONS.error_event(errors.Refused("u", 429, (), body), "r1") == event


@pytest.mark.parametrize(
    ("status", "kind"), [(429, "rate_limit_error"), (400, "invalid_request_error"), (529, "server_error")]
)
@pytest.mark.parametrize("body", [b"<html>", b'{"error":null}', b"[]", b""])
def test_refused_without_an_error(body: bytes, status: int, kind: str) -> None:
    """A body without an error in it becomes one of the gateway's own."""
    (frame,) = frames_of(CHAT_COMPLETIONS.error_event(errors.Refused("u", status, (), body), "r1"))
    assert json.loads(frame.data or b"")["error"]["type"] == kind


def test_reported_goes_out_unchanged() -> None:
    """An error event of the upstream's goes out as it came."""
    data = b'{"error": {"message": "Overloaded"},"x":1}'
    error = errors.Reported("u", data)
    assert CHAT_COMPLETIONS.error_event(error, "r1") == b"data: " + data + b"\n\n"
    assert CHAT_COMPLETIONS.error_body(error, "r1") == data


@pytest.mark.parametrize("data", [b"out of memory", b'{"message":"no"}'])
def test_reported_without_an_error(data: bytes) -> None:
    """An error event without an `error` member becomes one of the gateway's own."""
    (frame,) = frames_of(CHAT_COMPLETIONS.error_event(errors.Reported("u", data), "r1"))
    assert json.loads(frame.data or b"")["error"]["code"] == "upstream_event"


def test_ping_is_a_comment() -> None:
    """What keeps a stream alive is no event: clients choke on one."""
    (frame,) = frames_of(CHAT_COMPLETIONS.ping)
    assert (frame.event, frame.data) == (b"", None)
