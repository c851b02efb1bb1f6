"""Upstreams that fail in every way that was thought of: a right answer or a clear error, and nothing is left of it.

What the client of a stream is told behind the first byte is held by `tests/exchange/test_failing.py`.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from faults.counted import HASTY_SECONDS, at_once, rig, unharmed
from inprocess import BOTH, KEY, PATHS, Run, request_body
from loopway.dialects.base import Dialect
from loopway.dialects.sse import Reader
from loopway.dialects.table import DIALECTS
from loopway.exchange import json_road, stream_road
from puppets import Puppet, text_of
from streams import around, chunk, delta, event, is_error
from upstream.conftest import Answer, Call, Link

BY_NAME: dict[str, Dialect] = dict(DIALECTS.items())
LARGEST = 300_000
"""Bytes that a reply may have here which is read whole, or folded."""
JSON, EVENTS = b"content-type: application/json\r\n", b"content-type: text/event-stream\r\n"


def dialect_of(call: Call) -> str:
    return "messages" if call.target.startswith("/v1/messages") else "chat_completions"


def whole(call: Call) -> tuple[bytes, bytes]:
    """A good answer to a call, JSON or stream: its content-type and its body."""
    dialect = dialect_of(call)
    reply = text_of(dialect, "fine")
    if b'"stream":true' not in call.body.replace(b'": ', b'":'):
        return JSON, json.dumps(reply).encode()
    return EVENTS, b"".join(frame.raw for frame in BY_NAME[dialect].render(reply))


def sent(
    *lines: bytes, status: bytes = b"200 OK", body: bytes | None = None, length: int | None = None, front: bytes = b""
) -> Answer:
    """An answer with more header lines, another status, body, length, or bytes in front."""

    async def answer(call: Call, link: Link) -> object:
        kind, good = whole(call)
        payload = good if body is None else body
        size = len(payload) if length is None else length
        await link.send(
            front + b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%b%b\r\n" % (status, size, kind, b"".join(lines)) + payload
        )
        return length is None

    return answer


def half(then: Callable[[Link], Awaitable[object]]) -> Answer:
    """Half of a good answer, then something else."""

    async def answer(call: Call, link: Link) -> object:
        kind, body = whole(call)
        await link.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n" % (len(body), kind) + body[: len(body) // 2])
        return await then(link)

    return answer


async def reset(_call: Any, link: Link) -> None:
    link.reset()


async def silent(_call: Any, link: Link) -> None:
    await link.gone()


async def closed(*_: Any) -> None:
    pass


async def trickles(call: Call, link: Link) -> bool:
    kind, body = whole(call)
    for byte in b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n" % (len(body), kind) + body:
        await link.send(bytes([byte]))
        await asyncio.sleep(0)
    return True


async def the_other_kind(call: Call, link: Link) -> bool:
    """A stream where JSON was asked for, JSON where a stream was."""
    streamed = whole(call)[0] == EVENTS
    kind, body = whole(replace(call, body=b"" if streamed else b'"stream":true'))
    await link.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n" % (len(body), kind) + body)
    return True


async def no_chunks(call: Call, link: Link) -> object:
    await link.send(b"HTTP/1.1 200 OK\r\n%btransfer-encoding: chunked\r\n\r\nxyz\r\n" % whole(call)[0])
    await silent(None, link)
    return False


def bomb(size: int = 50_000_000) -> bytes:
    """Some KB that unpack to a huge reply."""
    head, tail = json.dumps(text_of("messages", "@")).encode().split(b"@")
    return gzip.compress(head + b"x" * size + tail)


async def _then(link: Link, data: bytes, then: Callable[..., Awaitable[object]]) -> object:
    await link.send(data)
    return await then(None, link)


async def kept(*_: Any) -> bool:
    return True


async def _flood(link: Link, head: bytes) -> None:
    await link.send(head)
    while True:
        await link.send(b"x" * 60_000)
        await asyncio.sleep(0)


class Fault:
    """What the server does, and what the client has then: JSON watched, JSON not, stream watched, stream not.

    200 is the right answer, another number an error with this status, "passed" whatever the server sent, unchanged, and
    "broken" an error in the stream or a cut connection. One outcome stands for all four, two for JSON and streams.
    """

    def __init__(self, does: Answer, *outcomes: int | str) -> None:
        self.does = does
        self.outcomes = (
            outcomes * (4 // len(outcomes)) if len(outcomes) != 2 else tuple(o for o in outcomes for _ in "12")
        )


FAULTS: dict[str, Fault] = {
    "resets": Fault(reset, 502),
    "closes": Fault(closed, 502),
    "says-nothing": Fault(silent, 504),
    "stalls-in-its-head": Fault(lambda _, link: _then(link, b"HTTP/1.1 200 OK\r\ncont", silent), 504),
    "stalls-in-its-body": Fault(half(lambda link: silent(None, link)), 504, "broken"),
    "breaks-off-in-its-body": Fault(half(lambda link: closed()), 502, "broken"),
    "resets-in-its-body": Fault(half(lambda link: reset(None, link)), 502, "broken"),
    "sends-byte-after-byte": Fault(trickles, 200),
    "is-no-http-server": Fault(lambda _, link: _then(link, b"SSH-2.0-OpenSSH_9.6\r\n", closed), 502),
    "sends-binary": Fault(lambda _, link: _then(link, bytes(range(256)) * 40, closed), 502),
    "is-longer-than-it-says": Fault(sent(length=20), 502),
    "is-shorter-than-it-says": Fault(sent(length=5000), 502, "broken"),
    "lies-in-two-lengths": Fault(sent(b"content-length: 3\r\n"), 502),
    "has-a-length-and-chunks": Fault(sent(b"transfer-encoding: chunked\r\n"), 502),
    "has-chunks-that-are-none": Fault(no_chunks, 502),
    "says-continue-first": Fault(sent(front=b"HTTP/1.1 100 Continue\r\n\r\n" * 3), 200),
    "says-early-hints-first": Fault(sent(front=b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"), 200),
    "switches-protocols": Fault(
        lambda _, link: _then(link, b"HTTP/1.1 101 Now\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", silent), 502
    ),
    "redirects": Fault(sent(b"location: http://127.0.0.1:1/\r\n", status=b"307 Elsewhere"), 502),
    "has-not-changed": Fault(lambda _, link: _then(link, b"HTTP/1.1 304 No\r\n\r\n", kept), 502),
    "has-no-content": Fault(
        lambda _, link: _then(link, b"HTTP/1.1 204 No\r\n\r\n", kept), 502, "passed", 502, "passed"
    ),
    "answers-in-the-other-kind": Fault(the_other_kind, 502, "passed", 200, "passed"),
    "has-a-status-of-its-own": Fault(sent(status=b"999 Denied"), 502),
    "has-headers-of-60-KB": Fault(sent(b"x-a: %b\r\n" % (b"y" * 60_000)), 200),
    "has-headers-of-600-KB": Fault(sent(b"x-a: %b\r\n" % (b"y" * 60_000) * 10), 502),
    "has-2000-headers": Fault(sent(b"".join(b"x-%d: y\r\n" % number for number in range(2000))), 502),
    "has-a-header-on-two-lines": Fault(sent(b"request-id: a\r\n set-cookie: b\r\n"), 200),
    "has-a-nul-in-a-header": Fault(sent(b"request-id: a\0b\r\n"), 502),
    "has-a-bare-cr-in-a-header": Fault(sent(b"request-id: a\rset-cookie: b\r\n"), 502),
    "has-a-bell-in-a-header": Fault(sent(b"request-id: a\x07b\r\n"), 200),
    "has-an-empty-body": Fault(sent(body=b""), 502, "passed", 502, "broken"),
    "says-what-is-no-json": Fault(sent(body=b"<html>Welcome to nginx</html>"), 502, "passed", 502, "broken"),
    "nests-too-deeply": Fault(sent(body=b"[" * 100_000), 502, "passed", 502, "broken"),
    "nests-too-deeply-in-events": Fault(sent(body=b"data: " + b"[" * 100_000 + b"\n\n"), 502, "passed", 502, "broken"),
    "sends-no-utf-8": Fault(sent(body=b'{"content":"\xff\xfe"}'), 502, "passed", 502, "broken"),
    "sends-a-bomb": Fault(sent(b"content-encoding: gzip\r\n", body=bomb()), 502, "passed", 502, "passed"),
    "uses-an-unknown-encoding": Fault(sent(b"content-encoding: br\r\n", body=b"?"), 502, "passed", 502, "passed"),
    "fails-without-an-end": Fault(lambda _, link: _flood(link, b"HTTP/1.1 500 No\r\n" + JSON + b"\r\n"), 502),
    "sends-more-than-a-reply-has": Fault(
        sent(body=b'{"a":"' + b"x" * LARGEST + b'"}'), 502, "passed", 502, "broken"
    ),
}  # fmt: skip


async def outcome(run: Run, dialect: str, body: dict[str, Any], path: str = "") -> int | str:
    """What a client has of an exchange: 200, another status in the dialect's shape, "passed" or "broken".

    Args:
        path: Another one than the dialect's own.
    """
    content = bytearray()
    headers = {"authorization": f"Bearer {KEY}"}
    try:
        async with run.client.stream("POST", path or PATHS[dialect], json=body, headers=headers) as answer:
            async for piece in answer.aiter_raw():
                content += piece
    except httpx.HTTPError:
        return "broken"
    raw = bytes(content)
    if answer.status_code >= 400:
        assert isinstance(json.loads(raw)["error"]["message"], str)
        assert answer.headers["x-request-id"]
        return answer.status_code
    if any(is_error(frame) for frame in Reader().feed(raw)):
        return "broken"
    assert not {"set-cookie", "x-a"} & set(answer.headers)
    good = BY_NAME[dialect].tail in raw if body.get("stream") else raw.startswith(b"{")
    return 200 if good and b'"fine"' in raw else "passed"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_road, "LARGEST_REPLY", LARGEST)
    monkeypatch.setattr(stream_road, "LARGEST_REPLY", LARGEST)


HASTY = {name for name in FAULTS if name.startswith(("stalls", "says-nothing"))}
"""What is not waited for long."""


def roads(name: str) -> list[tuple[str, dict[str, Any]]]:
    """A request on each road, in the order of a fault's outcomes, and in both dialects each."""
    kinds = [(stream, tools) for stream in (False, True) for tools in ("mine", "theirs")]
    return [(one, request_body(one, name, [tools], stream=stream)) for stream, tools in kinds for one in BOTH]


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "unwatched"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_upstream(watched: bool, stream: bool, subtests: pytest.Subtests) -> None:
    """In both dialects the client has the outcome of the table, the exchange beside is whole, and nothing is left."""
    async with rig({name: fault.does for name, fault in FAULTS.items()}, hasty=HASTY) as run:
        for name, fault in FAULTS.items():
            tools = ("mine",) if watched else ("theirs",)
            with subtests.test(name):
                asked = [(one, request_body(one, name, tools, stream=stream)) for one in BOTH]
                both = [lambda one=one: outcome(run, *one) for one in asked]
                got = await unharmed(run, *both, dialect="chat_completions" if stream else "messages")
                assert got == [fault.outcomes[2 * stream + (not watched)]] * 2


