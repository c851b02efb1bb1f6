"""Mixed load with faults for a time: what the gateway holds of memory, descriptors and tasks, three times.

Usage: python benchmarks/soak.py [SECONDS] [WIDTH]    (default: 60 seconds, 24 clients; `make soak SECONDS=3600`)

The gateway is a process of its own; clients, models and faults are in this one. At the start, in the middle and at the
end the load stands still. It fails (exit code 1) if the gateway has grown, or if an answer was not the one of its kind.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from loopway.testing import Recorded, Reply, ScriptedModel, call, cut, hold, raw, text

HOOKS = '''
import asyncio
import gc

from loopway import AgenticLoopHook, AgenticLoopPlan, server_tool


@server_tool(timeout_seconds=0.2)
async def look(do: str) -> str:
    """Looks."""
    if do == "raise":
        raise RuntimeError("no")
    if do == "hang":
        await asyncio.Event().wait()
    return "found " * (20_000 if do == "long" else 1)


class Faulty(AgenticLoopHook):
    server_fulfilled_tool_names = frozenset({"faulty"})

    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        if data["model"] == "probe":
            gc.collect()
            return f"{len(asyncio.all_tasks())} {len(gc.get_objects())}"
        return data

    async def async_should_run_agentic_loop(self, response, **given):
        return "faulty" in str(response), {}

    async def async_build_agentic_loop_plan(self, **given):
        if given["model"] == "hangs":
            await asyncio.Event().wait()
        raise RuntimeError("no")


faulty = Faulty()
'''
MODELS = ("fine", "loops", "tools", "mixed", "raises", "hangs", "ill", "cut", "slow", "noisy", "probe")
PATHS = {"messages": "/v1/messages", "chat_completions": "/v1/chat/completions"}
ENDINGS = {"messages": b"message_stop", "chat_completions": b"[DONE]"}
RSS_MORE, RSS_FACTOR = 10.0, 1.15
"""Growth that is none: so many MB, and so much of what was there."""
TASKS_MORE = 8


def script(one: Recorded) -> Reply:
    """What each model says; the name is the story."""
    begins = one.body["messages"][-1]["role"] == "user" and isinstance(one.body["messages"][-1]["content"], str)
    match one.model:
        case "loops" | "tools" if begins:
            return Reply(
                text("a "),
                *(call("look", {"do": do}) for do in ("find", "raise", "hang", "long")[: 1 + one.number % 4]),
            )
        case "mixed" if begins:
            return Reply(call("look", {"do": "find"}), call("theirs", {}, id=f"c{one.number}"))
        case "raises" | "hangs":
            return Reply(call("faulty", {}))
        case "ill":
            return Reply(error=(503, "ill"))
        case "cut":
            return Reply(text("half"), cut())
        case "slow":
            return Reply(text("slow", pieces=1), hold(asyncio.Event()))
        case "noisy":
            return Reply(text("x" * 20_000, pieces=400), raw(b": noise\n\n"))
    return Reply(text("fine"))


class Soak:
    """The load. `wrong` counts answers that were not the right ones."""

    def __init__(self, url: str, session: aiohttp.ClientSession, model: ScriptedModel) -> None:
        self.url, self.session, self.model = url, session, model
        self.sent: collections.Counter[str] = collections.Counter()
        self.wrong: collections.Counter[str] = collections.Counter()
        self.random = random.Random(7)
        self.running = asyncio.Event()
        self.busy = 0
        self.kinds: list[tuple[str, Callable[[str], Awaitable[bool]]]] = [
            *(
                (name, self.answers(name, stream=stream))
                for name in ("fine", "loops", "tools", "noisy")
                for stream in (False, True)
            ),
            ("mixed", self.mixed),
            ("raises", self.fails("raises", 500)),
            ("hangs", self.fails("hangs", 500)),
            ("ill", self.fails("ill", 503)),
            ("cut", self.fails("cut", 502)),
            ("cut stream", self.cut_stream),
            ("leaves", self.leaves),
            ("unknown model", self.fails("no-such-model", 404)),
            ("wrong key", self.wrong_key),
            ("half a body", self.half_a_body),
            ("garbage", self.garbage),
            ("long body", self.long_body),
        ]

    def ask(self, dialect: str, model: str, *, stream: bool = False, key: str = "soak", **more: Any) -> Any:
        body: dict[str, Any] = {"model": model, "max_tokens": 9, "stream": stream,
                                "messages": [{"role": "user", "content": "?"}], **more}  # fmt: skip
        return self.session.post(self.url + PATHS[dialect], json=body, headers={"x-api-key": key})

    def answers(self, model: str, *, stream: bool) -> Callable[[str], Awaitable[bool]]:
        async def one(dialect: str) -> bool:
            async with self.ask(dialect, model, stream=stream) as answer:
                got = await answer.read()
            return answer.status == 200 and (not stream or ENDINGS[dialect] in got) and b'"error"' not in got

        return one

    def fails(self, model: str, status: int) -> Callable[[str], Awaitable[bool]]:
        async def one(dialect: str) -> bool:
            tools: Any = [{"name": "faulty", "input_schema": {"type": "object"}}]
            if dialect != "messages":
                tools = [{"type": "function", "function": {"name": "faulty"}}]
            async with self.ask(dialect, model, tools=tools) as answer:
                return answer.status == status and "error" in await answer.json()

        return one

    async def mixed(self, dialect: str) -> bool:
        tools: Any = [{"name": "theirs", "input_schema": {"type": "object"}}]
        if dialect != "messages":
            tools = [{"type": "function", "function": {"name": "theirs"}}]
        async with self.ask(dialect, "mixed", tools=tools) as answer:
            got = await answer.json()
        messages: list[Any] = [{"role": "user", "content": "?"}]
        if dialect == "messages":
            result = [{"type": "tool_result", "tool_use_id": got["content"][0]["id"], "content": "1"}]
            messages += [{"role": "assistant", "content": got["content"]}, {"role": "user", "content": result}]
        else:
            turn = got["choices"][0]["message"]
            messages += [turn, {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "1"}]
        async with self.ask(dialect, "mixed", tools=tools, messages=messages) as answer:
            return answer.status == 200 and b"fine" in await answer.read()

    async def cut_stream(self, dialect: str) -> bool:
        async with self.ask(dialect, "cut", stream=True) as answer:
            got = await answer.read()
        return b'"error"' in got

    async def leaves(self, dialect: str) -> bool:
        stream = self.random.random() < 0.8
        async with asyncio.timeout(0.3), self.ask(dialect, "slow", stream=stream) as answer:
            await answer.content.readany()
        return stream

    async def wrong_key(self, dialect: str) -> bool:
        async with self.ask(dialect, "fine", key="wrong") as answer:
            return answer.status == 401

    async def _raw(self, data: bytes, wait: float) -> bytes:
        host, _, port = self.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(reader.read(100), wait)
            return b""
        finally:
            writer.close()

    async def half_a_body(self, dialect: str) -> bool:
        head = f"POST {PATHS[dialect]} HTTP/1.1\r\nhost: x\r\nx-api-key: soak\r\ncontent-length: 500\r\n\r\n{{"
        return await self._raw(head.encode(), 0.3) == b""

    async def garbage(self, dialect: str) -> bool:
        return b" 400 " in await self._raw(b"\x16\x03\x01" + dialect.encode() + b"\r\n\r\n", 10.0)

    async def long_body(self, dialect: str) -> bool:
        async with self.ask(dialect, "fine", padding="x" * 900_000) as answer:
            return answer.status == 200

    async def client(self) -> None:
        """One client: one request after the other, while the load is on."""
        while True:
            await self.running.wait()
            name, kind = self.random.choice(self.kinds)
            self.busy += 1
            try:
                good = await kind(self.random.choice(list(PATHS)))
            except TimeoutError:
                good = name == "leaves"  # it left before the head
            except (aiohttp.ClientError, OSError, KeyError, IndexError, ValueError) as broken:
                good = False
                name = f"{name}: {type(broken).__name__}"
            finally:
                self.busy -= 1
            self.sent[name] += 1
            self.wrong[name] += not good
            if len(self.model.requests) > 1000:
                self.model.requests.clear()

    async def still(self) -> None:
        """Stop the load, and wait until the last answer is out."""
        self.running.clear()
        while self.busy:  # noqa: ASYNC110 - a program, and nothing hurries
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)

    async def sample(self, pid: int) -> dict[str, float]:
        """What the gateway holds."""
        async with self.ask("messages", "probe") as answer:
            told = (await answer.json())["error"]["message"].split()
        process = Path(f"/proc/{pid}")
        pages = int((process / "statm").read_text().split()[1])
        return {
            "RSS, MB": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
            "descriptors": len(list((process / "fd").iterdir())),
            "tasks": int(told[-2]),
            "objects": int(told[-1]),
            "requests so far": sum(self.sent.values()),
        }


async def soak(seconds: float, width: int) -> int:
    """Run it; the exit code."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with ScriptedModel(dict.fromkeys(MODELS, script)) as model:
        with tempfile.TemporaryDirectory() as folder:
            config = {
                "server": {"port": port, "admin_port": None, "drain_seconds": 2},
                "auth": {"keys": [{"name": "soak", "key": "soak"}]},
                "upstreams": {"up": {"base_url": model.url, "dialects": list(PATHS), "max_retries": 0}},
                "models": [{"name": name, "upstream": "up"} for name in MODELS],
                "loop": {"hook_timeout_seconds": 0.3, "keepalive_seconds": 1},
                "state": {"max_bytes": 1_000_000},
                "hooks": ["soak_hooks.look", "soak_hooks.faulty"],
            }
            (Path(folder) / "loopway.yaml").write_text(yaml.safe_dump(config))
            (Path(folder) / "soak_hooks.py").write_text(HOOKS)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "loopway", "serve", cwd=folder, stderr=asyncio.subprocess.DEVNULL
            )
            try:
                samples, load = await _under_load(f"http://127.0.0.1:{port}", process.pid, model, seconds, width)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                code = await process.wait()
    return _told(samples, load, code, width)


