"""Clients for the tests of a gateway's life: loops in JSON and in streams, and what a good answer to them looks like.

Must not know who starts or ends the gateway.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from loopway.demo import TOOL
from loopway.testing import Recorded, Reply, call, hold, text

HOOK = "from loopway.demo import Weather\n\nhook = Weather()\n"
WORDS = "In Oslo it rains."
JSON, STREAM = "json", "stream"


def written(folder: Path, model_url: str, **server: Any) -> Path:
    """A configuration with one model and the demo's hook, in a folder."""
    (folder / "life_hook.py").write_text(HOOK)
    config = {
        "server": {"port": 0, "admin_port": 0, "drain_seconds": 20, **server},
        "auth": {"mode": "open"},
        "upstreams": {"up": {"base_url": model_url, "dialects": ["messages", "chat_completions"], "max_retries": 0}},
        "models": [{"name": "m", "upstream": "up"}, {"name": "other", "upstream": "up"}],
        "hooks": ["life_hook.hook"],
    }
    path = folder / "loopway.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def loops(gate: Callable[[], Awaitable[object]] | None = None) -> Callable[[Recorded], Reply]:
    """A script: a tool call first; the answer behind its result, the second half of which waits for the gate."""

    def says(request: Recorded) -> Reply:
        last = request.body["messages"][-1]
        if not isinstance(last["content"], list):
            return Reply(call(TOOL, {"city": "Oslo"}))
        first, second = WORDS[:8], WORDS[8:]
        blocks = [text(first), hold(gate), text(second)] if gate is not None else [text(WORDS)]
        return Reply(*blocks)

    return says


def body(*, stream: bool, model: str = "m", size: int = 0) -> dict[str, Any]:
    """A request that makes the model call the tool."""
    question = {"role": "user", "content": "How is the weather in Oslo?" + " " * size}
    return {"model": model, "max_tokens": 100, "messages": [question], "stream": stream}


async def ask(
    session: aiohttp.ClientSession, url: str, kind: str, model: str = "m"
) -> tuple[int, Mapping[str, str], bytes]:
    """One request: status, headers, body."""
    async with session.post(f"{url}/v1/messages", json=body(stream=kind == STREAM, model=model)) as answer:
        return answer.status, answer.headers, await answer.read()


def wrong(kind: str, answer: tuple[int, Mapping[str, str], bytes]) -> str:
    """What keeps an answer from being the whole one; nothing if it is."""
    status, _, raw = answer
    if status != 200:
        return f"status {status}: {raw[:200]!r}"
    if kind == JSON:
        said = "".join(block["text"] for block in json.loads(raw)["content"])
        return "" if said == WORDS else f"it says {said!r}"
    events = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: ")]
    kinds = Counter(event["type"] for event in events)
    said = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    if (kinds["message_start"], kinds["message_stop"], kinds["error"]) != (1, 1, 0):
        return f"its events are {dict(kinds)}"
    return "" if said == WORDS else f"it says {said!r}"


def session(*, keep: bool = True) -> aiohttp.ClientSession:
    """A client without a limit of connections; `keep` says whether it uses one twice."""
    connector = aiohttp.TCPConnector(limit=0, force_close=not keep)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30))


class Load:
    """Requests without a pause, until it is told to stop. A context manager.

    Args:
        send: Sends one request; gives what is wrong with its answer, or nothing.
        width: How many at once.
    """

    def __init__(self, send: Callable[[], Awaitable[str]], width: int) -> None:
        self._send = send
        self._width = width
        self._stop = False
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self.sent = 0
        self.wrong: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._go()) for _ in range(self._width)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def more(self, count: int) -> None:
        """Wait for so many further answers."""
        wanted = self.sent + count
        async with asyncio.timeout(20):
            while self.sent < wanted:
                self._news.clear()
                await self._news.wait()

    async def _go(self) -> None:
        while not self._stop:
            told = await self._send()
            self.sent += 1
            if told:
                self.wrong[told] += 1
            self._news.set()
