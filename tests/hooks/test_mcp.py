"""The hook `mcp`: its settings, names and results, and real MCP servers over both transports, through the gateway."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from mcp_types import CallToolResult
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from inprocess import BOTH, gateway_over, request_body
from loopway.app import build
from loopway.engine.notes import Began, CallBegan, Ended, Subject, ToolBegan, ToolRan
from loopway.errors import Problem
from loopway.hooks import registry
from loopway.hooks.mcp import names
from loopway.hooks.mcp import settings as shape
from loopway.hooks.mcp.results import result_of
from loopway.hooks.mcp.source import McpTools
from loopway.hooks.tools import Tool, ToolContext, ToolError, ToolResult
from loopway.telemetry.tracing import Tracing
from loopway.testing import Reply, call, text
from mcp_servers.over_http import free_port, served

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVER = [sys.executable, str(Path(__file__).parents[1] / "mcp_servers" / "tools_server.py")]
EXAMPLE = Path(__file__).parents[2] / "examples" / "mcp"
SOON = (0.05, 0.2)
SECONDS = 20.0


class Watched(McpTools):
    """The hook, and a way to wait for its list of tools."""

    def __init__(self, servers: Mapping[str, Any], back_off: tuple[float, float] = SOON) -> None:
        super().__init__(shape.read({"servers": servers}), back_off=back_off)
        self._news = asyncio.Event()

    def _changed(self) -> None:
        super()._changed()
        self._news.set()

    @property
    def names(self) -> list[str]:
        return [tool.name for tool in self.tools()]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def is_back(self, number: int = 0) -> None:
        async with asyncio.timeout(SECONDS):
            await self._links[number]._up.wait()

    async def ask(self, name: str, /, **arguments: Any) -> ToolResult:
        async with asyncio.timeout(SECONDS):
            return await self.call(name, arguments, context(name))


def context(name: str = "t") -> ToolContext:
    return ToolContext(
        request_id="r", call_id="c", tool=name, model="m", dialect="messages", depth=0, key_name="tester"
    )


@asynccontextmanager
async def started(servers: Mapping[str, Any], *, tools: bool = True) -> AsyncIterator[Watched]:
    source = Watched(servers)
    await source.start()
    try:
        if tools:
            await source.until(lambda: bool(source.tools()))
        yield source
    finally:
        await source.aclose()


class Signals:
    """A socket that a tool tells what happens to it; `port` is what the tool is called with."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self.port = 0

    @asynccontextmanager
    async def heard(self) -> AsyncIterator[Signals]:
        async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while line := await reader.readline():
                    self._lines.put_nowait(line.decode().strip())
            except ConnectionError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(read, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()

    async def next(self) -> str:
        async with asyncio.timeout(SECONDS):
            return await self._lines.get()


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ["servers is missing; write a mapping"]),
        ({"servers": {}}, ["servers is an empty mapping; write a mapping"]),
        ({"servers": ["docs"]}, ["servers is a list; write a mapping"]),
        ({"servers": {"a": {"url": "http://h"}}, "server": 1}, ["server is no key; did you mean servers?"]),
        ({"servers": {"a b": {"url": "http://h"}}}, ["servers.a b is no name for a server; write letters"]),
        ({"servers": {"a": "http://h"}}, ["servers.a is a text; write a mapping with command or url"]),
        ({"servers": {"a": {}}}, ["servers.a has neither command nor url; write command: a list of words"]),
        ({"servers": {"a": {"url": "http://h", "command": ["x"]}}}, ["servers.a has both command and url"]),
        ({"servers": {"a": {"command": "python x"}}}, ["servers.a.command is a text; write a list of words"]),
        ({"servers": {"a": {"command": []}}}, ["servers.a.command is an empty list; write a list of words"]),
        ({"servers": {"a": {"command": [""]}}}, ["servers.a.command begins with an empty text"]),
        ({"servers": {"a": {"command": ["x\0"]}}}, ["servers.a has a zero byte"]),
        ({"servers": {"a": {"command": ["x"], "env": {"A": 1}}}}, ["servers.a.env is a mapping; write a mapping of"]),
        ({"servers": {"a": {"command": ["x"], "headers": {"b": "c"}}}}, ["servers.a.headers is for a server with url"]),
        ({"servers": {"a": {"url": "http://h", "cwd": "."}}}, ["servers.a.cwd is for a server with command"]),
        ({"servers": {"a": {"url": "http://h", "env": {"A": "b"}}}}, ["servers.a.env is for a server with command"]),
        ({"servers": {"a": {"url": "host/mcp"}}}, ["servers.a.url is no address; write an address, as https://"]),
        ({"servers": {"a": {"url": "http://h:99999"}}}, ["servers.a.url is no address"]),
        ({"servers": {"a": {"url": "http://h", "headers": {"a b": "c"}}}}, ["servers.a.headers.a b is no header name"]),
        ({"servers": {"a": {"url": "http://h", "headers": {"a": "c\nd"}}}}, ["servers.a.headers.a has a character"]),
        ({"servers": {"a": {"url": "http://h", "prefix": "a."}}}, ["servers.a.prefix cannot stand in a tool's name"]),
        ({"servers": {"a": {"url": "http://h", "rename": {"a": "b."}}}}, ["servers.a.rename.a is no name for a tool"]),
        ({"servers": {"a": {"url": "http://h", "rename": {"a": "c", "b": "c"}}}}, ["gives the name of a, 'c', again"]),
        ({"servers": {"a": {"url": "http://h", "timeout_seconds": 0}}}, ["servers.a.timeout_seconds is 0; write a"]),
        ({"servers": {"a": {"url": "http://h", "timeout_seconds": True}}}, ["servers.a.timeout_seconds is true"]),
        ({"servers": {"a": {"url": "http://h", "max_result_chars": 1.5}}}, ["servers.a.max_result_chars is 1.5"]),
        (
            {"servers": {"a": {"url": "http://h", "ask_frist": []}}},
            ["servers.a.ask_frist is no key; did you mean ask_"],
        ),
        (
            {"servers": {"a": {"url": 1, "deny": 2}, "b": {}}, "more": 3},
            ["more is no key", "servers.a.url is 1", "servers.a.deny is 2", "servers.b has neither"],
        ),
    ],
    ids=lambda value: value[0][:40] if isinstance(value, list) else "",
)
async def test_a_wrong_setting_is_refused(settings: dict[str, Any], words: list[str]) -> None:
    """Each problem names its key path and what to write, and hides no other."""
    problems: list[Problem] = []
    assert registry.built_in("mcp", settings, "hooks[0]", problems) is None
    (problem,) = problems
    assert problem.path == "hooks[0].mcp"
    for part in words:
        assert part in problem.text
    assert problem.text.count("; write") + problem.text.count("is no key") <= len(words) + 1