def behind_a_call(fault: Answer) -> Answer:
    """A good call of `mine`; the fault is the answer to its result."""

    async def answer(one: Call, link: Link) -> object:
        if b"result 1" in one.body:
            return await fault(one, link)  # type: ignore[operator]
        dialect = dialect_of(one)
        reply = text_of(dialect, "")
        if dialect == "messages":
            reply["content"] = [{"type": "tool_use", "id": "t1", "name": "mine", "input": {"n": 1}}]
            reply["stop_reason"] = "tool_use"
        else:
            function = {"name": "mine", "arguments": '{"n": 1}'}
            called = {"content": None, "tool_calls": [{"id": "t1", "type": "function", "function": function}]}
            reply["choices"] = [{"index": 0, "message": {"role": "assistant", **called}, "finish_reason": "tool_calls"}]
        kind, body = whole(one)[0], json.dumps(reply).encode()
        if kind == EVENTS:
            body = b"".join(frame.raw for frame in BY_NAME[dialect].render(reply))
        await link.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n" % (len(body), kind) + body)
        return True

    return answer


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_upstream_in_a_rerun(stream: bool, subtests: pytest.Subtests) -> None:
    """A fault in the second iteration: the outcome of a watched first one; behind the first byte, an error event."""
    hook = Puppet()
    async with rig({name: behind_a_call(fault.does) for name, fault in FAULTS.items()}, [hook], hasty=HASTY) as run:
        hook.plans.clear()
        hook.cleaned.clear()
        asked = [(one, request_body(one, name, ["mine"], stream=stream)) for name in FAULTS for one in BOTH]
        got = await unharmed(run, *[lambda one=one: outcome(run, *one) for one in asked])
        for number, (name, fault) in enumerate(FAULTS.items()):
            with subtests.test(name):
                first = fault.outcomes[2 * stream]
                assert got[2 * number : 2 * number + 2] == ["broken" if stream and first != 200 else first] * 2
        assert len(hook.plans) == len(hook.cleaned) == 2 * len(FAULTS) + 1


