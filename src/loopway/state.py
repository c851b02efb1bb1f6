"""What outlives an exchange: bounded memory with a time to live, or a Redis that replicas share.

This file must not know what is kept. A store that cannot be reached loses what it held: callers go on without it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from cachetools import TLRUCache

if TYPE_CHECKING:
    from redis.asyncio import Redis

_ENTRIES = 10_000
_SECONDS = 3600.0
_REDIS_SECONDS = 2.0
"""Most time that one question to Redis may take."""


class Store(Protocol):
    """Keeps bytes under keys for a time."""

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """What is kept under these keys, in their order."""
        ...

    async def put(self, key: str, value: bytes) -> None:
        """Keep a value."""
        ...

    async def claim(self, key: str, seconds: float) -> bool:
        """Take a key that nobody holds, for so many seconds. False if somebody holds it."""
        ...

    async def forget(self, key: str) -> None:
        """Forget a value, or let a claim go."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


class MemoryStore:
    """In this process. The oldest goes first when there is no room.

    Args:
        most_bytes: Of all keys and values together.
        seconds: How long a value is kept.
        clock: Seconds, rising.
    """

    def __init__(
        self, *, most_bytes: int, seconds: float = _SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._kept: TLRUCache[str, tuple[bytes, float]] = TLRUCache(
            most_bytes,
            ttu=lambda _key, value, now: now + value[1],
            timer=clock,
            getsizeof=lambda value: len(value[0]) + 200,
        )

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """What is kept under these keys."""
        found = [self._kept.get(key) for key in keys]
        return [None if one is None else one[0] for one in found]

    async def put(self, key: str, value: bytes) -> None:
        """Keep a value; one that is larger than all the room is not kept."""
        try:
            self._kept[key] = (value, self._seconds)
        except ValueError:
            self._kept.pop(key, None)
            structlog.get_logger().warning("state_too_large", bytes=len(value))

    async def claim(self, key: str, seconds: float) -> bool:
        """Take a key."""
        if self._kept.get(key) is not None:
            return False
        self._kept[key] = (b"1", seconds)
        return True

    async def forget(self, key: str) -> None:
        """Forget a value."""
        self._kept.pop(key, None)

    async def aclose(self) -> None:
        """Nothing to close."""


class RedisStore:
    """In a Redis that all replicas share. A Redis that is away is a warning, and nothing is found.

    Args:
        url: As `redis://host:6379/0`; may hold a password, which no log shows.
        seconds: How long a value is kept.
    """

    def __init__(self, url: str, *, seconds: float = _SECONDS) -> None:
        from redis.asyncio import Redis  # noqa: PLC0415 - only where it is used

        self._seconds = seconds
        self._redis: Redis = Redis.from_url(
            url,
            socket_timeout=_REDIS_SECONDS,
            socket_connect_timeout=_REDIS_SECONDS,
            health_check_interval=30,
        )

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """What is kept under these keys."""
        if not keys:
            return []
        found = await self._ask("get", lambda: self._redis.mget([_PREFIX + key for key in keys]))
        return list(found) if found is not None else [None] * len(keys)

    async def put(self, key: str, value: bytes) -> None:
        """Keep a value."""
        await self._ask("put", lambda: self._redis.set(_PREFIX + key, value, px=int(self._seconds * 1000)))

    async def claim(self, key: str, seconds: float) -> bool:
        """Take a key; a Redis that is away lets everybody."""
        taken = await self._ask(
            "claim", lambda: self._redis.set(_PREFIX + key, b"1", nx=True, px=int(seconds * 1000)), lost=True
        )
        return bool(taken)

    async def forget(self, key: str) -> None:
        """Forget a value."""
        await self._ask("forget", lambda: self._redis.delete(_PREFIX + key))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    @staticmethod
    async def _ask(what: str, question: Callable[[], Any], *, lost: Any = None) -> Any:
        from redis.exceptions import RedisError  # noqa: PLC0415

        try:
            async with asyncio.timeout(_REDIS_SECONDS * 2):
                return await question()
        except (RedisError, OSError, TimeoutError) as away:
            structlog.get_logger().warning("state_unreachable", question=what, error=type(away).__name__)
            return lost


_PREFIX = "loopway:"


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
