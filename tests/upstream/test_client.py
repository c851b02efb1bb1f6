"""What goes out to a model server, what comes back, and what becomes of the connection. Real sockets."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from opentelemetry.instrumentation.httpx import AsyncOpenTelemetryTransport

from loopway.errors import BadRequest, Broken, Silent, Unreachable, UpstreamError
from loopway.upstream.client import Try, Upstream
from loopway.upstream.pool import Target, open_pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from loopway.upstream.response import UpstreamResponse
    from upstream.conftest import Call, Link, Made, Wire

SECRET = "sk-very-secret"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def send(one: Upstream, query: str = "", headers: Any = (), body: bytes = b"{}", **more: Any) -> UpstreamResponse:
    given: dict[str, Any] = {"auth": "x-api-key", **more}
    return await one.send("/v1/messages", query, headers, body, **given)


async def ask(one: Upstream, **more: Any) -> bytes:
    return await (await send(one, **more)).read(1 << 20)


# --- what goes out ---


async def test_body_and_answer_travel_unchanged(wire: Wire, upstream: Made) -> None:
    """Body bytes go out and come back as they are."""
    wire.script(wire.reply(b'{ "a" : 1 }\n'))
    assert await ask(upstream(), body=b'{ "model":"m" }') == b'{ "a" : 1 }\n'
    assert wire.calls[0].line == "POST /v1/messages HTTP/1.1"
    assert wire.calls[0].body == b'{ "model":"m" }'


async def test_default_headers_are_these_and_no_others(wire: Wire, upstream: Made) -> None:
    """Nothing is added beside what a call needs."""
    await ask(upstream())
    assert set(wire.calls[0].headers) == {
        "host", "content-length", "content-type", "accept-encoding", "user-agent", "x-api-key"
    }  # fmt: skip
    assert wire.calls[0].headers["accept-encoding"] == "identity"
    assert wire.calls[0].headers["content-type"] == "application/json"
    assert wire.calls[0].headers["user-agent"].startswith("loopway/")


async def test_given_headers_travel(wire: Wire, upstream: Made) -> None:
    """What the caller hands over goes out, its own user-agent and content-type too."""
    given = [(b"anthropic-version", b"2023-06-01"), (b"user-agent", b"me/1"), (b"content-type", b"application/x")]
    await ask(upstream(), headers=given)
    seen = wire.calls[0].headers
    assert {name: seen[name.decode()].encode() for name, _ in given} == dict(given)


@pytest.mark.parametrize(
    "name", ["cookie", "authorization", "x-api-key", "connection", "transfer-encoding", "proxy-authorization", "te"]
)
async def test_what_never_travels(wire: Wire, upstream: Made, name: str) -> None:
    """Keys, cookies and hop-by-hop headers are left out even if a caller hands them over."""
    await ask(upstream(api_key=None), headers=[(name.encode(), b"value")])
    assert name not in wire.calls[0].headers


async def test_configured_headers_win(wire: Wire, upstream: Made) -> None:
    """A header of the configuration replaces the client's and the gateway's own."""
    extra = {"Anthropic-Beta": "ours", "user-agent": "configured", "accept-encoding": "gzip", "x-api-key": "other"}
    await ask(upstream(headers=extra), headers=[(b"anthropic-beta", b"theirs"), (b"user-agent", b"me/1")])
    values = [(name.lower(), value) for name, value in wire.calls[0].lines]
    for name, value in extra.items():
        assert [v for n, v in values if n == name.lower()] == [value]


@pytest.mark.parametrize(
    ("auth", "name", "value"), [("x-api-key", "x-api-key", SECRET), ("bearer", "authorization", f"Bearer {SECRET}")]
)
async def test_key_travels_as_the_dialect_wants(wire: Wire, upstream: Made, auth: str, name: str, value: str) -> None:
    """The upstream's key goes in one header, and the client's does not go."""
    await ask(upstream(), auth=auth, client_auth=[(b"x-api-key", b"client"), (b"authorization", b"Bearer client")])
    seen = {n: v for n, v in wire.calls[0].headers.items() if n in {"x-api-key", "authorization"}}
    assert seen == {name: value}


@pytest.mark.parametrize(
    ("client", "seen"),
    [
        ([(b"authorization", b"Bearer client")], {"authorization": "Bearer client"}),
        ([(b"x-api-key", b"client")], {"x-api-key": "client"}),
        ([], {"x-api-key": SECRET}),
    ],
)
async def test_forwarded_client_key(wire: Wire, upstream: Made, client: Any, seen: dict[str, str]) -> None:
    """With forward_client_auth the client's key goes as it came; the configured one only if there is none."""
    await ask(upstream(forward_client_auth=True), client_auth=client)
    assert {n: v for n, v in wire.calls[0].headers.items() if n in {"x-api-key", "authorization"}} == seen