OTHER_PATHS = {"messages": "/v1/messages/count_tokens", "chat_completions": "/v1/embeddings"}


async def test_upstream_of_what_is_only_passed_on(subtests: pytest.Subtests) -> None:
    """The paths that no loop runs on have the outcomes of a request that nobody watches, in the dialect's shape."""
    async with rig({name: fault.does for name, fault in FAULTS.items()}, hasty=HASTY) as run:
        asked = [(one, request_body(one, name), OTHER_PATHS[one]) for name in FAULTS for one in BOTH]
        got = await unharmed(run, *[lambda one=one: outcome(run, *one) for one in asked])
        for number, (name, fault) in enumerate(FAULTS.items()):
            with subtests.test(name):
                assert got[2 * number : 2 * number + 2] == [fault.outcomes[1]] * 2


async def test_upstream_that_is_not_there(subtests: pytest.Subtests) -> None:
    """A port where nobody listens and a name that does not resolve: 502, and it says which of both, on each road."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        texts = {"refuses": "cannot be reached", "unknown": "does not resolve"}
        urls = {"refuses": f"http://127.0.0.1:{taken.getsockname()[1]}", "unknown": "http://no-such-host.invalid"}
        upstreams = {name: {"base_url": url, "dialects": list(BOTH), "max_retries": 0} for name, url in urls.items()}
        async with rig({}, upstreams=upstreams, models=[{"name": name, "upstream": name} for name in urls]) as run:
            for name, text in texts.items():
                with subtests.test(name):
                    asked = [functools.partial(run.post, *one) for one in roads(name)]
                    for answer in await unharmed(run, *asked):
                        assert answer.status_code == 502
                        assert text in answer.json()["error"]["message"]


async def test_a_name_that_nobody_resolves_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that says nothing: 504 after `connect_timeout_seconds` on each road, and nothing is left behind it."""
    resolve, silent_for = asyncio.get_running_loop().getaddrinfo, asyncio.Event()

    async def getaddrinfo(host: Any, *given: Any, **named: Any) -> Any:
        if host != "silent.invalid":
            return await resolve(host, *given, **named)
        await silent_for.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "it gave up")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    silent = {"base_url": "http://silent.invalid", "dialects": list(BOTH), "max_retries": 0}
    silent["connect_timeout_seconds"] = HASTY_SECONDS
    models = [{"name": "silent", "upstream": "silent"}]
    async with rig({}, upstreams={"silent": silent}, models=models) as run:

        async def ask() -> list[int | str]:
            try:
                async with asyncio.timeout(5):
                    return await asyncio.gather(*(outcome(run, *one) for one in roads("silent")))
            finally:
                silent_for.set()  # no resolver is silent for ever; a question to one cannot be taken back

        assert await unharmed(run, ask) == [[504] * 8]


