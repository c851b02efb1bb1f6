"""SIGTERM under load, on real processes: nothing that was begun is lost, nothing new is begun, and the end comes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from life.load import JSON, STREAM, Load, ask, loops, session, written, wrong
from loopway.testing import Recorded, Reply, ScriptedModel, hold, text
from running import Running

EACH = 50


def held(request: Recorded) -> bool:
    """Whether this is the second call of a loop of the model `m`."""
    return request.model == "m" and isinstance(request.body["messages"][-1]["content"], list)


async def code_of(client: aiohttp.ClientSession, url: str) -> int:
    async with client.get(url) as answer:
        return answer.status


@pytest.mark.parametrize("workers", [1, 4])
async def test_sigterm_under_load(tmp_path: Path, workers: int) -> None:
    """50 streams and 50 JSON loops that were begun complete, each newcomer is sent away in due form, the exit is 0."""
    gate = asyncio.Event()
    other = loops()
    slow = loops(gate.wait)
    async with ScriptedModel({"m": slow, "other": other}) as model, session() as client, session(keep=False) as fresh:
        config = written(tmp_path, model.url)
        with Running("serve", "--config", str(config), "--workers", str(workers)) as gateway:
            ready = await asyncio.to_thread(gateway.ready)
            url, admin = ready["url"], ready["admin_url"]
            ending = asyncio.create_task(asyncio.to_thread(gateway.wait))  # a log that nobody reads stops who writes it

            async def newcomer() -> str:
                """Served, or sent away with everything that a client needs to go elsewhere."""
                try:
                    status, headers, raw = answer = await ask(fresh, url, JSON, "other")
                except aiohttp.ClientConnectionError:
                    return "" if gate.is_set() else "it could not connect while the listeners should be open"
                if status != 503:
                    return wrong(JSON, answer)
                told = (headers["retry-after"], headers["connection"], json.loads(raw)["error"]["type"])
                return "" if told == ("1", "close", "overloaded_error") else f"it was sent away with {told}"

            kinds = [STREAM, JSON] * EACH
            begun = [asyncio.create_task(ask(client, url, kind)) for kind in kinds]
            await model.until(lambda: sum(map(held, model.requests)) == len(begun), 20)
            async with Load(newcomer, 4) as load:
                await load.more(8)
                gateway.process.send_signal(signal.SIGTERM)
                while {await code_of(fresh, f"{at}/readyz") for at in (url, admin)} != {503}:
                    assert await code_of(fresh, f"{admin}/healthz") == 200
                assert await code_of(fresh, f"{url}/healthz") == 200
                await load.more(40)
                assert not any(task.done() for task in begun)
                gate.set()
                answers = await asyncio.gather(*begun)
                code = await ending
            assert [told for kind, one in zip(kinds, answers, strict=True) if (told := wrong(kind, one))] == []
            assert dict(load.wrong) == {}
            assert code == 0
            assert '"stopped"' in gateway.said


async def test_past_the_deadline(tmp_path: Path) -> None:
    """What is left after drain_seconds gets the dialect's error: an event in a stream, a 503 instead of JSON."""
    never = asyncio.Event()
    script = [Reply(text("Good"), hold(never.wait), text("day."))] * 3
    async with ScriptedModel({"m": script}) as model, session() as client:
        config = written(tmp_path, model.url, drain_seconds=0.3)
        with Running("serve", "--config", str(config)) as gateway:
            ready = await asyncio.to_thread(gateway.ready)
            asked = [asyncio.create_task(ask(client, ready["url"], kind)) for kind in (STREAM, JSON)]
            chat = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
            async with client.post(f"{ready['url']}/v1/chat/completions", json=chat) as answer:
                await model.until(lambda: len(model.requests) == 3)
                await answer.content.readuntil(b"\n\n")
                gateway.process.send_signal(signal.SIGTERM)
                rest = await answer.read()
            streamed, whole = await asyncio.gather(*asked)
            assert await asyncio.to_thread(gateway.wait) == 0
    last = json.loads(rest.rstrip().splitlines()[-1].removeprefix(b"data: "))
    assert last["error"]["code"] == "draining"
    assert streamed[0] == 200
    assert streamed[2].rstrip().splitlines()[-2] == b"event: error"
    assert json.loads(streamed[2].rstrip().splitlines()[-1][6:])["error"]["type"] == "overloaded_error"
    assert (whole[0], whole[1]["retry-after"], whole[1]["connection"]) == (503, "1", "close")


def workers_of(pid: int) -> list[int]:
    """The worker processes of a supervisor."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes()]


async def ended(pids: list[int]) -> None:
    """Wait until these processes, which are not ours, are gone."""
    loop = asyncio.get_running_loop()
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        over = asyncio.Event()
        loop.add_reader(handle, over.set)
        try:
            async with asyncio.timeout(20):
                await over.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)


async def test_workers_die_and_are_orphaned(tmp_path: Path) -> None:
    """A worker that dies is replaced; workers whose supervisor dies finish what they have, and end."""
    gate = asyncio.Event()
    async with ScriptedModel({"m": loops(gate.wait), "other": loops()}) as model, session() as client:
        config = written(tmp_path, model.url)
        with Running("serve", "--config", str(config), "--workers", "2") as gateway:
            ready = await asyncio.to_thread(gateway.ready)
            url = ready["url"]
            first = workers_of(gateway.process.pid)
            assert len(first) == 2
            os.kill(first[0], signal.SIGKILL)
            await asyncio.to_thread(gateway.line, '"worker_died"')
            assert wrong(JSON, await ask(client, url, JSON, "other")) == ""
            asked = asyncio.create_task(ask(client, url, STREAM))
            await model.until(lambda: any(map(held, model.requests)), 20)
            left = workers_of(gateway.process.pid)
            assert len(left) == 2
            gateway.process.kill()
            assert await asyncio.to_thread(gateway.process.wait) == -signal.SIGKILL
            async with session(keep=False) as fresh:
                while True:
                    try:
                        await code_of(fresh, f"{url}/healthz")
                    except aiohttp.ClientConnectionError:
                        break  # nobody listens any more: a new supervisor could
            gate.set()
            assert wrong(STREAM, await asked) == ""
            await ended(left)


async def test_signals_to_a_supervisor(tmp_path: Path) -> None:
    """One that reaches the workers too (Ctrl-C, systemd) is no second one; the second one ends them all at once."""
    gate, never = asyncio.Event(), asyncio.Event()
    scripts = {"m": loops(gate.wait), "other": loops(never.wait)}
    async with ScriptedModel(scripts) as model, session() as client:
        config = written(tmp_path, model.url)
        with Running("serve", "--config", str(config), "--workers", "2") as gateway:
            ready = await asyncio.to_thread(gateway.ready)
            short, long = (asyncio.create_task(ask(client, ready["url"], STREAM, name)) for name in ("m", "other"))
            await model.until(lambda: len(model.requests) == 4, 20)
            left = workers_of(gateway.process.pid)
            for number in (signal.SIGINT, signal.SIGTERM):
                for pid in left:
                    os.kill(pid, number)
            gateway.process.send_signal(signal.SIGINT)
            while await code_of(client, f"{ready['admin_url']}/readyz") != 503:
                pass
            for pid in left:
                os.kill(pid, signal.SIGTERM)
            gate.set()
            assert wrong(STREAM, await short) == ""
            gateway.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(gateway.wait) == 1
            with pytest.raises(aiohttp.ClientError):
                await long
            await ended(left)