@pytest.mark.parametrize(
    "query", ["beta=true&x=%C3%A9", "a=b%2Bc+d%20e", "a=&&b", "x=%26%3D", "x=a%2Fb/c", "x=%7Ea~b", "x=%2f", "a='b'"]
)
async def test_query_travels(wire: Wire, upstream: Made, query: str) -> None:
    """The query string keeps its bytes."""
    one = upstream()
    await ask(one, query=query)
    await ask(one, query=query)
    assert [call.target for call in wire.calls] == [f"/v1/messages?{query}"] * 2


async def test_query_that_is_none(upstream: Made) -> None:
    """A query with a control character is the client's mistake."""
    with pytest.raises(BadRequest):
        await ask(upstream(), query="a=\x01")


@pytest.mark.parametrize(
    ("base", "target"),
    [("", "/v1/messages"), ("/", "/v1/messages"), ("/v1", "/v1/messages"), ("/v1/", "/v1/messages"),
     ("/proxy/llm", "/proxy/llm/v1/messages"), ("?api=2", "/v1/messages?api=2")],
)  # fmt: skip
async def test_base_url(wire: Wire, upstream: Made, base: str, target: str) -> None:
    """The path joins the base without a doubled slash or /v1; a query of the base stays."""
    await ask(upstream(base_url=wire.url + base))
    assert wire.calls[0].target == target


async def test_cookies_are_not_kept(wire: Wire, upstream: Made) -> None:
    """A cookie that the upstream sets never goes back to it."""
    wire.script(wire.reply(b"{}", 200, "set-cookie: a=1"))
    one = upstream(base_url=wire.url.replace("127.0.0.1", "localhost"))
    await ask(one)
    await ask(one)
    assert "cookie" not in wire.calls[1].headers


async def test_get_has_no_body(wire: Wire, upstream: Made) -> None:
    """A GET goes out without a body and without its headers."""
    response = await upstream().send("/v1/models", "", (), b"", auth="bearer", method="GET")
    await response.read(100)
    assert wire.calls[0].line == "GET /v1/models HTTP/1.1"
    assert "content-type" not in wire.calls[0].headers


# --- what comes back ---


async def test_head_comes_back(wire: Wire, upstream: Made) -> None:
    """Status and headers are the upstream's, names in lower case, repeated ones kept."""
    wire.script(wire.reply(b"{}", 418, "Request-ID: r", "x-a: 1", "x-a: 2"))
    response = await send(upstream())
    assert response.status == 418
    assert response.header(b"request-id") == b"r"
    assert [value for name, value in response.headers if name == b"x-a"] == [b"1", b"2"]
    assert await response.read(10) == b"{}"


async def test_pieces_come_as_they_are_sent(wire: Wire, upstream: Made) -> None:
    """A piece is handed on before the next one is sent."""
    go = asyncio.Event()

    async def trickle(_: Call, link: Link) -> bool:
        await link.send(HEAD, b"3\r\none\r\n")
        await go.wait()
        await link.send(b"3\r\ntwo\r\n0\r\n\r\n")
        return True

    wire.script(trickle)
    pieces = aiter((await send(upstream())).chunks())
    assert await anext(pieces) == b"one"
    go.set()
    assert [piece async for piece in pieces] == [b"two"]


async def test_connection_is_used_again(wire: Wire, upstream: Made) -> None:
    """Calls one behind the other share a connection."""
    one = upstream()
    for _ in range(3):
        await ask(one)
    assert wire.connections == 1


async def test_many_at_once(wire: Wire, upstream: Made) -> None:
    """There is no limit of connections here: 150 calls are under way at the same time."""
    everyone = asyncio.Event()

    async def together(_: Call, link: Link) -> bool:
        if len(wire.calls) == 150:
            everyone.set()
        await everyone.wait()
        await link.send(wire.reply())
        return True

    wire.script(together)
    one = upstream()
    assert len(await asyncio.gather(*(ask(one) for _ in range(150)))) == 150


