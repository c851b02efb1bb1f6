"""May a call be tried again, and how long is the pause before it? Arithmetic only.

This file must not know how a call is made. Times are seconds; `now` is the wall clock, as HTTP dates are.
"""

from __future__ import annotations

import math
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

RETRYABLE = frozenset({408, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same call may succeed; 529 is Anthropic's "overloaded". The SDKs do the same."""

FIRST_PAUSE = 0.25
"""The most that the first pause takes; each further one may take twice as much."""

LONGEST_PAUSE = 4.0
"""The most that a pause takes which the upstream did not ask for."""

PATIENCE = 10.0
"""A longer `retry-after` than this is the client's to wait for."""


def backoff(tries: int, draw: float) -> float:
    """The pause after so many tries (1 is the first): exponential, with full jitter.

    Args:
        tries: Tries so far.
        draw: A random number in [0, 1).
    """
    return draw * min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries - 1, 16))


def asked_pause(headers: Mapping[bytes, bytes], now: float) -> float | None:
    """The pause that `retry-after-ms` or `retry-after` (seconds or a date) asks for, or None.

    RFC 9110, section 10.2.3; `retry-after-ms` is OpenAI's.
    """
    milliseconds = _number(headers.get(b"retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    given = headers.get(b"retry-after")
    seconds = _number(given)
    if seconds is not None or given is None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(given.decode("latin-1")).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _number(value: bytes | None) -> float | None:
    try:
        number = float(value or b"")
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None


def pause_after_status(
    status: int, headers: Mapping[bytes, bytes], *, tries: int, draw: float, now: float
) -> float | None:
    """How long to wait before the call is made again, or None: this answer is the answer."""
    if status not in RETRYABLE or headers.get(b"x-should-retry") == b"false":
        return None
    asked = asked_pause(headers, now)
    if asked is None:
        return backoff(tries, draw)
    return asked if asked <= PATIENCE else None
