"""Text that tries to become something else: a header, a line of the log, a frame of the stream, a request."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from faults.rawclient import raw, request
from inprocess import BOTH, gateway_over, request_body
from loopway import AgenticLoopPlan, server_tool
from loopway.testing import Reply, call, text
from puppets import Puppet, text_of
from streams import frames, live, message, words
from upstream.conftest import Wire

EVIL = "\r\nset-cookie: a=b\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
FRAME = (
    '\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\nevent: error\ndata: {"type":"error"}\n\ndata: [DONE]\n\n'
    '\r\rdata: {"error":{}}\r\n\r\n\u2028\u0085\x00'
)
ANSI = "\x1b[2J\x1b[31m"

IDS: dict[bytes, bool] = {
    b"abc-123": True,
    b"a" * 128: True,
    b"a" * 129: False,
    b"": False,
    b"a b": False,
    b"a\tb": False,
    b'a"b': False,
    b"<script>": False,
    b"\xc3\xa9": False,
    b"-a": False,
    b"../../x": False,
    b"%0d%0aset-cookie:a": False,
    b"${jndi:ldap://x}": False,
}


async def test_request_ids(subtests: pytest.Subtests) -> None:
    """A client's id comes back if it is sane, and one of ours does if it is not."""
    async with gateway_over({"m": lambda _: Reply(text("fine"))}) as run:
        for id_, sane in IDS.items():
            with subtests.test(repr(id_[:20])):
                async with raw(run.url) as client:
                    await client.send(request(b"x-request-id: " + id_, body=b"{}"))
                    await client.answers(1)
                head = client.got.partition(b"\r\n\r\n")[0]
                (back,) = [line[14:] for line in head.split(b"\r\n") if line.startswith(b"x-request-id: ")]
                assert (back == id_) == sane
                assert sane or back.startswith(b"req_")


@pytest.mark.parametrize("dialect", BOTH)
async def test_model_names(dialect: str, subtests: pytest.Subtests) -> None:
    """A name with line ends is a 404 in JSON: no header, no line and no series is made of it."""
    async with gateway_over({"m": []}) as run:
        for number, name in enumerate(
            (EVIL, ANSI, FRAME, "m\0", "m ", "../m", "m" * 100_000, '"} evil{a="', "\u202em")
        ):
            with subtests.test(str(number)):
                answer = await run.post(dialect, request_body(dialect, name))
                assert answer.status_code == 404
                assert set(answer.headers) <= {"date", "content-type", "content-length", "x-request-id"}
                assert len(answer.content) < 4000
                assert isinstance(answer.json()["error"]["message"], str)
        metrics = (await run.client.get(f"{run.admin_url}/metrics")).text
        assert "evil" not in metrics
        lines = [json.loads(line) for line in run.log.getvalue().splitlines()]
        assert [line["event"] for line in lines] == ["exchange"] * 9
        assert max(map(len, run.log.getvalue().splitlines())) < 6000


