"""`loopway.state`: what outlives an exchange, bounded and for a time."""

from __future__ import annotations

from typing import Any

import pytest

from loopway.state import HookCache


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


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