# --- what never ends ---

Said = Callable[[str], bytes]
MUCH = "x" * 1000


def begun(dialect: str, *more: bytes) -> bytes:
    """The head and the first events of a stream."""
    first = chunk(role="assistant", content="")
    if dialect == "messages":
        first = event("message_start", message=text_of("messages", "") | {"content": [], "stop_reason": None})
    return EVENTS + b"\r\n" + first + b"".join(more)


def call_begins(dialect: str) -> bytes:
    if dialect == "messages":
        block = {"type": "tool_use", "id": "t1", "name": "mine", "input": {}}
        return event("content_block_start", index=0, content_block=block)
    return chunk(tool_calls=[{"index": 0, "id": "t1", "type": "function", "function": {"name": "mine"}}])


def call_goes_on(dialect: str) -> bytes:
    if dialect == "messages":
        return event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": MUCH})
    return chunk(tool_calls=[{"index": 0, "function": {"arguments": MUCH}}])


ENDLESS: dict[str, tuple[int | str, Said, Said]] = {
    "comments": ("broken", lambda _: EVENTS + b"\r\n", lambda _: b": more\n\n" * 500),
    "an event": (502, lambda _: EVENTS + b"\r\ndata: ", lambda _: b"x" * 4000),
    "a text": (
        "broken",
        lambda one: begun(one, around(one)[0]),
        lambda one: (delta if one == "messages" else chunk)(MUCH),
    ),
    "a call": ("broken", lambda one: begun(one, call_begins(one)), call_goes_on),
    "JSON": (502, lambda _: JSON + b'\r\n{"x":"', lambda _: b"x" * 4000),
}
"""By name: what the client of a watched stream has, how the answer begins, and what it goes on with for ever."""