async def test_a_slow_reader_gets_everything(wire: Wire, upstream: Made) -> None:
    """A body that waits in buffers is whole although the server has closed its end long ago."""

    async def hurry(_: Call, link: Link) -> None:
        await link.send(HEAD)
        for _number in range(100):
            await link.send(b"2000\r\n" + b"x" * 0x2000 + b"\r\n")
        await link.send(b"0\r\n\r\n")

    wire.script(hurry)
    response = await send(upstream())
    pieces = aiter(response.chunks())
    size = len(await anext(pieces))
    await wire.until(lambda: wire.open == 0)
    async for piece in pieces:
        size += len(piece)
    assert size == 100 * 0x2000


@pytest.mark.parametrize("head", [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"])
async def test_no_body(wire: Wire, upstream: Made, head: bytes) -> None:
    """A 204 and an empty answer are read as nothing; what that means is the caller's matter."""
    wire.script(head)
    assert await ask(upstream()) == b""


@pytest.mark.parametrize(
    "first", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 3]
)
async def test_informational_heads_are_skipped(wire: Wire, upstream: Made, first: bytes) -> None:
    """1xx heads in front of the answer change nothing."""
    wire.script(first + wire.reply(b"{}"))
    assert await ask(upstream()) == b"{}"


async def test_body_until_the_connection_closes(wire: Wire, upstream: Made) -> None:
    """An answer without a length ends where the connection does."""

    async def old(_: Call, link: Link) -> None:
        await link.send(b"HTTP/1.0 200 OK\r\n\r\nall of it")

    wire.script(old)
    assert await ask(upstream()) == b"all of it"


async def test_longer_than_its_length(wire: Wire, upstream: Made) -> None:
    """Bytes behind the declared length make an answer that nobody can trust, and spoil no other one."""
    wire.script(wire.reply(b"{}garbage", length=2), wire.reply(b"second"))
    one = upstream()
    with pytest.raises(Broken):
        await ask(one)
    assert await ask(one) == b"second"


async def test_many_headers_are_fine(wire: Wire, upstream: Made) -> None:
    """300 header lines are read."""
    wire.script(wire.reply(b"{}", 200, *(f"x-{number}: a" for number in range(300))))
    assert len((await send(upstream())).headers) > 300


async def test_a_large_header_is_fine(wire: Wire, upstream: Made) -> None:
    """A header of 60 KB is read."""
    wire.script(wire.reply(b"{}", 200, "x-large: " + "x" * 60_000))
    assert len((await send(upstream())).header(b"x-large") or b"") == 60_000


@pytest.mark.parametrize("lines", [["x-large: " + "x" * 70_000], [f"x-{n}: {'x' * 1000}" for n in range(80)]])
async def test_a_huge_header_is_not(wire: Wire, upstream: Made, lines: list[str]) -> None:
    """A header of more than 64 KiB, in one line or many, is refused."""
    wire.script(wire.reply(b"{}", 200, *lines))
    with pytest.raises(Broken):
        await send(upstream())


async def test_more_than_asked_for(wire: Wire, upstream: Made) -> None:
    """`read` takes exactly as many bytes as it may, and not one more."""
    wire.script(wire.reply(b"x" * 1000))
    one = upstream()
    assert len(await (await send(one)).read(1000)) == 1000
    with pytest.raises(Broken, match="999"):
        await (await send(one)).read(999)


ENCODED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP": gzip.compress,
    "deflate": zlib.compress,
}


@pytest.mark.parametrize("encoding", ENCODED)
async def test_encoded_against_our_wish(wire: Wire, upstream: Made, encoding: str) -> None:
    """A compressed body is undone for who reads it, and left alone for who passes it on."""
    packed = ENCODED[encoding](b"plain " * 100)
    wire.script(wire.reply(packed, 200, f"content-encoding: {encoding}"))
    one = upstream()
    response = await send(one)
    assert response.encoded
    assert await response.read(1000) == b"plain " * 100
    assert await (await send(one)).read(1000, raw=True) == packed


