"""The sink of one request: head, frames, keepalive, interruptions, and a client that does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from loopway.errors import ClientGone, Draining, OutOfTime
from loopway.server import respond
from loopway.server.respond import Responder

PING = b": ping\n\n"
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]


class Client:
    """The ASGI server's side: what was sent, whether it is read, and whether the client is there."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.blocked = asyncio.Event()
        self.gone = asyncio.Event()
        self.broken = False
        self.news = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if self.broken:
            raise OSError("broken pipe")
        if not self.reads.is_set():
            self.blocked.set()
            await self.reads.wait()
        self.sent.append(message)
        self.news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                self.news.clear()
                await self.news.wait()

    @property
    def body(self) -> bytes:
        return b"".join(one.get("body", b"") for one in self.sent)

    @property
    def starts(self) -> list[dict[str, Any]]:
        return [one for one in self.sent if one["type"] == "http.response.start"]

    @property
    def complete(self) -> bool:
        return bool(self.sent) and not self.sent[-1].get("more_body") and "body" in self.sent[-1]


async def run(work: Callable[[Responder], Awaitable[object]], client: Client) -> Any:
    """Run an exchange in a task of its own, as the server does; its error is returned."""

    async def task() -> object:
        sink = Responder(client.receive, client.send, "req_1")
        try:
            return await work(sink)
        except (Exception, asyncio.CancelledError) as raised:
            return raised
        finally:
            sink.release()

    async with asyncio.timeout(5):
        return await asyncio.create_task(task())


def look(sink: Responder, seconds: float) -> None:
    """Look at the exchange as if so many seconds had passed."""
    sink.look(asyncio.get_running_loop().time() + seconds)


async def test_a_whole_answer_is_one_head_and_one_body() -> None:
    """With its length and the request's id; nothing can be written behind it."""
    client = Client()

    async def work(sink: Responder) -> None:
        await sink.whole(200, [(b"content-type", b"application/json")], b"{}")
        await sink.write(b"more")
        await sink.close()

    assert await run(work, client) is None
    (start,) = client.starts
    headers = dict(start["headers"])
    assert (start["status"], headers[b"content-length"], headers[b"x-request-id"]) == (200, b"2", b"req_1")
    assert (client.body, client.complete) == (b"{}", True)


async def test_a_stream_opens_once_and_closes_once() -> None:
    """A second head and a second end are nothing; streams say that they must not be buffered."""
    client = Client()

    async def work(sink: Responder) -> None:
        await sink.open(200, EVENTS)
        await sink.open(500, [])
        await sink.write(b"a")
        await sink.close()
        await sink.close()
        await sink.write(b"b")

    assert await run(work, client) is None
    (start,) = client.starts
    assert dict(start["headers"])[b"x-accel-buffering"] == b"no"
    assert (client.body, client.complete, len(client.sent)) == (b"a", True, 3)


async def test_an_aborted_answer_is_left_unfinished() -> None:
    """Nothing is written any more, so that the server cuts the connection."""
    client = Client()

    async def work(sink: Responder) -> None:
        await sink.open(200, [])
        await sink.write(b"half")
        sink.abort()
        await sink.write(b"an error")
        await sink.close()

    assert await run(work, client) is None
    assert (client.body, client.complete) == (b"half", False)


# --- keepalive ---


async def test_silence_opens_the_stream_and_repeats() -> None:
    """The first ping is the first byte, behind a head of 200; the answer's own head is then nothing."""
    client = Client()

    async def work(sink: Responder) -> None:
        sink.keep_alive(0.01, PING)
        assert not sink.opened
        await client.until(lambda: client.body == PING * 3)
        assert sink.opened
        await sink.open(429, [])
        await sink.write(b"data: 1\n\n")
        await sink.close()

    assert await run(work, client) is None
    (start,) = client.starts
    assert (start["status"], dict(start["headers"])[b"content-type"]) == (200, EVENTS[0][1])
    assert client.body.endswith(b"data: 1\n\n")


