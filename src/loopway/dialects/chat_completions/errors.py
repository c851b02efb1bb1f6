"""Errors in OpenAI's shape, as a body and inside a stream.

This file must not know when an error is shown. https://platform.openai.com/docs/guides/error-codes
"""

from __future__ import annotations

from typing import Any

import msgspec

from loopway.dialects.chat_completions.chunk import framed
from loopway.dialects.members import Members, NotAnObject
from loopway.errors import ExchangeError, Full, Refused, Reported

_CODES = {401: "invalid_api_key", 403: "model_not_allowed", 404: "model_not_found", 413: "request_too_large"}
_SERVER = 500
_MANY = 429


def body(error: ExchangeError, _request_id: str) -> bytes:
    """The JSON body of an error; an upstream's own body is its own."""
    if isinstance(error, Refused):
        return error.body
    if isinstance(error, Reported) and _error_member(error.data) is not None:
        return error.data
    return _built(error)


def event(error: ExchangeError, _request_id: str) -> bytes:
    """A bare `data` event: clients of this dialect know no `event: error`."""
    if isinstance(error, Reported) and _error_member(error.data) is not None:
        return framed(error.data)
    if isinstance(error, Refused) and (member := _error_member(error.body)) is not None:
        return framed(b'{"error":' + member + b"}")
    return framed(_built(error))


def _error_member(raw: bytes) -> bytes | None:
    try:
        member = Members.parse(raw).raw("error")
    except NotAnObject:
        return None
    return None if member == b"null" else member


def _built(error: ExchangeError) -> bytes:
    path = error.path
    shown: dict[str, Any] = {
        "message": error.text,
        "type": _type(error.status),
        "param": (path.removeprefix("$").removeprefix(".") or None) if path else None,
        "code": _code(error),
    }
    return msgspec.json.encode({"error": shown})


def _type(status: int) -> str:
    if status == _MANY:
        return "rate_limit_error"
    return "invalid_request_error" if status < _SERVER else "server_error"


def _code(error: ExchangeError) -> str | None:
    if isinstance(error, Full):
        return "overloaded"
    return error.kind if error.status >= _SERVER else _CODES.get(error.status)
