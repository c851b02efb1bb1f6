"""Errors at the HTTP edge that no exchange has seen: no key, no room, no such path.

This file must not know why something failed.
"""

from __future__ import annotations

from loopway.dialects.base import Dialect, status_of
from loopway.errors import ExchangeError, MethodNotAllowed


def answer(error: ExchangeError, dialect: Dialect, request_id: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body of an error."""
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    return status_of(error, dialect), headers, dialect.error_body(error, request_id)