def test_lines_for_people() -> None:
    """In the readable log, too, nothing that a client sent begins a line or moves the cursor."""
    program = f"""
import logging
import structlog
from loopway.telemetry import logs
logs.configure(form="text")
structlog.get_logger().info("exchange", model={EVIL + ANSI + FRAME!r}, request_id="id-of-it")
structlog.get_logger().info({EVIL + ANSI + FRAME!r}, request_id="id-of-it")
logging.getLogger("a.library").warning("it got %s, id-of-it", {EVIL + ANSI + FRAME!r})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    shown = done.stderr.decode()
    assert len(shown.splitlines()) == 3
    assert all("id-of-it" in line for line in shown.splitlines())
    assert ANSI not in shown


async def test_any_byte_of_a_header_or_a_query(subtests: pytest.Subtests) -> None:
    """Whatever byte stands in what travels: it is refused, or one line of the call holds it and no other one begins."""
    async with gateway_over({"m": lambda _: Reply(text("fine"))}) as run:
        body = json.dumps(request_body("messages", tools=())).encode()
        for byte in range(256):
            with subtests.test(hex(byte)):
                value = b"a" + bytes([byte]) + b"b: c"
                asked = len(run.model.requests)
                for line, path in ((b"anthropic-beta: " + value, None), (b"x: y", b"/v1/messages?q=" + value[:3])):
                    async with raw(run.url) as client:
                        await client.send(request(line, body=body, path=path))
                        (status,) = await client.answers()
                        assert status in (200, 400)
                for one in run.model.requests[asked:]:
                    assert "b" not in one.headers
                    assert not set("".join(one.headers.values())) & set("\r\n\0\x1b")


@pytest.mark.parametrize("dialect", BOTH)
async def test_tool_results_are_text(dialect: str) -> None:
    """A result that looks like frames is a JSON string for the model; the client has one valid message on each road."""

    @server_tool
    async def look() -> str:
        """Looks."""
        return FRAME

    def script(one: Any) -> Reply:
        return Reply(call("look", {})) if one.number % 2 else Reply(text("fine"))

    async with gateway_over({"m": script}, [look]) as run:
        async with live(run, dialect, request_body(dialect, tools=())) as stream:
            got = await stream.rest()
        message(dialect, got)
        assert words(dialect, got) == "fine"
        answer = await run.post(dialect, request_body(dialect, tools=()))
        told = answer.json()
        sent = [one.body["messages"][-1] for one in run.model.requests[1::2]]
    said = told["content"] if dialect == "messages" else told["choices"][0]["message"]
    assert said == [{"type": "text", "text": "fine"}] if dialect == "messages" else said["content"] == "fine"
    assert len(sent) == 2
    for one in sent:
        assert FRAME in (one["content"] if dialect == "chat_completions" else one["content"][0]["content"])


@pytest.mark.parametrize("dialect", BOTH)
async def test_overrides_are_text(dialect: str) -> None:
    """A hook's own answer that looks like frames is one text in one valid message."""
    plan = lambda _: AgenticLoopPlan(response_override=text_of(dialect, FRAME))  # noqa: E731
    script = lambda _: Reply(call("mine", {"n": 1}))  # noqa: E731
    async with (
        gateway_over({"m": script}, [Puppet(plan=plan)]) as run,
        live(run, dialect, request_body(dialect)) as one,
    ):
        got = await one.rest()
    message(dialect, got)
    assert words(dialect, got) == FRAME


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("watched", [True, False])
async def test_errors_of_an_upstream_are_one_event(dialect: str, watched: bool) -> None:
    """An error over several lines of data, in mid-stream and as a status behind a ping, is one event with one line."""
    told = b'{"type":"error",\n"error":{"type":"api_error",\r"message":"line\\nline"},\n\n"x":"event: message_stop"}'
    lines = b"".join(b"data: %b\n" % line for line in told.replace(b"\r", b"\n").split(b"\n"))
    begin = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}\n\n'
    if dialect == "messages":
        begin = b'event: message_start\ndata: {"type":"message_start","message":{"id":"a","content":[],"usage":{}}}\n\n'
    stream = begin + b"event: error\n" * (dialect == "messages") + lines + b"\n"

    async def answer(_call: Any, link: Any) -> bool:
        body = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(stream)
        await link.send(body + stream)
        return True

    wire = Wire()
    wire.script(answer)
    await wire.start()
    try:
        async with gateway_over({"m": []}, [Puppet()], upstream={"base_url": wire.url}) as run:
            tools = ("mine",) if watched else ()
            async with live(run, dialect, request_body(dialect, tools=tools)) as client:
                got = await client.rest()
    finally:
        await wire.stop()
    if watched:
        last = frames(got)[-1]
        assert last.raw.count(b"\n") == 2 + (dialect == "messages")
        assert json.loads(last.data or b"")["error"]["message"] == "line\nline"
    kinds = [frame.event for frame in frames(got)]
    assert kinds.count(b"message_stop") == 0


async def test_headers_of_an_upstream(subtests: pytest.Subtests) -> None:
    """What comes back is a closed list, one line each; a cookie, a redirect or an origin of its own does not."""
    hostile = [b"set-cookie: a=b", b"location: http://evil", b"access-control-allow-origin: *", b"content-length: 2",
               b"x-loopway-iterations: 99", b"x-request-id: theirs", b"server: evil", b"transfer-encoding: identity",
               b"anthropic-x: one\r\n two", b"request-id: fine", b"strict-transport-security: max-age=1",
               b"content-encoding: identity", b"content-security-policy: x", b"connection: close"]  # fmt: skip

    async def answer(_call: Any, link: Any) -> None:
        status = statuses.pop()
        length = b"" if b"content-length" in line else b"content-length: 2\r\n"
        await link.send(b"HTTP/1.1 %d X\r\n%bcontent-type: application/json\r\n%b\r\n\r\n{}" % (status, length, line))
        await asyncio.sleep(0)

    wire = Wire()
    wire.script(answer)
    await wire.start()
    allowed = {"date", "content-type", "content-length", "x-request-id", "x-loopway-iterations", "request-id",
               "anthropic-x", "content-encoding", "transfer-encoding"}  # fmt: skip
    try:
        async with gateway_over({"m": []}, upstream={"base_url": wire.url}) as run:
            for line in hostile:
                for status in (200, 429):
                    with subtests.test(f"{line.decode()!r} {status}"):
                        statuses = [status]
                        answer_ = await run.post("messages", request_body("messages", tools=()))
                        assert answer_.status_code in (status, 502)
                        assert set(answer_.headers) <= allowed
                        assert answer_.headers["x-request-id"] != "theirs"
                        assert answer_.headers.get("x-loopway-iterations", "1") == "1"
                        assert len(answer_.headers.get_list("content-length")) <= 1
                        assert not any(set(value) & set("\r\n\0") for value in answer_.headers.values())
    finally:
        await wire.stop()
