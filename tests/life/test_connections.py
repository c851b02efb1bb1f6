"""Connections while a gateway drains: which are closed, and that no answer is lost with them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from life.load import body
from loopway.app import build
from loopway.serving import Serving, bind

READY = b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n"


class Peer:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))

    async def ended(self) -> bool:
        return await self.reader.read() == b""


@pytest.fixture
async def gateway() -> AsyncIterator[Any]:
    """A gateway, the function that connects to it, and its `Serving`."""
    config = {
        "server": {"drain_seconds": 0.2},
        "auth": {"mode": "open"},
        "upstreams": {"up": {"base_url": "http://127.0.0.1:9"}},
        "models": [{"name": "m", "upstream": "up"}],
    }
    listening = bind("127.0.0.1", 0)
    peers: list[Peer] = []

    async def connect() -> Peer:
        peers.append(Peer(*await asyncio.open_connection("127.0.0.1", port)))
        return peers[-1]

    port = listening.getsockname()[1]
    async with Serving(build(config), [listening]) as serving:
        yield connect, serving
        for peer in peers:
            peer.writer.close()


def post(size: int) -> bytes:
    data = json.dumps(body(stream=False, size=size)).encode()
    return b"POST /v1/messages HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % len(data) + data


async def test_idle_ones_are_closed(gateway: Any) -> None:
    """A connection on which nothing is under way is closed as soon as the gateway drains."""
    connect, serving = gateway
    peer = await connect()
    peer.writer.write(READY)
    assert (await peer.answer())[0] == 200
    serving.start_draining()
    assert await peer.ended()


async def test_new_ones_are_answered(gateway: Any) -> None:
    """A connection that was opened before and has sent nothing yet gets an answer to its request, and then ends."""
    connect, serving = gateway
    before = await connect()
    serving.start_draining()
    for peer in (before, await connect()):
        peer.writer.write(post(0))
        status, headers, raw = await peer.answer()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert json.loads(raw)["error"]["type"] == "overloaded_error"
        assert await peer.ended()


@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("cut", [1, 30, 50])
async def test_half_a_head_is_no_idle_connection(gateway: Any, cut: int, *, read: bool) -> None:
    """A request whose head has begun to arrive is answered, whether we have read of it or the kernel still has it."""
    connect, serving = gateway
    peer = await connect()
    peer.writer.write(READY)
    assert (await peer.answer())[0] == 200
    (connection,) = serving._main.server_state.connections
    peer.writer.write(post(0)[:cut])
    while read and not connection._in_head:
        other = await connect()  # a whole answer later
        other.writer.write(READY)
        await other.answer()
    assert connection._unread() is not read
    serving.start_draining()
    peer.writer.write(post(0)[cut:])
    assert (await peer.answer())[0] == 503
    assert await peer.ended()


async def test_other_paths_end_too(gateway: Any) -> None:
    """Every answer of a gateway that drains says that its connection ends."""
    connect, serving = gateway
    serving.start_draining()
    peer = await connect()
    peer.writer.write(b"GET /v1/models HTTP/1.1\r\nhost: h\r\n\r\n")
    status, headers, _ = await peer.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await peer.ended()


async def test_an_answer_before_its_request_is_read(gateway: Any) -> None:
    """The refusal of a long request is out before its body is read, and is not lost when the connection ends."""
    connect, serving = gateway
    serving.start_draining()
    peer = await connect()
    request = post(8_000_000)
    peer.writer.write(request[:1000])
    assert (await peer.answer())[0] == 503
    peer.writer.write(request[1000:])
    await peer.writer.drain()
    assert await peer.ended()


async def test_a_body_that_never_comes(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for the rest of a refused request has an end."""
    monkeypatch.setattr("loopway.serving._LINGER_SECONDS", 0.01)
    connect, serving = gateway
    serving.start_draining()
    peer = await connect()
    peer.writer.write(post(10_000)[:1000])
    assert (await peer.answer())[0] == 503
    assert await peer.ended()