async def _under_load(
    url: str, pid: int, model: ScriptedModel, seconds: float, width: int
) -> tuple[dict[str, dict[str, float]], Soak]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30)) as session:
        load = Soak(url, session, model)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(url + "/readyz") as answer:
                    if answer.status == 200:
                        break
            await asyncio.sleep(0.05)
        clients = [asyncio.create_task(load.client()) for _ in range(width)]
        samples: dict[str, dict[str, float]] = {}
        warm = min(15.0, seconds * 0.2)
        for name, part in (("start", warm), ("middle", (seconds - warm) / 2), ("end", (seconds - warm) / 2)):
            load.running.set()
            await asyncio.sleep(part)
            await load.still()
            samples[name] = await load.sample(pid)
            print(f"{name:8}", "  ".join(f"{what}: {value}" for what, value in samples[name].items()), flush=True)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        return samples, load


def _told(samples: dict[str, dict[str, float]], load: Soak, code: int, width: int) -> int:
    """Print what was sent and what has grown; the exit code."""
    for name, count in sorted(load.sent.items()):
        print(f"  {count:8} {name}" + (f"  WRONG: {load.wrong[name]}" if load.wrong[name] else ""))
    begin, end = samples["start"], samples["end"]
    grown = [
        f"{what}: {begin[what]} -> {end[what]}"
        for what, most in (
            ("RSS, MB", begin["RSS, MB"] * RSS_FACTOR + RSS_MORE),
            ("descriptors", begin["descriptors"] + 2 * width),  # connections that wait for the next call
            ("tasks", begin["tasks"] + TASKS_MORE),
        )
        if end[what] > most
    ]
    print("grown: " + (", ".join(grown) or "nothing"), f"exit code of the gateway: {code}", sep="; ")
    print(json.dumps(samples))
    return 1 if grown or code or sum(load.wrong.values()) else 0


if __name__ == "__main__":
    given = [float(one) for one in sys.argv[1:]]
    sys.exit(asyncio.run(soak(given[0] if given else 60.0, int(given[1]) if len(given) > 1 else 24)))