async def test_no_refusal_shows_a_value() -> None:
    """What may be a secret is in no message and no repr."""
    servers = {"a": {"url": "sekret", "headers": {"x": "sekret\n"}, "command": "sekret"}}
    with pytest.raises(ValueError, match=r"servers\.a") as caught:
        shape.read({"servers": servers})
    assert "sekret" not in str(caught.value)
    good = shape.read({"servers": {"a": {"url": "http://sekret", "headers": {"x": "sekret"}}}})
    assert "sekret" not in repr(good)


async def test_a_missing_sdk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal says what to install; without the hook nothing misses it."""
    for name in [name for name in sys.modules if name.startswith(("mcp.", "loopway.hooks.mcp."))]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] in ("mcp", "mcp_types", "httpx2"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    problems: list[Problem] = []
    assert registry.built_in("mcp", {"servers": {"a": {"url": "http://h"}}}, "hooks[0]", problems) is None
    assert 'pip install "loopway[mcp]"' in problems[0].text


async def test_the_page_has_every_setting() -> None:
    """docs/mcp.md has a row for each key, in order, and no other."""
    page = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert rows == list(shape.ServerSettings.__struct_fields__)


# --- names ---


def settings_of(**given: Any) -> shape.ServerSettings:
    return shape.read({"servers": {"s": {"url": "http://h", **given}}})["s"]


@pytest.mark.parametrize(
    ("given", "own", "offered"),
    [
        ({}, ["a", "b"], {"a": "s_a", "b": "s_b"}),
        ({"prefix": ""}, ["b", "a"], {"b": "b", "a": "a"}),
        ({"prefix": "x-"}, ["a"], {"a": "x-a"}),
        ({"rename": {"a": "z"}}, ["a", "b"], {"a": "z", "b": "s_b"}),
        ({"allow": ["a", "read_*"]}, ["a", "b", "read_x"], {"a": "s_a", "read_x": "s_read_x"}),
        ({"allow": []}, ["a"], {}),
        ({"deny": ["a"]}, ["a", "b"], {"b": "s_b"}),
        ({"allow": ["*"], "deny": ["b?"]}, ["b", "bc"], {"b": "s_b"}),
        ({"ask_first": ["a"]}, ["a", "b"], {"b": "s_b"}),
        ({"allow": ["a"], "ask_first": ["a"]}, ["a"], {}),
        ({"prefix": "", "allow": ["[x]"]}, ["[x]", "x"], {"[x]": "_x_", "x": "x"}),
        ({"prefix": ""}, ["a.b", "a/b", "ä"], {"a.b": "a_b", "a/b": "a_b_2", "ä": "_"}),
        ({"prefix": ""}, ["x" * 70, "x" * 71], {"x" * 70: "x" * 64, "x" * 71: "x" * 62 + "_2"}),
        ({"prefix": "", "rename": {"b": "a"}}, ["a", "b"], {"a": "a_2", "b": "a"}),
        ({"prefix": ""}, ["", "a", "a"], {"": "_", "a": "a"}),
    ],
)
async def test_names(given: dict[str, Any], own: list[str], offered: dict[str, str]) -> None:
    """Chosen by allow, deny and ask_first, prefixed or renamed, mended and unlike each other, in the server's order."""
    made = names.offered("s", settings_of(**given), own)
    assert list(made.items()) == list(offered.items())