async def test_a_frame_puts_the_next_ping_off() -> None:
    """Silence counts from the last byte."""
    client = Client()
    loop = asyncio.get_running_loop()
    at: list[float] = []

    async def work(sink: Responder) -> None:
        sink.keep_alive(0.2, PING)
        await sink.open(200, EVENTS)
        ready = asyncio.Event()
        loop.call_later(0.15, ready.set)
        await ready.wait()
        at.append(loop.time())
        await sink.write(b"data: 1\n\n")
        await client.until(lambda: PING in client.body)
        at.append(loop.time())

    assert await run(work, client) is None
    assert at[1] - at[0] > 0.19


async def test_no_ping_waits_behind_a_client_that_does_not_read() -> None:
    """However long it does not: when it reads on, it gets the frame and no heap of pings."""
    client = Client()

    async def work(sink: Responder) -> None:
        sink.keep_alive(0.01, PING)
        await sink.open(200, EVENTS)
        client.reads.clear()
        writing = asyncio.create_task(sink.write(b"data: 1\n\n"))
        await client.blocked.wait()
        passed = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, passed.set)
        await passed.wait()
        client.reads.set()
        await writing
        assert client.body == b"data: 1\n\n"

    assert await run(work, client) is None


async def test_a_whole_answer_wins_over_a_ping_that_is_due() -> None:
    """An error that is told as a status has no ping in front and none behind."""
    client = Client()

    async def work(sink: Responder) -> None:
        sink.keep_alive(0.0, PING)
        sink._tick()  # the ping's task is made and has not begun
        await sink.whole(429, [], b"{}")
        await asyncio.sleep(0.02)  # ticks that must do nothing

    assert await run(work, client) is None
    assert ([one["status"] for one in client.starts], client.body) == ([429], b"{}")


# --- interruptions ---


async def test_time_out_cancels_and_says_why() -> None:
    """The exchange is cancelled at its limit; the reason is there to be told, in a last word."""
    client = Client()

    async def work(sink: Responder) -> None:
        sink.limit(30)
        await sink.open(200, EVENTS)
        asyncio.get_running_loop().call_soon(look, sink, 30)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        assert isinstance(sink.interrupted, OutOfTime)
        await sink.write(b"event: error\n\n")
        await sink.close()

    assert await run(work, client) is None
    assert (client.body, client.complete) == (b"event: error\n\n", True)


async def test_a_client_that_leaves_cancels() -> None:
    """It is noticed without a byte being written."""
    client = Client()

    async def work(sink: Responder) -> None:
        sink.watch()
        look(sink, 1)
        client.gone.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        assert isinstance(sink.interrupted, ClientGone)

    assert await run(work, client) is None


async def test_a_look_before_the_time_does_nothing() -> None:
    """Neither is an exchange cancelled early, nor is a fast one watched."""
    client = Client()
    client.gone.set()
    before = asyncio.all_tasks()

    async def work(sink: Responder) -> None:
        sink.limit(30)
        sink.watch()
        look(sink, 0)
        await asyncio.sleep(0)
        assert sink.interrupted is None
        assert asyncio.all_tasks() - before == {asyncio.current_task()}

    assert await run(work, client) is None


async def test_only_the_first_reason_counts() -> None:
    """Being drained while out of time is being out of time; the task is cancelled once."""
    client = Client()

    async def work(sink: Responder) -> None:
        sink.interrupt(OutOfTime(1))
        sink.interrupt(Draining())
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert isinstance(sink.interrupted, OutOfTime)

    assert await run(work, client) is None


async def test_a_complete_answer_cannot_be_interrupted() -> None:
    """What is done is done."""
    client = Client()

    async def work(sink: Responder) -> None:
        await sink.whole(200, [], b"{}")
        sink.interrupt(Draining())
        await asyncio.sleep(0)
        assert sink.interrupted is None

    assert await run(work, client) is None


