"""Errors in Anthropic's shape.

This file must not know where in an exchange an error came up. The shape: https://docs.anthropic.com/en/api/errors
"""

from __future__ import annotations

from http.client import responses
from typing import Any, Literal

import msgspec

from loopway.dialects.sse import encode
from loopway.errors import ExchangeError, Refused, Reported, ThreadUnsupported

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_SERVER_ERROR = 500


class _Error(msgspec.Struct):
    type: str
    message: str


class _Shape(msgspec.Struct):
    type: Literal["error"]
    error: _Error


_SHAPE = msgspec.json.Decoder(_Shape)


def body(error: ExchangeError, request_id: str) -> bytes:
    """An error as a JSON body; what an upstream refused with, or reported before all else, is its own, unchanged."""
    if isinstance(error, Reported) and _in_shape(error.data):
        return error.data
    return error.body if isinstance(error, Refused) else _built(error, request_id)


def event(error: ExchangeError, request_id: str) -> bytes:
    """An error as an event: the upstream's own words where they are in Anthropic's shape."""
    if isinstance(error, Reported) and _in_shape(error.data):
        data = error.data
    elif isinstance(error, Refused) and _in_shape(error.body):
        data = error.body
    else:
        data = _built(error, request_id)
    return encode("error", data.strip().replace(b"\r", b" ").replace(b"\n", b" "))


def _built(error: ExchangeError, request_id: str) -> bytes:
    told: dict[str, Any] = {"type": _type(error.status), "message": _message(error)}
    if isinstance(error, ThreadUnsupported):
        told["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return msgspec.json.encode({"type": "error", "error": told, "request_id": request_id})


def _message(error: ExchangeError) -> str:
    if isinstance(error, Refused) and error.status in responses:
        return f"{error.text} ({responses[error.status]})"
    return error.text


def _type(status: int) -> str:
    return _TYPES.get(status) or ("api_error" if status >= _SERVER_ERROR else "invalid_request_error")


def _in_shape(data: bytes) -> bool:
    """Whether this is an error in Anthropic's shape, which goes on as it is."""
    try:
        _SHAPE.decode(data)
        data.decode()
    except (ValueError, RecursionError):
        return False
    return True