def without_end(name: str) -> Answer:
    _, begin, piece = ENDLESS[name]

    async def answer(one: Call, link: Link) -> None:
        dialect = dialect_of(one)
        await link.send(b"HTTP/1.1 200 OK\r\n" + begin(dialect))
        while True:  # until the connection is closed, which raises
            await link.send(piece(dialect) * 10)
            await asyncio.sleep(0)

    return answer


NEVER_ENDING = {name: without_end(name) for name in ENDLESS}


async def test_a_stream_that_never_ends_is_cut_where_it_is_folded(subtests: pytest.Subtests) -> None:
    """Whatever comes without end, it ends with an error when it is longer than a reply may be; JSON is a 502."""
    async with rig(NEVER_ENDING) as run:
        for name, (wanted, _, _) in ENDLESS.items():
            with subtests.test(name):
                asked = [(one, request_body(one, name, stream=True)) for one in BOTH]
                assert await unharmed(run, *[lambda one=one: outcome(run, *one) for one in asked]) == [wanted] * 2
        asked = [(one, request_body(one, name)) for name in ENDLESS for one in BOTH]
        assert await unharmed(run, *[lambda one=one: outcome(run, *one) for one in asked]) == [502] * len(asked)


async def test_an_event_that_never_ends_has_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a reply may be, one event may not."""
    monkeypatch.setattr(stream_road, "LARGEST_REPLY", 1 << 40)
    monkeypatch.setattr(stream_road, "Reader", functools.partial(Reader, 20_000))
    async with rig(NEVER_ENDING) as run:
        asked = [(one, request_body(one, "an event", stream=True)) for one in BOTH]
        assert await unharmed(run, *[lambda one=one: outcome(run, *one) for one in asked]) == [502] * 2


async def test_a_stream_that_never_ends_holds_nothing_where_it_passes(subtests: pytest.Subtests) -> None:
    """An unwatched client reads a megabyte of it and leaves: the call is closed."""

    async def some(dialect: str, name: str, stream: bool) -> int:
        size = 0
        body = request_body(dialect, name, tools=(), stream=stream)
        headers = {"authorization": f"Bearer {KEY}"}
        async with run.client.stream("POST", PATHS[dialect], json=body, headers=headers) as answer:
            async for piece in answer.aiter_raw():
                size += len(piece)
                if size > 1_000_000:
                    break
        return size

    async with rig(NEVER_ENDING) as run:
        for name in ENDLESS:
            with subtests.test(name):
                asked = [(one, name, stream) for one in BOTH for stream in (False, True)]
                assert min(await unharmed(run, *[lambda one=one: some(*one) for one in asked])) > 1_000_000


# --- what takes its time ---


async def test_a_trickle_is_bounded_by_the_request() -> None:
    """A server that sends a byte now and then is never silent; `request_timeout_seconds` ends it on each road."""

    async def drip(call: Call, link: Link) -> None:
        await link.send(b"HTTP/1.1 200 OK\r\n" + whole(call)[0] + b"content-length: 100000\r\n\r\n")
        while True:
            await link.send(b" ")
            await asyncio.sleep(0.02)

    async with rig({"drips": drip}, server={"request_timeout_seconds": 1}) as run:
        begun = asyncio.get_running_loop().time()
        got = await at_once(run, *[lambda one=one: outcome(run, *one) for one in roads("drips")])
        assert got == [504, 504, 504, 504, 504, 504, "broken", "broken"]
        assert asyncio.get_running_loop().time() - begun < 4


async def test_a_slow_server_is_no_silent_one() -> None:
    """Piece by piece it takes longer than `read_timeout_seconds`, and each piece comes in time: the right answer."""

    async def slow(call: Call, link: Link) -> bool:
        kind, body = whole(call)
        await link.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n" % (len(body), kind))
        step = len(body) // 9
        for place in range(0, len(body), step):
            await link.send(body[place : place + step])
            await asyncio.sleep(0.08)
        return True

    async with rig({"slow": slow}, upstreams={"wire": {"read_timeout_seconds": 0.5}}) as run:
        assert await at_once(run, *[lambda one=one: outcome(run, *one) for one in roads("slow")]) == [200] * 8
