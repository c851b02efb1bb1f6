"""The door: who is looked at while inside, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from loopway.errors import ExchangeError
from loopway.server import admission
from loopway.server.admission import Admission


class Exchange:
    """Counts how often it is looked at."""

    def __init__(self) -> None:
        self.looks = 0
        self.twice = asyncio.Event()

    def look(self, now: float) -> None:
        assert now <= asyncio.get_running_loop().time()
        self.looks += 1
        if self.looks == 2:
            self.twice.set()

    def interrupt(self, why: ExchangeError) -> None:
        raise AssertionError(why)


async def test_whoever_is_inside_is_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more once it has left, while others still are."""
    monkeypatch.setattr(admission, "_LOOK_SECONDS", 0.001)
    door = Admission(2)
    one, other = Exchange(), Exchange()
    door.enter(one)
    door.enter(other)
    async with asyncio.timeout(5):
        await one.twice.wait()
    door.leave(one)
    seen, other.looks = one.looks, 0
    other.twice.clear()
    async with asyncio.timeout(5):
        await other.twice.wait()
    door.leave(other)
    assert one.looks == seen


def test_nobody_inside_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a door serves another event loop as well as its first."""
    monkeypatch.setattr(admission, "_LOOK_SECONDS", 0.001)
    door = Admission(1)

    async def stay() -> None:
        inside = Exchange()
        door.enter(inside)
        async with asyncio.timeout(5):
            await inside.twice.wait()
        door.leave(inside)
        assert door._looking is None

    asyncio.run(stay())
    asyncio.run(stay())