async def test_not_encoded(wire: Wire, upstream: Made) -> None:
    """`identity` is no encoding."""
    wire.script(wire.reply(b"{}", 200, "content-encoding: identity"))
    response = await send(upstream())
    assert not response.encoded
    assert await response.read(10) == b"{}"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("br", b"x"), ("gzip", b"no gzip"), ("gzip", gzip.compress(b"x" * 99, mtime=0)[:-9]), ("gzip, br", b"x")],
)
async def test_encoding_that_cannot_be_undone(wire: Wire, upstream: Made, encoding: str, body: bytes) -> None:
    """An unknown, wrong or cut encoding is a broken answer, not a garbled one."""
    wire.script(wire.reply(body, 200, f"content-encoding: {encoding}"))
    with pytest.raises(Broken, match="content-encoding"):
        await ask(upstream())


async def test_a_small_body_that_unpacks_to_a_huge_one(wire: Wire, upstream: Made) -> None:
    """The bound of `read` is on what was unpacked."""
    wire.script(wire.reply(gzip.compress(bytes(50_000_000)), 200, "content-encoding: gzip"))
    with pytest.raises(Broken, match="more than"):
        await ask(upstream())


# --- what breaks ---


async def reset(_: Call, link: Link) -> None:
    link.reset()


async def close(_: Call, _link: Link) -> None:
    pass


async def half_a_head(_: Call, link: Link) -> None:
    await link.send(b"HTTP/1.1 200 OK\r\ncontent-le")


async def garbage(_: Call, link: Link) -> None:
    await link.send(b"SSH-2.0-OpenSSH_9.6\r\n")
    await link.gone()


async def stall(_: Call, link: Link) -> None:
    await link.gone()


async def switch(_: Call, link: Link) -> None:
    await link.send(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n")
    await link.gone()


BEFORE = [
    (reset, Unreachable, "closed the connection before it answered"),
    (close, Unreachable, "closed the connection before it answered"),
    (half_a_head, Unreachable, "closed the connection before it answered"),
    (garbage, Broken, "no HTTP"),
    (stall, Silent, "read_timeout_seconds"),
    (switch, Broken, "101"),
]


@pytest.mark.parametrize(("answer", "kind", "text"), BEFORE)
async def test_breaks_before_the_head(
    wire: Wire,
    upstream: Made,
    answer: Callable[[Call, Link], Awaitable[object]],
    kind: type[UpstreamError],
    text: str,
) -> None:
    """Each way to fail before the head has its error, with a text that names the upstream and no secret."""
    wire.script(answer)
    with pytest.raises(kind, match=text) as caught:
        await ask(upstream(read_timeout=0.05), query="token=hidden")
    assert "'far'" in caught.value.text
    assert not {SECRET, "hidden", "127.0.0.1"} & set(caught.value.text.replace("/", " ").split())
    assert SECRET not in caught.value.text


async def cut_chunks(_: Call, link: Link) -> None:
    await link.send(HEAD, b"5\r\nhello\r\n")


async def reset_in_body(_: Call, link: Link) -> None:
    await link.send(HEAD, b"5\r\nhello\r\n")
    await asyncio.sleep(0)
    link.reset()


async def too_short(_: Call, link: Link) -> None:
    await link.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello")


async def stall_in_body(_: Call, link: Link) -> None:
    await link.send(HEAD, b"5\r\nhello\r\n")
    await link.gone()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(cut_chunks, Broken), (reset_in_body, Broken), (too_short, Broken), (stall_in_body, Silent)],
)
async def test_breaks_in_the_body(
    wire: Wire, upstream: Made, answer: Callable[[Call, Link], Awaitable[object]], kind: type[UpstreamError]
) -> None:
    """A body that does not come to its end is an error, never a short body, however often it is asked for."""
    wire.script(answer)
    response = await send(upstream(read_timeout=0.05))
    with pytest.raises(kind):
        await response.read(1000)
    with pytest.raises(Broken):
        await response.read(1000)


async def test_garbage_among_the_chunks(wire: Wire, upstream: Made) -> None:
    """A chunk whose size is no number breaks the answer at once; aiohttp's own answer would wait for ever."""
    go = asyncio.Event()

    async def bad_chunk(_: Call, link: Link) -> None:
        await link.send(HEAD, b"5\r\nhello\r\n")
        await go.wait()
        await link.send(b"zz\r\nwhat\r\n")
        await link.gone()

    wire.script(bad_chunk)
    pieces = aiter((await send(upstream())).chunks())
    assert await anext(pieces) == b"hello"
    go.set()
    async with asyncio.timeout(5):
        with pytest.raises(Broken):
            await anext(pieces)


