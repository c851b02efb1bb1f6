"""Request smuggling through two HTTP stacks: what a proxy could read in another way is refused, what goes up is new.

The parser of requests is llhttp (httptools in uvicorn), the writer of calls is aiohttp; nothing of a request's framing
reaches the call.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from faults.rawclient import good, raw, request
from inprocess import BOTH, KEY, gateway_over, request_body
from loopway.testing import Reply, text
from upstream.conftest import Call, Link, Wire

QUICK = good(model="m")
SECOND = request(body=good(model="smuggled"))
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(QUICK), QUICK)
EMPTY = b"0\r\n\r\n"


def chunked(*lines: bytes, body: bytes = EMPTY) -> bytes:
    return request(*lines, body=body, framed=False)


SMUGGLED: dict[str, tuple[list[int], bytes]] = {
    "CL.TE": ([400], request(b"transfer-encoding: chunked", body=EMPTY + SECOND)),
    "TE.CL": ([400], chunked(b"transfer-encoding: chunked", b"content-length: 4", body=EMPTY + SECOND)),
    "TE.TE, the second is none": ([400], chunked(b"transfer-encoding: chunked", b"transfer-encoding: x")),
    "TE that only looks like chunked": ([400], chunked(b"transfer-encoding: xchunked")),
    "TE with a vertical tab": ([400], chunked(b"transfer-encoding:\x0bchunked")),
    "TE that does not end in chunked": ([400], chunked(b"transfer-encoding: chunked, identity")),
    "TE in quotes": ([400], chunked(b'transfer-encoding: "chunked"')),
    "TE of HTTP/1.0": ([400], chunked(b"transfer-encoding: chunked", body=EMPTY + SECOND).replace(b"/1.1", b"/1.0", 1)),
    "two lengths": ([400], request(b"content-length: 5", body=QUICK + SECOND)),
    "two equal lengths": ([400], request(b"content-length: %d" % len(QUICK), body=QUICK)),
    "lengths in a list": ([400], request(b"content-length: 5, 5", body=b"hello", framed=False)),
    "a signed length": ([400], request(b"content-length: +5", body=b"hello", framed=False)),
    "a hexadecimal length": ([400], request(b"content-length: 0x5", body=b"hello", framed=False)),
    "a length with a space in front of its colon": ([400], request(b"content-length : 5", body=b"hello", framed=False)),
    "a folded line": ([400], request(b"x-a: b", b" content-length: 0", body=QUICK)),
    "a folded TE": ([400], chunked(b"transfer-encoding:", b" chunked")),
    "a bare LF": ([400], request(body=QUICK).replace(b"\r\n", b"\n")),
    "a bare LF in a value": ([400], request(b"x-a: b\ntransfer-encoding: chunked", body=QUICK)),
    "a bare CR in a value": ([400], request(b"x-a: b\rtransfer-encoding: chunked", body=QUICK)),
    "a NUL in a value": ([400], request(b"x-a: b\0c", body=QUICK)),
    "a space in a name": ([400], request(b"x a: b", body=QUICK)),
    "a line without a colon": ([400], request(b"nothing", body=QUICK)),
    "no name": ([400], request(b": value", body=QUICK)),
    "chunks with bare LFs": ([400], chunked(b"transfer-encoding: chunked", body=CHUNKS.replace(b"\r\n", b"\n"))),
    "a chunk size with a sign": ([400], chunked(b"transfer-encoding: chunked", body=b"+" + CHUNKS)),
    "a chunk size with 0x": ([400], chunked(b"transfer-encoding: chunked", body=b"0x" + CHUNKS)),
    "a chunk size that overflows": ([400], chunked(b"transfer-encoding: chunked", body=b"f" * 17 + b"\r\n" + SECOND)),
    "a chunk that is longer": ([400], chunked(b"transfer-encoding: chunked", body=b"1\r\n" + QUICK + b"\r\n" + EMPTY)),
    "a request line with a tab": ([400], request(body=QUICK).replace(b"POST ", b"POST\t", 1)),
    "a request line with a CR": ([400], request(body=QUICK, path=b"/v1/messages\r?x")),
    "an upgrade with another request behind its length": ([200, 404], request(
        b"connection: upgrade", b"upgrade: x", body=QUICK) + request(path=b"/no", body=b"")),
    "a good one in chunks": ([200], chunked(b"transfer-encoding: chunked", body=CHUNKS)),
    "a good one": ([200], request(body=QUICK)),
}  # fmt: skip
"""By name: the statuses that come back, and what is sent."""


async def test_requests(subtests: pytest.Subtests) -> None:
    """What has two readings is a 400 and the end of the connection; the second request in it never exists."""
    script = lambda _: Reply(text("fine"))  # noqa: E731
    async with gateway_over({"m": script, "smuggled": script}) as run:
        for name, (wanted, sent) in SMUGGLED.items():
            with subtests.test(name):
                async with raw(run.url) as client:
                    await client.send(sent)
                    assert await client.answers(len(wanted)) == wanted
                    if wanted == [400]:
                        await client.rest()
                        assert client.closed
        assert run.model.calls["smuggled"] == 0


SENT = {
    "hop-by-hop": {"connection": "x-secret, keep-alive", "keep-alive": "5", "te": "trailers", "x-secret": "1"},
    "cookies": {"cookie": "a=b", "proxy-authorization": "Basic x", "set-cookie": "a=b"},
    "forwarding": {"x-forwarded-for": "1.2.3.4", "x-forwarded-host": "evil", "forwarded": "for=1", "via": "1.1 x"},
    "ours": {"x-request-id": "abc", "x-max-agentic-loops": "1", "x-loopway-stream": "merged", "expect": "100-continue"},
    "odd values": {"anthropic-beta": "a\tb, é", "user-agent": "x" * 4000},
    "method": {"x-http-method-override": "DELETE", "x-method-override": "DELETE", "x-original-url": "/admin"},
}  # fmt: skip
ALLOWED = re.compile(
    r"(?i)host|accept|accept-encoding|content-length|content-type|user-agent|x-api-key|authorization|anthropic-.*|openai-.*"
    r"|traceparent|tracestate"
)


@pytest.mark.parametrize("dialect", BOTH)
async def test_calls(dialect: str, subtests: pytest.Subtests) -> None:
    """Upstream gets one length, no chunks, only the headers that travel, and as many calls as there were requests."""
    wire = Wire()
    wire.script(Wire.reply())
    await wire.start()
    try:
        async with gateway_over({"m": []}, upstream={"base_url": wire.url}) as run:
            for number, (name, headers) in enumerate(SENT.items(), 1):
                with subtests.test(name):
                    lines = {one.encode(): value.encode() for one, value in headers.items()}
                    body = request_body(dialect, tools=())
                    answer = await run.client.post(
                        "/v1/messages" if dialect == "messages" else "/v1/chat/completions",
                        json=body,
                        headers={**lines, b"authorization": b"Bearer " + KEY.encode()},
                    )
                    assert answer.status_code == 200
                    call = wire.calls[-1]
                    names = [one.lower() for one, _ in call.lines]
                    assert [one for one in names if not ALLOWED.fullmatch(one)] == []
                    assert names.count("content-length") == 1
                    assert len(set(names)) == len(names)
                    assert len(call.body) == int(call.headers["content-length"])
                    assert len(wire.calls) == number
                    assert call.line.startswith("POST ")
    finally:
        await wire.stop()


async def test_an_answer_with_a_second_one_behind_it_is_never_another_clients() -> None:
    """A call's connection on which more came than was asked for is not used again."""

    async def twice(_call: Call, link: Link) -> bool:
        await link.send(Wire.reply(b'{"first":1}') + Wire.reply(b'{"poisoned":1}'))
        return True

    wire = Wire()
    wire.script(twice, Wire.reply(b'{"second":1}'))
    await wire.start()
    try:
        async with gateway_over({"m": []}, upstream={"base_url": wire.url}) as run:
            got = [(await run.post("messages", request_body("messages", tools=()))).text for _ in range(2)]
            await asyncio.sleep(0)
        assert "poisoned" not in "".join(got)
        assert '"second"' in got[1]
    finally:
        await wire.stop()
