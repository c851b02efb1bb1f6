"""Behind a real nginx, with the configuration that docs/nginx.md shows."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from life.load import JSON, STREAM, Load, ask, body, loops, session, written, wrong
from loopway.demo import Weather
from loopway.testing import ScriptedModel
from running import Running, running

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
DOC = Path(__file__).parents[2] / "docs" / "nginx.md"

pytestmark = pytest.mark.skipif(NGINX is None, reason="there is no nginx; on Debian: apt-get install nginx-light")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in taken]


def shown(port: int, instances: Sequence[int]) -> str:
    """The configuration of the document, with addresses of this machine."""
    (config,) = re.findall(r"```nginx\n(.*?)```", DOC.read_text(), re.DOTALL)
    servers = iter(instances)
    config, count = re.subn(r"10\.0\.0\.\d+:4000", lambda _: f"127.0.0.1:{next(servers)}", config)
    assert count == len(instances)
    return str(config).replace("listen 8080", f"listen 127.0.0.1:{port}")


@contextlib.contextmanager
def nginx(folder: Path, port: int, instances: Sequence[int]) -> Iterator[None]:
    """A real one in the foreground, until the test is over."""
    temp = "\n".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temp}\n{shown(port, instances)}\n}}\n"
    )
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log"])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def listening(port: int) -> str:
    """The address, once somebody listens there."""
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return f"http://127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def instance(config: Path, port: int) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """A gateway that is ready, and what ends it; its log is read all the time, since a full pipe would stop it."""
    with Running("serve", "--config", str(config), "--port", str(port)) as gateway:
        await asyncio.to_thread(gateway.ready)
        ending = asyncio.create_task(asyncio.to_thread(gateway.wait))

        async def end() -> int:
            gateway.process.terminate()
            return await ending

        yield end
        await end()


async def test_restart_of_both_instances(tmp_path: Path) -> None:
    """Each instance is restarted while clients ask for JSON and streams without a pause: no request fails."""
    door, *ports = free_ports(3)
    async with ScriptedModel({"m": loops()}) as model, session() as client, contextlib.AsyncExitStack() as stack:
        config = written(tmp_path, model.url)
        both = await asyncio.gather(*(stack.enter_async_context(instance(config, port)) for port in ports))
        instances = dict(zip(ports, both, strict=True))
        stack.enter_context(nginx(tmp_path, door, ports))
        url = await listening(door)
        turn = 0

        async def send() -> str:
            nonlocal turn
            turn += 1
            kind = (JSON, STREAM)[turn % 2]
            return wrong(kind, await ask(client, url, kind))

        async with Load(send, 8) as load:
            for port in ports:
                await load.more(30)
                assert await instances[port]() == 0
                await load.more(30)
                await stack.enter_async_context(instance(config, port))
            await load.more(30)
        assert dict(load.wrong) == {}
        assert load.sent >= 150


async def test_events_pass_at_once(tmp_path: Path) -> None:
    """The first half of an answer reaches the client while the model still holds the second one."""
    gate = asyncio.Event()
    (door,) = free_ports(1)
    async with running(hooks=[Weather()], script={"m": loops(gate.wait)}) as served, session() as client:
        port = int(served.url.rpartition(":")[2])
        with nginx(tmp_path, door, [port, port]):
            url = await listening(door)
            async with client.post(f"{url}/v1/messages", json=body(stream=True)) as answer:
                await answer.content.readuntil(b"In ")
                assert not gate.is_set()
                gate.set()
                assert (await answer.read()).rstrip().endswith(b'{"type":"message_stop"}')


@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_long_bodies_pass(tmp_path: Path) -> None:
    """A body far over nginx's own limit and buffers arrives."""
    (door,) = free_ports(1)
    async with running(hooks=[Weather()], script={"m": loops()}) as served, session() as client:
        port = int(served.url.rpartition(":")[2])
        long = io.BytesIO(json.dumps(body(stream=False, size=5_000_000)).encode())
        with nginx(tmp_path, door, [port, port]):
            url = await listening(door)
            async with client.post(f"{url}/v1/messages", data=long) as answer:
                assert wrong(JSON, (answer.status, answer.headers, await answer.read())) == ""
                assert len(served.model.requests[0].raw) > 5_000_000