async def test_bytes_on_an_idle_connection_are_nobodys_answer(wire: Wire, upstream: Made) -> None:
    """A second answer that comes long after the first is not the next call's, and neither is its connection used."""
    go = asyncio.Event()

    async def twice(_: Call, link: Link) -> bool:
        await link.send(wire.reply(b"first"))
        await go.wait()
        await link.send(wire.reply(b"somebody else's"))
        return True

    wire.script(twice, wire.reply(b"second"))
    one = upstream()
    assert await ask(one) == b"first"
    (waiting,) = one._transport.client.connector._conns.values()  # type: ignore[attr-defined]
    go.set()
    async with asyncio.timeout(5):
        while not waiting[0][0].should_close:  # noqa: ASYNC110 - nothing is set when bytes are read
            await asyncio.sleep(0)
    assert await ask(one) == b"second"
    assert [call.connection for call in wire.calls] == [1, 2]


async def test_no_connection(upstream: Made, unused_tcp_port: int) -> None:
    """A port where nobody listens is unreachable."""
    with pytest.raises(Unreachable, match="cannot be reached"):
        await ask(upstream(base_url=f"http://127.0.0.1:{unused_tcp_port}"))


async def test_no_such_host(upstream: Made) -> None:
    """A host name that does not resolve is unreachable, and says so."""
    with pytest.raises(Unreachable, match="resolve"):
        await ask(upstream(base_url="http://no-such-host.invalid"))


async def test_http_server_behind_https(upstream: Made) -> None:
    """TLS with a server that speaks none is unreachable, and names the scheme."""

    async def plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match="scheme"):
            await ask(upstream(base_url=f"https://127.0.0.1:{port}"))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(wire: Wire, upstream: Made, status: int) -> None:
    """A redirect is a wrong base_url: the key would go where nobody configured it to go."""
    wire.script(wire.reply(b"", status, f"location: {wire.url}/elsewhere"))
    with pytest.raises(Broken, match="base_url"):
        await ask(upstream(max_retries=3))
    assert len(wire.calls) == 1


# --- tries ---


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
async def test_statuses_that_are_tried_again(wire: Wire, upstream: Made, status: int) -> None:
    """These statuses get another try, and each try is told."""
    wire.script(wire.reply(b"busy", status), wire.reply(b"at last"))
    tries: list[Try] = []
    assert await ask(upstream(max_retries=2), tried=tries.append) == b"at last"
    assert [(one.status, one.error_kind) for one in tries] == [(status, None), (200, None)]
    assert all(0 <= one.seconds < 5 for one in tries)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
async def test_statuses_that_are_not(wire: Wire, upstream: Made, status: int) -> None:
    """Any other status is the answer."""
    wire.script(wire.reply(b"no", status), wire.reply())
    assert (await send(upstream(max_retries=2))).status == status
    assert len(wire.calls) == 1


async def test_what_is_left_in_the_end_comes_back(wire: Wire, upstream: Made) -> None:
    """Behind the last try the status, headers and body are the upstream's own."""
    wire.script(wire.reply(b"slow down", 429, "retry-after: 1"))
    response = await send(upstream(max_retries=2))
    assert (response.status, response.header(b"retry-after")) == (429, b"1")
    assert await response.read(100) == b"slow down"
    assert len(wire.calls) == 3


async def test_pauses_grow(wire: Wire, upstream: Made) -> None:
    """Full jitter over 0.25, 0.5, 1, 2, 4, 4 seconds; the test draws the half."""
    wire.script(wire.reply(b"", 503))
    await ask(upstream(max_retries=6))
    assert upstream.pauses == [0.125, 0.25, 0.5, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("line", "pause"),
    [("retry-after: 3", 3.0), ("retry-after: 0", 0.0), ("retry-after-ms: 20", 0.02), ("retry-after: soon", 0.125)],
)
async def test_retry_after_is_honoured(wire: Wire, upstream: Made, line: str, pause: float) -> None:
    """The upstream's own pause is taken; nonsense is not."""
    wire.script(wire.reply(b"", 429, line), wire.reply())
    await ask(upstream(max_retries=1))
    assert upstream.pauses == [pause]


