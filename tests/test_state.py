"""`loopway.state`: what outlives an exchange, bounded and for a time."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog

from loopway.state import HookCache, MemoryStore, RedisStore, Store


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# --- the cache of pre-call hooks ---


def test_what_was_set_is_found() -> None:
    """A value comes back under its key, as the same object."""
    cache, value = HookCache(), {"a": 1}
    cache.set_cache("k", value)
    assert cache.get_cache("k") is value


def test_what_was_never_set_is_none() -> None:
    """A key that is not there is None, and no error."""
    assert HookCache().get_cache("k") is None


def test_a_later_value_replaces_the_first() -> None:
    """Setting a key again replaces its value."""
    cache = HookCache()
    cache.set_cache("k", 1)
    cache.set_cache("k", 2)
    assert cache.get_cache("k") == 2


@pytest.mark.parametrize(
    ("ttl", "after", "found"),
    [(None, 59.9, True), (None, 60.0, False), (5, 4.9, True), (5, 5.0, False), (0, 0.0, False), (0.5, 0.4, True)],
)
def test_a_value_lives_for_its_time(ttl: float | None, after: float, found: bool) -> None:
    """A value is there until its own `ttl`, or that of the cache, is over."""
    clock = Clock()
    cache = HookCache(seconds=60.0, clock=clock)
    cache.set_cache("k", 1, ttl=ttl)
    clock.now += after
    assert (cache.get_cache("k") == 1) is found


def test_setting_again_begins_a_new_time() -> None:
    """The time of a value that is set again is the new one."""
    clock = Clock()
    cache = HookCache(clock=clock)
    cache.set_cache("k", 1, ttl=5)
    clock.now += 4
    cache.set_cache("k", 2, ttl=5)
    clock.now += 4
    assert cache.get_cache("k") == 2


def test_the_least_recently_used_entry_goes_first() -> None:
    """A full cache forgets what was neither set nor read for the longest time."""
    cache = HookCache(entries=2)
    cache.set_cache("a", 1)
    cache.set_cache("b", 2)
    assert cache.get_cache("a") == 1
    cache.set_cache("c", 3)
    assert [cache.get_cache(key) for key in "abc"] == [1, None, 3]


def test_a_cache_never_grows_beyond_its_entries() -> None:
    """A thousand keys leave as many entries as are allowed."""
    cache = HookCache(entries=10)
    for number in range(1000):
        cache.set_cache(str(number), number)
    assert sum(cache.get_cache(str(number)) is not None for number in range(1000)) == 10


def test_what_is_deleted_is_gone() -> None:
    """Deleting forgets a value; a key that is not there is no error."""
    cache = HookCache()
    cache.set_cache("k", 1)
    cache.delete_cache("k")
    cache.delete_cache("k")
    assert cache.get_cache("k") is None


@pytest.mark.parametrize("options", [{}, {"litellm_parent_otel_span": None, "local_only": True}])
async def test_the_asynchronous_names_do_the_same(options: dict[str, Any]) -> None:
    """The `async_` methods work on the same entries, and take options that mean nothing here."""
    cache = HookCache()
    await cache.async_set_cache("k", 1, ttl=60, **options)
    assert cache.get_cache("k") == await cache.async_get_cache("k", **options) == 1
    await cache.async_delete_cache("k")
    assert await cache.async_get_cache("k") is None


# --- the store: memory, or a Redis ---


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """The address of a Redis of this test's own, on a socket in its folder."""
    command = shutil.which("redis-server") or shutil.which("valkey-server")
    if command is None:
        pytest.skip("there is no redis-server on this machine")
    path = tmp_path / "redis.sock"
    arguments = ("--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(tmp_path))
    with subprocess.Popen([command, *arguments], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert any(b"eady to accept connections" in line for line in server.stdout)
        yield f"unix://{path}"
        server.kill()


@pytest_asyncio.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    made: Store = MemoryStore(most_bytes=10_000)
    if request.param == "redis":
        made = RedisStore(request.getfixturevalue("redis"))
    yield made
    await made.aclose()


async def test_a_store_keeps_bytes_under_keys(store: Store) -> None:
    """Values come back in the order of the keys, None for what is not there; a later value replaces the first."""
    await store.put("a", b"first")
    await store.put("a", b"\x00\xff")
    await store.put("b", b"")
    assert await store.get(["b", "none", "a"]) == [b"", None, b"\x00\xff"]
    assert await store.get([]) == []


async def test_a_store_forgets(store: Store) -> None:
    """What is forgotten is gone; a key that is not there is no error."""
    await store.put("a", b"1")
    await store.forget("a")
    await store.forget("a")
    assert await store.get(["a"]) == [None]


async def test_one_claim_wins(store: Store) -> None:
    """Of several claims at once one wins, until it is let go."""
    taken = await asyncio.gather(*(store.claim("k", 60) for _ in range(5)))
    assert sorted(taken) == [False] * 4 + [True]
    await store.forget("k")
    assert await store.claim("k", 60) is True


async def test_memory_keeps_for_its_time() -> None:
    """A value and a claim end with their own times."""
    clock = Clock()
    store = MemoryStore(most_bytes=1000, seconds=10, clock=clock)
    await store.put("a", b"1")
    assert await store.claim("c", 5)
    clock.now += 5
    assert await store.claim("c", 5)
    assert await store.get(["a"]) == [b"1"]
    clock.now += 5
    assert await store.get(["a"]) == [None]


async def test_memory_is_bounded_in_bytes() -> None:
    """What is kept together never grows beyond the bytes that it may have; the oldest go."""
    store = MemoryStore(most_bytes=3000)
    for number in range(100):
        await store.put(str(number), bytes(500))
    kept = [value for value in await store.get([str(number) for number in range(100)]) if value is not None]
    assert 1 <= len(kept) <= 6
    assert (await store.get(["99"])) != [None]


@pytest.fixture
def warnings() -> Any:
    """What is logged, as data."""
    with structlog.testing.capture_logs() as lines:
        yield lines


async def test_a_value_without_room_is_a_warning(warnings: Any) -> None:
    """A value larger than all the room is not kept, and that is said once, with its size."""
    store = MemoryStore(most_bytes=100)
    await store.put("a", bytes(1000))
    assert await store.get(["a"]) == [None]
    assert warnings == [{"event": "state_too_large", "bytes": 1000, "log_level": "warning"}]


async def test_a_redis_that_is_away_loses_what_it_held_and_nothing_else(tmp_path: Path, warnings: Any) -> None:
    """Nothing is found, nothing raises, everybody may claim, and each question is a warning without the address."""
    store = RedisStore(f"unix://{tmp_path}/nobody.sock?password=secret")
    await store.put("a", b"1")
    assert await store.get(["a", "b"]) == [None, None]
    assert await store.claim("k", 60) is True
    await store.forget("a")
    await store.aclose()
    assert [line["question"] for line in warnings] == ["put", "get", "claim", "forget"]
    assert "secret" not in str(warnings)


async def test_redis_forgets_after_its_time(redis: str) -> None:
    """Redis itself ends a value: its time to live is the store's."""
    store = RedisStore(redis, seconds=60)
    await store.put("a", b"1")
    assert 0 < await store._redis.pttl("loopway:a") <= 60_000
    assert await store.claim("c", 5)
    assert 0 < await store._redis.pttl("loopway:c") <= 5_000
    await store.aclose()
