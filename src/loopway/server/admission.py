"""How many exchanges are under way, and whether more may come. Also the gateway's readiness.

This file must not know what an exchange is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from loopway.errors import Draining, ExchangeError, Full

_LOOK_SECONDS = 0.05
"""How often those inside are looked at: limits of time hold to this."""


class Interruptible(Protocol):
    """An exchange that can be told to end."""

    def look(self, now: float) -> None:
        """Do what is due at this time of the event loop, in seconds."""
        ...

    def interrupt(self, why: ExchangeError) -> None:
        """End with this error."""
        ...


class Admission:
    """The door. One per gateway process.

    Args:
        most: Exchanges at once; `server.max_concurrent_requests`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside: set[Interruptible] = set()
        self._left: set[asyncio.Task[Any]] = set()
        self._empty = asyncio.Event()
        self._looking: asyncio.TimerHandle | None = None
        self.ready = False
        self.draining = False

    @property
    def in_flight(self) -> int:
        """Exchanges under way."""
        return len(self._inside)

    def enter(self, who: Interruptible) -> None:
        """Let an exchange in. Raises `Draining` or `Full`; then nothing of its body has been read."""
        if self.draining:
            raise Draining
        if len(self._inside) >= self._most:
            raise Full
        self._inside.add(who)
        if self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(_LOOK_SECONDS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for all: two of its own would cost a short exchange more than its admission."""
        self._looking = loop.call_later(_LOOK_SECONDS, self._look, loop)
        now = loop.time()
        for who in tuple(self._inside):
            who.look(now)

    def leave(self, who: Interruptible) -> None:
        """An exchange is over."""
        self._inside.discard(who)
        if not self._inside:
            self._empty.set()
            if self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what an exchange leaves behind when its answer is out. `drained` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    async def drain(self, seconds: float) -> None:
        """Let nobody in any more, wait for who is inside, then end what is left with the dialect's error."""
        self.draining = True
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        await self._wait_empty(seconds)
        for who in list(self._inside):
            who.interrupt(Draining())
        await self._wait_empty(max(1.0, end - loop.time()))
        if self._left:
            _, late = await asyncio.wait(self._left, timeout=max(1.0, end - loop.time()))
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)

    async def _wait_empty(self, seconds: float) -> None:
        if not self._inside:
            return
        self._empty.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return