@pytest.mark.parametrize("line", ["retry-after: 11", "retry-after: 100000", "x-should-retry: false"])
async def test_answers_that_end_the_tries(wire: Wire, upstream: Made, line: str) -> None:
    """A long pause or an explicit no goes to the client at once."""
    wire.script(wire.reply(b"", 429, line), wire.reply())
    assert (await send(upstream(max_retries=2))).status == 429
    assert not upstream.pauses


async def test_no_try_behind_the_deadline(wire: Wire, upstream: Made) -> None:
    """What would begin too late does not begin; the answer that is there comes back."""
    wire.script(wire.reply(b"", 429, "retry-after: 3"), wire.reply())
    assert (await send(upstream(max_retries=2), deadline=time.monotonic() + 2.9)).status == 429
    assert (await send(upstream(max_retries=2), deadline=time.monotonic() + 60)).status == 200


async def test_a_broken_connection_is_tried_again(wire: Wire, upstream: Made) -> None:
    """A connection that broke before the head gets another try."""
    wire.script(reset, close, wire.reply(b"at last"))
    tries: list[Try] = []
    assert await ask(upstream(max_retries=2), tried=tries.append) == b"at last"
    assert [(one.status, one.error_kind) for one in tries] == [
        (0, "upstream_unreachable"), (0, "upstream_unreachable"), (200, None)
    ]  # fmt: skip


async def test_the_last_failure_is_raised(wire: Wire, upstream: Made) -> None:
    """With every try failed the error comes, behind as many tries as configured."""
    wire.script(close)
    with pytest.raises(Unreachable):
        await ask(upstream(max_retries=2))
    assert len(wire.calls) == 3


async def test_a_silence_is_not_tried_again(wire: Wire, upstream: Made) -> None:
    """Behind a read time-out the call may still be running, and costs money."""
    wire.script(stall)
    tries: list[Try] = []
    with pytest.raises(Silent):
        await ask(upstream(max_retries=2, read_timeout=0.05), tried=tries.append)
    assert [one.error_kind for one in tries] == ["upstream_timeout"]


async def test_nothing_is_tried_again_in_the_body(wire: Wire, upstream: Made) -> None:
    """Once the body runs, a cut is final."""
    wire.script(cut_chunks, wire.reply())
    with pytest.raises(Broken):
        await ask(upstream(max_retries=2))
    assert len(wire.calls) == 1


async def test_connections_that_were_closed_while_idle(wire: Wire, upstream: Made) -> None:
    """A keep-alive connection that the server closed between two calls costs no try."""
    one = upstream()
    await ask(one)
    wire.links[0].writer.close()
    await wire.until(lambda: wire.open == 0)
    assert await ask(one) == b'{"ok":true}'
    assert wire.connections == 2


# --- whose connection it is ---


