"""What a gateway holds while it does nothing, counted before and after a fault, and an exchange that runs beside it.

This file must not know any fault.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from inprocess import BOTH, Run, gateway_over, request_body
from loopway.testing import Reply, call, hold, text
from puppets import Puppet
from streams import frames, is_error, live, message, words
from upstream.conftest import Answer, Call, Link, Wire

SETTLED_SECONDS = 5.0
HASTY_SECONDS = 0.1
"""`read_timeout_seconds` where a silence is the fault."""
BESIDE_SECONDS = 0.2
"""How long each of the exchanges that run beside faults, one behind the other, is in mid-answer."""
STEADY = "steady"
"""The model of the exchange that runs beside."""


@dataclass(frozen=True)
class Counts:
    """What is there.

    Attributes:
        tasks: Tasks of the event loop, without those of a server on connections that wait for a call.
        exchanges: Exchanges under way.
        clients: Connections of clients.
        calls: Connections to upstreams that are in use.
        descriptors: Open files of the process, without both ends of connections to upstreams that wait for a call.
    """

    tasks: int
    exchanges: int
    clients: int
    calls: int
    descriptors: int


def connectors(run: Run) -> list[Any]:
    """Aiohttp's pools of a gateway, as far as a call has opened them."""
    clients = [upstream._transport.client for upstream in run.gateway.upstreams.values()]  # type: ignore[attr-defined]
    return [client.connector for client in clients if hasattr(client, "connector") and client.connector is not None]


def counts(run: Run) -> Counts:
    """Everything that could leak, at this moment."""
    pools = connectors(run)
    idle = sum(len(waiting) for pool in pools for waiting in pool._conns.values())
    return Counts(
        tasks=len(asyncio.all_tasks()) - idle,
        exchanges=run.gateway.admission.in_flight,
        clients=len(run.serving._main.server_state.connections),
        calls=sum(len(pool._acquired) for pool in pools),
        descriptors=len(list(Path("/proc/self/fd").iterdir())) - 2 * idle,
    )


async def at_rest(run: Run) -> Counts:
    """Everything that is there while nothing is under way; nothing of what was before is counted any more."""
    await run.fresh()
    now, last = counts(run), None
    async with asyncio.timeout(SETTLED_SECONDS):
        while now != last or now.exchanges or now.clients or now.calls:
            await asyncio.sleep(0.005)  # looked at, not waited for: nothing tells of a connection that is being closed
            now, last = counts(run), now
    return now


async def settled(run: Run, before: Counts) -> None:
    """Wait until there is no more than before. Fails with what is left."""
    now = counts(run)
    try:
        async with asyncio.timeout(SETTLED_SECONDS):
            while any(getattr(now, name) > getattr(before, name) for name in Counts.__dataclass_fields__):
                await asyncio.sleep(0.005)  # looked at, not waited for: nothing tells of a descriptor
                now = counts(run)
    except TimeoutError:
        left = {name: (getattr(before, name), getattr(now, name)) for name in Counts.__dataclass_fields__}
        tasks = [repr(task)[:300] for task in asyncio.all_tasks()]
        raise AssertionError(f"left behind (before, after): {left}; {tasks}") from None