async def test_a_whole_answer_that_waits_for_its_client_can_be_interrupted() -> None:
    """Behind an answer that a pipelining client does not read, the next one waits; its exchange ends in time."""
    client = Client()
    client.reads.clear()

    async def work(sink: Responder) -> None:
        sink.limit(30)
        asyncio.get_running_loop().call_soon(look, sink, 30)
        with pytest.raises(asyncio.CancelledError):
            await sink.whole(200, [], b"{}")
        assert isinstance(sink.interrupted, OutOfTime)
        client.reads.set()
        await sink.write(b"event: error\n\n")
        await sink.close()  # behind a head that never went, nothing may

    assert await run(work, client) is None
    assert client.sent == []


@pytest.mark.parametrize("stalled_in", ["write", "close"])
async def test_the_last_words_to_a_client_that_does_not_read_are_bounded(
    monkeypatch: pytest.MonkeyPatch, stalled_in: str
) -> None:
    """A time limit ends the exchange even if the client never reads another byte."""
    monkeypatch.setattr(respond, "_LAST_WORDS_SECONDS", 0.02)
    client = Client()

    async def last_words(sink: Responder) -> None:
        await sink.write(b"event: error\n\n")
        await sink.close()

    async def work(sink: Responder) -> None:
        await sink.open(200, EVENTS)
        client.reads.clear()
        sink.limit(30)
        asyncio.get_running_loop().call_soon(look, sink, 30)
        with pytest.raises(asyncio.CancelledError):
            await (sink.write(b"data: 1\n\n") if stalled_in == "write" else sink.close())
        async with asyncio.timeout(2):
            with pytest.raises(ClientGone):
                await last_words(sink)

    assert await run(work, client) is None
    assert client.body == b""


async def test_the_last_words_do_not_wait_for_a_ping_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ping that cannot leave holds the wire; the exchange ends all the same."""
    monkeypatch.setattr(respond, "_LAST_WORDS_SECONDS", 0.02)
    client = Client()

    async def work(sink: Responder) -> None:
        client.reads.clear()
        sink.keep_alive(0.005, PING)
        await client.blocked.wait()
        sink.interrupt(Draining())
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        async with asyncio.timeout(2):
            with pytest.raises(ClientGone):
                await sink.write(b"event: error\n\n")

    assert await run(work, client) is None


@pytest.mark.parametrize("how", ["write", "close", "open", "whole"])
async def test_a_broken_pipe_is_a_client_that_is_gone(how: str) -> None:
    """Whatever was being sent."""
    client = Client()

    async def work(sink: Responder) -> None:
        if how in ("write", "close"):
            await sink.open(200, EVENTS)
        client.broken = True
        given = {"write": (b"x",), "open": (200, EVENTS), "whole": (200, [], b"x")}.get(how, ())
        await getattr(sink, how)(*given)

    assert isinstance(await run(work, client), ClientGone)


async def test_a_broken_pipe_under_a_ping_cancels() -> None:
    """The exchange learns of it although it writes nothing itself."""
    client = Client()
    client.broken = True

    async def work(sink: Responder) -> None:
        sink.keep_alive(0.01, PING)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        assert isinstance(sink.interrupted, ClientGone)

    assert await run(work, client) is None


async def test_nothing_is_left_when_it_is_released() -> None:
    """No timer fires and no task lives on."""
    before = asyncio.all_tasks()
    client = Client()

    async def work(sink: Responder) -> None:
        sink.limit(30)
        sink.watch()
        look(sink, 1)
        sink.keep_alive(0.001, PING)
        await client.until(lambda: client.body.count(PING) == 2)

    assert await run(work, client) is None
    count = len(client.sent)
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(0.03, passed.set)
    await passed.wait()
    assert len(client.sent) == count
    assert asyncio.all_tasks() == before