async def test_leaving_while_the_head_is_awaited(wire: Wire, upstream: Made) -> None:
    """Cancellation closes the connection at once, and is told as a try."""
    wire.script(stall)
    tries: list[Try] = []
    task = asyncio.create_task(ask(upstream(max_retries=2), tried=tries.append))
    await wire.until(lambda: len(wire.calls) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wire.until(lambda: wire.open == 0)
    assert [one.error_kind for one in tries] == ["cancelled"]
    assert len(wire.calls) == 1


async def test_leaving_while_the_body_comes(wire: Wire, upstream: Made) -> None:
    """Cancellation in the body closes the connection at once."""
    wire.script(stall_in_body)
    pieces = aiter((await send(upstream())).chunks())
    assert await anext(pieces) == b"hello"
    task = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wire.until(lambda: wire.open == 0)


@pytest.mark.parametrize("begun", [False, True])
async def test_closing_without_reading_to_the_end(wire: Wire, upstream: Made, begun: bool) -> None:
    """`aclose` of half a body drops the connection instead of waiting for the rest."""
    wire.script(stall_in_body)
    response = await send(upstream())
    if begun:
        await anext(aiter(response.chunks()))
    await response.aclose()
    await response.aclose()
    await wire.until(lambda: wire.open == 0)
    with pytest.raises(Broken):
        await response.read(10)


async def test_closing_while_another_task_reads(wire: Wire, upstream: Made) -> None:
    """A reader is woken with an error when somebody else closes the answer."""
    wire.script(stall_in_body)
    response = await send(upstream())
    pieces = aiter(response.chunks())
    await anext(pieces)
    reader = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    await response.aclose()
    with pytest.raises(Broken):
        await reader


async def test_the_end_stays_the_end(upstream: Made) -> None:
    """Whoever asks again behind the end of a whole body gets nothing, and no error."""
    response = await send(upstream())
    assert await response.read(100) == b'{"ok":true}'
    assert await response.read(100) == b""


async def test_a_busy_answer_is_dropped_before_the_next_try(wire: Wire, upstream: Made) -> None:
    """The body of an answer that is not taken is not waited for."""

    async def endless(_: Call, link: Link) -> None:
        await link.send(wire.reply(b"half", 503, length=100))
        await link.gone()

    wire.script(endless, wire.reply())
    one = upstream(max_retries=1)
    response = await send(one)
    await wire.until(lambda: wire.open == 1)
    assert await response.read(100) == b'{"ok":true}'


async def test_closing_behind_the_end_keeps_the_connection(wire: Wire, upstream: Made) -> None:
    """An answer that was read to its end gives its connection back."""
    one = upstream()
    response = await send(one)
    await response.read(100)
    await response.aclose()
    await ask(one)
    assert wire.connections == 1


async def test_a_body_that_is_too_long_drops_its_connection(wire: Wire, upstream: Made) -> None:
    """`read` closes what it does not want."""

    async def endless(_: Call, link: Link) -> None:
        await link.send(HEAD, b"5\r\nhello\r\n")
        await link.gone()

    wire.script(endless)
    with pytest.raises(Broken):
        await (await send(upstream())).read(2)
    await wire.until(lambda: wire.open == 0)


# --- what stands between ---


class Between(httpx.AsyncBaseTransport):
    """A transport that gives or raises what it is told."""

    def __init__(self, outcome: httpx.Response | Exception, body: Exception | None = None) -> None:
        self.outcome, self.body, self.closed = outcome, body, False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.body is not None:
            return httpx.Response(200, stream=Failing(self.body))
        return self.outcome

    async def aclose(self) -> None:
        self.closed = True


class Failing(httpx.AsyncByteStream):
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"a"
        raise self.error


TARGET = Target(name="far", base_url="http://far.invalid", max_retries=0)


@pytest.mark.parametrize(
    ("error", "before", "inside"),
    [
        (httpx.ConnectTimeout("x"), Silent, Silent),
        (httpx.PoolTimeout("x"), Silent, Silent),
        (httpx.ReadTimeout("x"), Silent, Silent),
        (httpx.ConnectError("x"), Unreachable, Broken),
        (httpx.ReadError("x"), Unreachable, Broken),
        (httpx.ProxyError("x"), Unreachable, Broken),
        (httpx.RemoteProtocolError("x"), Broken, Broken),
        (TimeoutError(), Silent, Silent),
        (ConnectionResetError(), Unreachable, Broken),
    ],
)
async def test_errors_of_any_transport(
    error: Exception, before: type[UpstreamError], inside: type[UpstreamError]
) -> None:
    """A transport that is not aiohttp's is translated, too."""
    with pytest.raises(before) as caught:
        await ask(Upstream(TARGET, transport=Between(error)))
    assert caught.value.__cause__ is error
    with pytest.raises(inside):
        await ask(Upstream(TARGET, transport=Between(httpx.Response(200), error)))


async def test_a_given_transport_is_used_and_closed() -> None:
    """An instrumentation can stand between, and is closed with the upstream."""
    between = Between(httpx.Response(200, content=b"from between"))
    one = Upstream(TARGET, transport=between)
    assert await ask(one) == b"from between"
    await one.aclose()
    assert between.closed


async def test_what_stands_between_sees_requests_and_answers_of_httpx(wire: Wire, upstream: Made) -> None:
    """Whatever it reads, changes or sends itself, although our own are made with less."""
    wire.script(wire.reply(b"first", 201), wire.reply(b"second"))
    target = Target(name="far", base_url=wire.url, api_key=SECRET)
    pool = open_pool(target)
    seen: list[Any] = []

    class Looks(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            seen.append((request.method, str(request.url), request.headers["x-api-key"], request.content))
            request.headers["x-added"] = "yes"
            answer = await pool.handle_async_request(request)
            seen.append((answer.status_code, answer.headers["content-length"], answer.request is request))
            seen.append((answer.extensions["http_version"], answer.reason_phrase, answer.is_success))
            return answer

        async def aclose(self) -> None:
            await pool.aclose()

    one = Upstream(target, transport=Looks())
    upstream.upstreams.append(one)
    assert await ask(one, body=b'{"x":1}') == b"first"
    assert seen == [
        ("POST", f"{wire.url}/v1/messages", SECRET, b'{"x":1}'),
        (201, "5", True),
        (b"HTTP/1.1", "Scripted", True),
    ]
    assert wire.calls[0].headers["x-added"] == "yes"
    own = await pool.handle_async_request(httpx.Request("POST", f"{wire.url}/own", content=b"of httpx"))
    assert await own.aread() == b"second"
    assert wire.calls[1].body == b"of httpx"


async def test_what_stands_between_may_change_the_answer(wire: Wire, upstream: Made) -> None:
    """Its headers and its stream count, not those that came; and what it adds to a request is in that one only."""
    target = Target(name="far", base_url=wire.url)
    pool = open_pool(target)
    extensions: list[dict[str, Any]] = []

    class Loud(httpx.AsyncByteStream):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in self.inner:
                yield piece.upper()

        async def aclose(self) -> None:
            await self.inner.aclose()

    class Changes(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            extensions.append(dict(request.extensions))
            request.extensions["mine"] = True
            answer = await pool.handle_async_request(request)
            answer.headers["x-between"] = "yes"
            answer.stream = Loud(answer.stream)
            return answer

        async def aclose(self) -> None:
            await pool.aclose()

    one = Upstream(target, transport=Changes())
    upstream.upstreams.append(one)
    for _ in range(2):
        response = await send(one)
        assert response.header(b"x-between") == b"yes"
        assert await response.read(100) == b'{"OK":TRUE}'
    assert not any("mine" in seen for seen in extensions)


async def test_what_is_added_to_one_call_is_not_in_the_next(wire: Wire, upstream: Made) -> None:
    """Heads are kept for the next call with the same headers: without its trace, and without other clients' keys."""
    one = upstream(api_key=None, forward_client_auth=True)
    for number in range(3):
        key = ((b"x-api-key", b"sk-%d" % number),) if number != 1 else ()
        await ask(one, headers=((b"accept", b"a/b"),), client_auth=key, trace={"traceparent": f"00-{number}"})
    assert [call.headers.get("x-api-key") for call in wire.calls] == ["sk-0", None, "sk-2"]
    assert [call.headers["traceparent"] for call in wire.calls] == ["00-0", "00-1", "00-2"]
    await ask(one, headers=((b"accept", b"a/b"),))
    assert "traceparent" not in wire.calls[3].headers


async def test_heads_that_are_kept_are_bounded(wire: Wire, upstream: Made) -> None:
    """A client that sends another header each time takes no memory."""
    one = upstream()
    for number in range(200):
        await ask(one, headers=((b"anthropic-beta", b"%d" % number),))
    assert len(one._heads) <= 64
    assert [call.headers["anthropic-beta"] for call in wire.calls] == [str(number) for number in range(200)]


async def test_the_instrumentation_of_httpx_fits(wire: Wire, upstream: Made) -> None:
    """OpenTelemetry's transport stands around the pool, and the pool is closed with it."""
    target = Target(name="far", base_url=wire.url, max_retries=0)
    pool = open_pool(target)
    one = Upstream(target, transport=AsyncOpenTelemetryTransport(pool))
    upstream.upstreams.append(one)
    assert await ask(one) == b'{"ok":true}'
    wire.script(reset)
    with pytest.raises(Unreachable):
        await ask(one)
    await one.aclose()
    await wire.until(lambda: wire.open == 0)


def test_it_names_itself() -> None:
    """Telemetry can ask for name, host and port."""
    one = Upstream(Target(name="far", base_url="http://far.invalid:81/v1"), transport=Between(OSError()))
    assert (one.name, one.host, one.port) == ("far", "far.invalid", 81)