@pytest.mark.parametrize(
    ("before", "now", "then"),
    [
        ([], ["b", "a"], ["b", "a"]),
        (["a", "b"], ["b", "a"], ["a", "b"]),
        (["a", "b"], ["new", "b"], ["b", "new"]),
        (["a"], [], []),
    ],
)
async def test_a_new_list_keeps_the_order(before: list[str], now: list[str], then: list[str]) -> None:
    """What is new comes last, so that the prompt caches of upstreams stay good."""
    assert names.in_order(before, now) == then


# --- results ---


def words(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def image(kind: str = "image/png", data: str = "AAAA") -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": kind}


def audio() -> dict[str, Any]:
    return {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}


def resource(**content: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": "d://a", **content}}


def shown(kind: str = "image/png", data: str = "AAAA") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


@pytest.mark.parametrize(
    ("came", "content"),
    [
        ({"content": []}, ""),
        ({"content": [words("a")]}, "a"),
        ({"content": [words("a"), words("b")]}, [words("a"), words("b")]),
        ({"content": [image()]}, [shown()]),
        ({"content": [words("a"), image("image/webp")]}, [words("a"), shown("image/webp")]),
        ({"content": [image("image/svg+xml")]}, "[image, image/svg+xml, 3 bytes, not shown]"),
        ({"content": [image(data="A" * 5242884)]}, "[image, image/png, 3932163 bytes, not shown]"),
        ({"content": [audio()]}, "[audio, audio/wav, 3 bytes, not shown]"),
        ({"content": [resource(text="page")]}, "[resource d://a]\npage"),
        ({"content": [resource(blob="AAAA", mimeType="image/png")]}, [shown()]),
        ({"content": [resource(blob="AAAA")]}, "[resource d://a, application/octet-stream, 3 bytes, not shown]"),
        (
            {"content": [{"type": "resource_link", "uri": "d://a", "name": "a", "description": "about"}]},
            "[resource d://a (a): about]",
        ),
        ({"content": [], "structuredContent": {"a": 1}}, '{"a":1}'),
        ({"content": [words('{ "a": 1 }')], "structuredContent": {"a": 1}}, '{ "a": 1 }'),
        ({"content": [words("3")], "structuredContent": {"result": 3}}, "3"),
        ({"content": [words("3")], "structuredContent": {"result": "3"}}, "3"),
        ({"content": [words("1"), words("b")], "structuredContent": {"result": [1, "b"]}}, [words("1"), words("b")]),
        ({"content": [words("one row")], "structuredContent": {"a": 1}}, [words("one row"), words('{"a":1}')]),
        ({"content": [image()], "structuredContent": {"a": 1}}, [shown(), words('{"a":1}')]),
    ],
)  # fmt: skip
async def test_results(came: dict[str, Any], content: Any) -> None:
    """Text and images as blocks, the rest as words, and the structured result where nothing else says it."""
    assert result_of(CallToolResult.model_validate(came)) == ToolResult(content=content)


@pytest.mark.parametrize(
    ("content", "said"),
    [([words("a"), image()], "a\n[image, not shown]"), ([], "The tool failed and says no more.")],
)
async def test_an_error_result_is_text(content: list[Any], said: str) -> None:
    """The Messages API takes nothing else in one."""
    came = CallToolResult.model_validate({"content": content, "isError": True})
    assert result_of(came) == ToolResult(content=said, error=True)


# --- real servers: both transports, the protocol of today and the one before ---


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stdio() -> AsyncIterator[Watched]:
    async with started({"s": {"command": SERVER, "env": {"MODE": "tested"}}}) as source:
        yield source


@pytest_asyncio.fixture(params=["stdio", "http", "http before 2026"], scope="module", loop_scope="module")
async def source(request: pytest.FixtureRequest, stdio: Watched) -> AsyncIterator[Watched]:
    if request.param == "stdio":
        yield stdio
        return
    async with (
        served(old=request.param != "http") as (url, _),
        started({"s": {"url": url, "headers": {"authorization": "Bearer sekret"}}}) as source,
    ):
        yield source


async def test_list(source: Watched) -> None:
    """Tools come with the server's descriptions and schemas, in its order."""
    first, second = source.tools()[:2]
    assert (first.name, first.description) == ("s_echo", "Says the words again.")
    assert first.schema["type"] == "object"
    assert first.schema["required"] == ["words"]
    assert second.name == "s_add"
    assert "s_odd_name_with_dots" in source.names


@pytest.mark.parametrize(
    ("name", "arguments", "content"),
    [
        ("s_echo", {"words": "hello"}, "hello"),
        ("s_add", {"a": 1, "b": 2}, "3"),
        ("s_odd_name_with_dots", {}, "odd"),
        ("s_pages", {}, [words("[resource doc://a]\npage a"), words("[resource doc://b (b): page b]")]),
        ("s_sums", {}, [words("two rows"), words('{"rows":[1,2]}')]),
    ],
)
async def test_call(source: Watched, name: str, arguments: dict[str, Any], content: Any) -> None:
    """A call comes back as a result, under the name that the model knows."""
    assert await source.ask(name, **arguments) == ToolResult(content=content)


async def test_structured() -> None:
    """A structured result is JSON text, once, although such a server says it twice."""
    async with served() as (url, _), started({"s": {"url": url}}) as source:
        came = await source.ask("s_weather", city="Oslo")
    assert json.loads(str(came.content)) == {"city": "Oslo", "celsius": 4}


async def test_image(source: Watched) -> None:
    """A picture is an image block in Anthropic's shape."""
    came = (await source.ask("s_picture")).content
    assert isinstance(came, list)
    said, picture = came
    assert said == words("one pixel")
    assert picture["source"]["media_type"] == "image/png"
    assert picture["source"]["data"].startswith("iVBOR")


async def test_errors_are_the_tools_own(source: Watched) -> None:
    """A tool that fails and arguments that do not fit are error results with the server's words."""
    failed = await source.ask("s_broken")
    wrong = await source.ask("s_add", a="x")
    assert (failed.error, wrong.error) == (True, True)
    assert "Error executing tool broken" in failed.content
    assert "valid integer" in wrong.content


async def test_parallel_calls(source: Watched) -> None:
    """Three calls run at once: none comes back before all are there."""
    met = await asyncio.gather(*(source.ask("s_meet", name="here", count=3) for _ in range(3)))
    assert [one.content for one in met] == ["met"] * 3


async def test_what_travels(source: Watched) -> None:
    """The trace context goes along in `_meta`, headers and environment variables as they are configured."""
    parent = SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    token = otel_context.attach(set_span_in_context(NonRecordingSpan(parent)))
    try:
        came = json.loads(str((await source.ask("s_heard")).content))
    finally:
        otel_context.detach(token)
    assert came["meta"] == {"traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-01"}
    over_http = came["authorization"] == "Bearer sekret"
    assert over_http or (came["authorization"], came["env"]) == (None, "tested")


async def test_what_a_trace_shows(source: Watched) -> None:
    """A call tells its protocol and transport in the names of OpenTelemetry's conventions."""
    asked = context()
    await source.call("s_echo", {"words": "a"}, asked)
    assert asked.told["mcp.method.name"] == "tools/call"
    assert asked.told["network.transport"] in ("pipe", "tcp")
    assert ("mcp.session.id" in asked.told) == (asked.told["mcp.protocol.version"] < "2026")


async def test_list_changed(source: Watched) -> None:
    """A server that tells of a new tool is asked for its list again; the new tool comes last and can be called."""
    before = source.names
    await source.ask("s_grow", name="later")
    await source.until(lambda: source.names == [*before, "s_later"])
    assert (await source.ask("s_later")).content == "later is new"


async def test_cancelling_reaches_the_server(source: Watched) -> None:
    """A call that nobody waits for any more is cancelled where it runs, and the next one is answered."""
    async with Signals().heard() as signals:
        task = asyncio.create_task(source.ask("s_wait", port=signals.port))
        await signals.next()
        task.cancel()
        assert await signals.next() == "cancelled"
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await source.ask("s_echo", words="still here")).content == "still here"


# --- servers that are away ---


async def test_a_killed_program_is_an_error_result_and_comes_back(stdio: Watched) -> None:
    """Killed in mid-call: the call ends at once, the tools stay offered, and the program is started again."""
    before = [name for name in stdio.names if name != "s_later"]
    async with Signals().heard() as signals:
        task = asyncio.create_task(stdio.ask("s_wait", port=signals.port))
        os.kill(int(await signals.next()), signal.SIGKILL)
        with pytest.raises(ToolError, match="'s' went away during the call; whether wait has run is not known"):
            await task
    assert set(before) <= set(stdio.names)
    with pytest.raises(ToolError, match="The MCP server 's' is away; it is being reconnected"):
        await stdio.ask("s_echo", words="too early")
    await stdio.is_back()
    assert (await stdio.ask("s_echo", words="back")).content == "back"
    assert stdio.names == before


async def test_away_at_start_and_back_later(caplog: pytest.LogCaptureFixture) -> None:
    """The gateway starts without its server, offers nothing of it, says so once, and has its tools when it comes."""
    port = free_port()
    async with started({"s": {"url": f"http://127.0.0.1:{port}/mcp"}}, tools=False) as source:
        assert source.names == []
        async with served(port):
            await source.until(lambda: bool(source.names))
            assert (await source.ask("s_echo", words="here")).content == "here"
    away = [line for line in caplog.messages if "is away" in line]
    assert len(away) == 1
    assert "the MCP server 's' is away: ConnectError" in away[0]
    assert "the MCP server 's' is back" in caplog.messages


async def test_a_server_that_stays_away_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is tried again and again, with one line in the log."""
    tried: asyncio.Queue[None] = asyncio.Queue()

    def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        tried.put_nowait(None)

    listening = await asyncio.start_server(close, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening, started({"s": {"url": url}}, tools=False), asyncio.timeout(SECONDS):
        for _ in range(4):
            await tried.get()
    assert len([line for line in caplog.messages if "is away" in line]) == 1


async def test_gone_and_back_over_http() -> None:
    """A server that is gone keeps its tools, answers calls with an error result, and is found again."""
    port = free_port()
    async with served(port) as (url, _):
        source = Watched({"s": {"url": url}})
        await source.start()
    try:
        assert "s_echo" in source.names
        with pytest.raises(ToolError, match=r"'s' (went away during the call|is away)"):
            await source.ask("s_echo", words="a")
        assert "s_echo" in source.names
        async with served(port):
            await source.is_back()
            assert (await source.ask("s_echo", words="back")).content == "back"
    finally:
        await source.aclose()


@pytest.mark.parametrize("old", [False, True], ids=["http", "http before 2026"])
async def test_cut_in_mid_call_over_http(*, old: bool) -> None:
    """A server that goes in mid-call is an error result at once."""
    async with Signals().heard() as signals:
        async with served(old=old) as (url, _):
            source = Watched({"s": {"url": url}})
            await source.start()
            task = asyncio.create_task(source.ask("s_wait", port=signals.port))
            await signals.next()
        try:
            with pytest.raises(ToolError, match="'s' went away during the call"):
                await task
        finally:
            await source.aclose()


async def test_a_forgotten_session_is_made_anew() -> None:
    """A server that was started again does not know the session; the call is made once more, in a new one."""
    port = free_port()
    async with served(port, old=True) as (url, _):
        source = Watched({"s": {"url": url}}, back_off=(0.0, 0.1))
        await source.start()
        link = source._links[0]
        old = link._now
    try:
        async with served(port, old=True):
            link._now = old  # as if nothing had been noticed yet
            assert (await source.ask("s_echo", words="again")).content == "again"
            assert link._now is not old
    finally:
        await source.aclose()


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({"command": ["/no/such/program"]}, "FileNotFoundError"),
        ({"command": [sys.executable, "-c", "raise SystemExit('no licence')"]}, "it wrote: no licence"),
        ({"command": [sys.executable, "-c", ""], "cwd": "/no/such/folder"}, "FileNotFoundError"),
    ],
    ids=["no program", "ends at once", "no folder"],
)
async def test_why_a_program_is_away(server: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log says why, with the last that the program wrote; the gateway lives."""
    async with started({"s": server}, tools=False) as source:
        assert source.names == []
    (line,) = [line for line in caplog.messages if "is away" in line]
    assert why in line


async def test_why_an_address_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """A refusal over HTTP is told with its status."""
    async with served(refuses=401) as (url, _), started({"s": {"url": url}}, tools=False):
        pass
    assert "(HTTP status 401)" in caplog.text


# --- several servers ---


async def test_of_two_tools_with_one_name_the_first_counts(caplog: pytest.LogCaptureFixture) -> None:
    """The operator is told once; what only one of them has is there."""
    async with served() as (one, _), served() as (two, _):
        servers = {
            "one": {"url": one, "prefix": "", "allow": ["echo"]},
            "two": {"url": two, "prefix": "", "allow": ["echo", "add"], "rename": {"add": "sum"}},
        }
        async with started(servers) as source:
            await source.until(lambda: source.names == ["echo", "sum"])
            assert (await source.ask("sum", a=1, b=1)).content == "2"
    assert len([line for line in caplog.messages if "both offer 'echo'" in line]) == 1


async def test_what_each_tool_gets_from_its_server() -> None:
    """Models, time-out and the longest result are the server's; what is to be asked for first is not offered."""
    async with served() as (url, _):
        server = {"url": url, "ask_first": ["grow"], "models": ["m"], "timeout_seconds": 3, "max_result_chars": 9}
        async with started({"s": server}) as source:
            tool = source.tools()[0]
            assert (tool.models, tool.timeout_seconds, tool.most_characters) == (frozenset({"m"}), 3.0, 9)
            assert "s_grow" not in source.names
            with pytest.raises(ToolError, match="no tool 's_grow'"):
                await source.ask("s_grow", name="x")


# --- through the gateway ---

both = pytest.mark.parametrize("dialect", BOTH)
streamed = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


class Lent:
    """A source that is started and ended by somebody else."""

    def __init__(self, source: Watched) -> None:
        self._source = source

    def tools(self) -> Sequence[Tool]:
        return self._source.tools()

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        return await self._source.call(name, arguments, context)

    async def start(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


def offered(dialect: str, body: Any) -> list[str]:
    tools = body["tools"]
    return [one["name"] for one in tools] if dialect == "messages" else [one["function"]["name"] for one in tools]


def results(dialect: str, body: Any) -> list[Any]:
    """The tool results in the last turns of an upstream's request."""
    if dialect == "messages":
        return [block["content"] for block in body["messages"][-1]["content"]]
    return [one["content"] for one in body["messages"] if one["role"] == "tool"]


@both
@streamed
async def test_a_gateway_answers_with_the_tools_of_a_server(dialect: str, *, stream: bool, stdio: Watched) -> None:
    """Tools that the client does not know are offered, called at their server, and answered in one rerun."""
    script = [Reply(call("s_add", {"a": 1, "b": 2}), call("s_picture", {})), Reply(text("Three.", pieces=1))]
    async with gateway_over({"m": script}, [Lent(stdio)]) as run:
        answer = await run.post(dialect, request_body(dialect, tools=(), stream=stream))
        assert answer.status_code == 200
        assert "Three." in answer.text
        assert "s_add" not in answer.text
        first, second = run.model.requests
        assert offered(dialect, first.body) == stdio.names
        number, picture = results(dialect, second.body)
        told = run.told(ToolRan)
    assert number == "3"
    if dialect == "messages":
        assert [block["type"] for block in picture] == ["text", "image"]
    else:
        assert picture.startswith("one pixel")
    assert [(one.result, one.told["mcp.method.name"]) for one in told] == [("ok", "tools/call")] * 2


@pytest.mark.parametrize(("dialect", "stream"), [("messages", True), ("chat_completions", False)])
async def test_one_of_two_servers_killed_in_mid_call(dialect: str, *, stream: bool) -> None:
    """The answer still comes: the other's result, and an error result that says what happened. Nothing is left."""
    mark = f"mark={dialect}{stream}"
    program = [sys.executable, "-X", mark, *SERVER[1:]]
    async with Signals().heard() as signals, served() as (url, _):
        calls = Reply(call("tool_wait", {"port": signals.port}), call("web_add", {"a": 1, "b": 2}))
        script = [calls, Reply(text("One of them was away.", pieces=1))]
        source = Watched({"tool": {"command": program}, "web": {"url": url}}, back_off=(SECONDS, SECONDS))
        async with gateway_over({"m": script}, [source]) as run:
            await source.until(lambda: {"tool_wait", "web_add"} <= set(source.names))
            asking = asyncio.create_task(run.post(dialect, request_body(dialect, tools=(), stream=stream)))
            os.kill(int(await signals.next()), signal.SIGKILL)
            answer = await asking
            assert "One of them was away." in answer.text
            second = run.model.requests[1].body
            said = "The MCP server 'tool' went away during the call; whether wait has run is not known."
            killed, other = results(dialect, second)
            assert said in killed
            assert other == "3"
            if dialect == "messages":
                marks = [block.get("is_error", False) for block in second["messages"][-1]["content"]]
                assert marks == [True, False]
            ran = {one.tool: one.result for one in run.told(ToolRan)}
            assert ran == {"tool_wait": "error", "web_add": "ok"}
            assert 'result="error"' in (await run.client.get(f"{run.admin_url}/metrics")).text
    await became(there=False, mark=mark)
    assert [task for task in asyncio.all_tasks() if task.get_name() in ("mcp tool", "mcp web")] == []


def running(mark: str) -> list[str]:
    """The processes whose command line holds a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark in path.read_text().split("\0"):
                found.append(path.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks into /proc")
async def test_closing_ends_the_program() -> None:
    """A program that is just being started is gone when the hook has ended."""
    program = [sys.executable, "-X", "mark=closing", "-c", "import sys; sys.stdin.read()"]
    source = Watched({"s": {"command": program}})
    starting = asyncio.create_task(source.start())
    await became(there=True, mark="mark=closing")
    starting.cancel()
    async with asyncio.timeout(SECONDS / 2):
        await source.aclose()
    await became(there=False, mark="mark=closing")


async def became(*, there: bool, mark: str) -> None:
    """Wait until such a process is there, or is none any more: it may have been killed a moment ago."""
    async with asyncio.timeout(SECONDS / 2):
        while bool(running(mark)) != there:  # noqa: ASYNC110 - a process table tells nobody
            await asyncio.sleep(0)


async def test_a_trace_shows_the_server() -> None:
    """What a call tells is on its `execute_tool` span."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(service_name="s", provider_of=lambda _: "p", provider=provider)
    tracing.start()
    subject = Subject(request_id="r", dialect="messages", began=0.0, route="/v1/messages")
    told: dict[str, str | int] = {"mcp.session.id": "abc", "network.transport": "tcp", "server.port": 1}
    for note in (
        Began(),
        CallBegan(0, "u", "m", "host", None, dict, {}),
        ToolBegan("t", "c", 0, "mcp"),
        ToolRan("t", "ok", 0.1, 0, "c", told=told),
        Ended(status=200, iterations=1, seconds=1.0),
    ):
        tracing(subject, note)
    (span,) = [span for span in exporter.get_finished_spans() if span.name == "execute_tool t"]
    assert told.items() <= dict(span.attributes or {}).items()


# --- the example ---


async def test_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration is good, and its server answers."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(EXAMPLE)
    data = yaml.safe_load((EXAMPLE / "loopway.yaml").read_text())
    gateway = build(EXAMPLE / "loopway.yaml")
    assert gateway.hooks == ["mcp"]
    async with started(data["hooks"][0]["mcp"]["servers"]) as source:
        assert source.names == ["time_now", "days_between"]
        came = await source.ask("days_between", first="2026-01-01", second="2026-03-01")
    assert came.content == "59"