class Gates:
    """A gate per exchange that runs beside."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Event] = []

    def replies(self, request: Any) -> Reply:
        """A tool call; then an answer that waits in its middle."""
        last = request.body["messages"][-1]
        if last["role"] == "user" and isinstance(last["content"], str):
            return Reply(call("mine", {"n": 1}))
        gate = asyncio.Event()
        self.waiting.append(gate)
        return Reply(text("It goes ", pieces=1), hold(gate), text("on.", pieces=1))


@asynccontextmanager
async def rig(
    answers: Mapping[str, Answer],
    hooks: Sequence[object] = (),
    *,
    scripts: Mapping[str, Any] | None = None,
    hasty: Container[str] = (),
    **sections: Any,
) -> AsyncIterator[Run]:
    """A gateway over a wire that does for each model what is said here, and over a scripted model.

    Args:
        answers: What the server of the upstream `wire` does, by the model's name.
        hooks: Beside the one that answers calls of `mine`.
        scripts: More models of the scripted upstream.
        hasty: Models of the wire that are not waited for long.
        sections: Of the configuration; what `upstreams` says of `wire` is added to it.
    """
    gates = Gates()
    wire = Wire()

    async def answer(one: Call, link: Link) -> object:
        name = next(name for name in answers if f'"model":"{name}"'.encode() in one.body.replace(b'": ', b'":'))
        what = answers[name]
        if isinstance(what, bytes):
            await link.send(what)
            return True
        return await what(one, link)

    wire.script(answer)
    async with AsyncExitStack() as stack:
        await wire.start()
        stack.push_async_callback(wire.stop)
        more = dict(sections.pop("upstreams", {}))
        settings = {"base_url": wire.url, "dialects": list(BOTH), "max_retries": 0, **more.pop("wire", {})}
        run = await stack.enter_async_context(
            gateway_over(
                {STEADY: gates.replies, **(scripts or {})},
                [*hooks, Puppet()],
                models=[
                    *({"name": name, "upstream": "hasty" if name in hasty else "wire"} for name in answers),
                    *sections.pop("models", []),
                ],
                upstreams={
                    "wire": settings,
                    "hasty": {**settings, "read_timeout_seconds": HASTY_SECONDS},
                    **more,
                },
                **sections,
            )
        )
        run.gates = gates  # type: ignore[attr-defined]
        for dialect in ("messages", "chat_completions"):  # opens what stays open: pools, certificates, the loop's own
            async with beside(run, dialect):
                pass
        yield run


@asynccontextmanager
async def beside(run: Run, dialect: str = "messages") -> AsyncIterator[None]:
    """An exchange of two iterations that is in mid-answer while this block runs, and is whole behind it."""
    gates: Gates = run.gates  # type: ignore[attr-defined]
    gates.waiting.clear()
    async with live(run, dialect, request_body(dialect, STEADY)) as stream:
        assert stream.answer.status_code == 200
        await stream.until(b"It goes ")
        yield
        for gate in gates.waiting:
            gate.set()
        got = await stream.rest()
    message(dialect, got)
    assert words(dialect, got) == "It goes on."


async def unharmed(run: Run, *faults: Callable[[], Any], dialect: str = "messages") -> list[Any]:
    """Let these happen, one behind the other: nothing is left of them, the exchange beside is whole. What they gave."""
    before = await at_rest(run)
    async with beside(run, dialect):
        given = [await fault() for fault in faults]
    await run.fresh()
    await settled(run, before)
    return given


async def at_once(run: Run, *faults: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Let these happen together: nothing is left, all exchanges that ran beside them meanwhile are whole.

    For faults that last as long as an exchange may: none beside could be in mid-answer from their begin to their end.
    What they gave, or raised.
    """
    before = await at_rest(run)
    happening = [asyncio.ensure_future(fault()) for fault in faults]
    beside_them = 0
    for dialect in itertools.cycle(BOTH):
        async with beside(run, dialect):
            _, waiting = await asyncio.wait(happening, timeout=BESIDE_SECONDS)
        beside_them += 1
        if not waiting:
            break
    assert beside_them > 1
    await run.fresh()
    await settled(run, before)
    return await asyncio.gather(*happening, return_exceptions=True)


def every(run: Run, model: str, **more: Any) -> list[Callable[[], Awaitable[Any]]]:
    """A plain request in each dialect."""
    return [functools.partial(run.post, one, request_body(one, model, **more)) for one in BOTH]


def told(answer: httpx.Response) -> int:
    """The status of an answer; that of a stream which an error event ends is 500."""
    body = answer.content
    streamed = answer.headers.get("content-type", "").startswith("text/event-stream")
    return 500 if streamed and is_error(frames(body)[-1]) else answer.status_code
