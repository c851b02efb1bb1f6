"""A short load on a running gateway with every outcome, every abort and every kind of failure.

It must not know what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import httpx

from loopway.testing import Recorded, Reply, call, cut, hold, text
from served import Served, running
from telemetry.test_tracing import Puppet, does, lookup

KEY = "load-key"
_fresh = itertools.count()


class Slow(Puppet):
    """Takes its time, so that the loop's own time is over."""

    async def async_build_agentic_loop_plan(self, *arguments: Any, **more: Any) -> Any:
        if more["messages"][0]["content"] == "slow":
            await asyncio.sleep(0.45)  # the time that a slow hook takes, not a wait for anything
        return await super().async_build_agentic_loop_plan(*arguments, **more)


def _says(request: Recorded) -> Reply:
    """What the model says: a user's words are the name of a scene, an answered call ends some of them."""
    messages = request.body["messages"]
    scene = messages[0]["content"]
    if scene in ("rerun", "tools") and len(messages) > 1:
        return Reply(text("done"))
    usage = {"input_tokens": 30, "output_tokens": 20, "cache_read_input_tokens": 10}
    says = {
        "rerun": lambda: does("rerun", next(_fresh)),
        "slow": lambda: does("rerun", next(_fresh)),
        "for ever": lambda: does("rerun", next(_fresh)),
        "again": lambda: does("rerun", 7),
        "override": lambda: does(scene),
        "terminate": lambda: does(scene),
        "raise": lambda: does(scene),
        "tools": lambda: Reply(*(call("lookup", {"n": number}) for number in (1, -1))),
        "many tools": lambda: Reply(*(call("lookup", {"n": next(_fresh)}) for _ in range(9))),
        "429": lambda: Reply(error=(429, "slow down")),
        "cut": lambda: Reply(text("fo"), cut()),
        "hang": lambda: Reply(text("read me", pieces=1), hold(asyncio.Event().wait)),
    }
    return says.get(scene, lambda: Reply(text("done"), usage=usage))()


SCENES = (
    "plain", "plain", "plain", "rerun", "for ever", "again", "override", "terminate", "raise", "tools", "many tools",
    "429", "slow",
)  # fmt: skip


@contextlib.asynccontextmanager
async def gateway() -> AsyncIterator[Served]:
    """A gateway whose limits a scene can reach."""
    async with running(
        hooks=[Slow(), lookup],
        script={"demo": _says, "other": _says},
        key=KEY,
        server={"max_concurrent_requests": 20},
        loop={"max_agentic_loops": 2, "max_tool_calls": 8, "max_seconds": 0.4},
    ) as served:
        yield served


async def load(served: Served) -> None:
    """Every scene once or more, in both dialects, streaming and not."""
    tool = {"name": "puppet", "input_schema": {"type": "object"}}

    def body(scene: str, **more: Any) -> dict[str, Any]:
        asked = {"role": "user", "content": scene}
        return {"model": "demo", "max_tokens": 100, "messages": [asked], "tools": [tool], **more}

    async def post(path: str, sent: Any, **headers: str) -> httpx.Response:
        return await served.http.post(path, json=sent, headers=headers)

    async def leave() -> None:
        async with served.http.stream("POST", "/v1/messages", json=body("hang", stream=True)) as answer:
            async for piece in answer.aiter_text():
                if "read me" in piece:
                    return

    await asyncio.gather(
        *(post("/v1/messages", body(scene)) for scene in SCENES),
        post("/v1/messages", body("plain", stream=True)),
        post("/v1/messages", body("cut", stream=True)),
        leave(),
        return_exceptions=True,
    )
    await asyncio.gather(
        post("/v1/chat/completions", {"model": "other", "messages": [{"role": "user", "content": "plain"}]}),
        post("/v1/messages", body("plain", model="mistyped")),
        post("/v1/messages", body("plain"), **{"x-api-key": "wrong"}),
        *(post("/v1/messages", body("slow")) for _ in range(25)),
    )
