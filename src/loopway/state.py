"""What outlives an exchange: bounded memory with a time to live.

This file must not know what is kept. It is per process; replicas share nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cachetools import TLRUCache

_ENTRIES = 10_000
_SECONDS = 3600.0


class HookCache:
    """What a pre-call hook gets as `cache`: the few methods of LiteLLM's cache that such hooks use.

    Args:
        entries: Most entries; the least recently used goes first.
        seconds: How long an entry lives unless it is set with a `ttl` of its own.
        clock: Seconds, rising.
    """

    def __init__(
        self, entries: int = _ENTRIES, seconds: float = _SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._kept: TLRUCache[str, tuple[Any, float]] = TLRUCache(
            entries, ttu=lambda _key, value, now: now + value[1], timer=clock
        )

    def get_cache(self, key: str, **_options: Any) -> Any:
        """The value, or None if there is none or its time is over."""
        found = self._kept.get(key)
        return None if found is None else found[0]

    def set_cache(self, key: str, value: Any, *, ttl: float | None = None, **_options: Any) -> None:
        """Keep a value for `ttl` seconds."""
        self._kept[key] = (value, self._seconds if ttl is None else float(ttl))

    def delete_cache(self, key: str) -> None:
        """Forget a value; nothing happens if there is none."""
        self._kept.pop(key, None)

    async def async_get_cache(self, key: str, **options: Any) -> Any:
        """As `get_cache`."""
        return self.get_cache(key, **options)

    async def async_set_cache(self, key: str, value: Any, *, ttl: float | None = None, **options: Any) -> None:
        """As `set_cache`."""
        self.set_cache(key, value, ttl=ttl, **options)

    async def async_delete_cache(self, key: str) -> None:
        """As `delete_cache`."""
        self.delete_cache(key)
