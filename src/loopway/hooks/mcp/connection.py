"""One connection to an MCP server, over stdio or streamable HTTP, and what becomes of it.

This file must not know when a connection is made, nor what its tools are for.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TextIO
from urllib.parse import urlsplit

import anyio
import anyio.abc
import httpx2
import msgspec
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.message import SessionMessage
from mcp_types import CallToolResult, Implementation, ToolListChangedNotification

from loopway._version import __version__
from loopway.hooks.mcp.settings import ServerSettings

importlib.import_module("jsonschema")  # the SDK does it in the first call, and everybody would wait

_SUBSCRIBE_AGAIN_SECONDS = 1.0
_HTTP_SECONDS = 10.0
"""To connect, to send, and for the answer to a message that has no result."""
_MOST_WORDS = 2000
_NOT_FOUND = 404
_ERROR = 400
_SESSION = "mcp-session-id"


class Connection:
    """One connection and what becomes of it.

    Attributes:
        client: The SDK's client, entered and left by the link's task.
        over: Why it ended; empty while it has not.
        forgotten: Whether the server said that it does not know our session.
        came: When it was ready, on the clock of the event loop; None before.
        ended: Is called when it ends.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.over = ""
        self.forgotten = False
        self.came: float | None = None
        self.ended: Callable[[], None] = lambda: None
        self._settings = settings
        self._woken = asyncio.Event()
        self._session = ""
        self._refused = 0
        self._words = bytearray()
        transport = self._http(settings.url) if settings.url is not None else self._stdio(settings.command or [])
        self.client = Client(
            transport,
            client_info=Implementation(name="loopway", version=__version__),
            message_handler=self._heard,
            cache=None,
        )

    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call a tool. Cancelling this tells the server. Raises `MCPError`."""
        return await self.client.call_tool(name, arguments)

    def facts(self) -> dict[str, str | int]:
        """What a trace shows of a call over it."""
        told: dict[str, str | int] = {
            "mcp.method.name": "tools/call",
            "mcp.protocol.version": self.client.protocol_version,
            "network.transport": "pipe",
        }
        if self._session:
            told["mcp.session.id"] = self._session
        if self._settings.url is not None:
            told["network.transport"] = "tcp"
            told["network.protocol.name"] = "http"
            parts = urlsplit(self._settings.url)
            told["server.address"] = parts.hostname or ""
            told["server.port"] = parts.port or (443 if parts.scheme == "https" else 80)
        return told

    def stood(self) -> float:
        """How long it was ready, in seconds."""
        return 0.0 if self.came is None else anyio.current_time() - self.came

    async def wants_list(self) -> bool:
        """Wait until the list of tools may be another; False if the connection is over."""
        await self._woken.wait()
        self._woken.clear()
        return not self.over

    def stale(self) -> None:
        """The list of tools may be another."""
        self._woken.set()

    def end(self, why: str) -> None:
        """The connection is over. The first reason counts."""
        self.over = self.over or why
        self._woken.set()
        self.ended()

    def reason(self, wrong: BaseException | None = None) -> str:
        """Why it failed or ended, in one line; of a program that has ended, with its last words."""
        while isinstance(wrong, BaseExceptionGroup):
            wrong = wrong.exceptions[0]
        why = self.over
        if wrong is not None:
            text = " ".join(str(wrong).split())
            why = f"{type(wrong).__name__}: {text}" if text else type(wrong).__name__
        if self._refused:
            why += f" (HTTP status {self._refused})"
        said = self._words.decode(errors="replace").strip().splitlines() if self.over else []
        return f"{why}; it wrote: {said[-1].strip()}" if said else why

    async def _heard(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.stale()

    async def subscribe(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Hear of changes of the list. Servers before 2026-07-28 tell them unasked."""
        tools = self.client.server_capabilities.tools
        first = True
        while tools is not None and tools.list_changed:
            try:
                async with self.client.listen(tools_list_changed=True) as events:
                    if first:
                        task_status.started()
                        first = False
                    else:
                        self.stale()
                    async for _ in events:  # each reaches `_heard` as well; here only the end counts
                        pass
            except ListenNotSupportedError:
                break
            except (SubscriptionLost, MCPError, TimeoutError):
                if first:
                    break
            await anyio.sleep(_SUBSCRIBE_AGAIN_SECONDS)
        if first:
            task_status.started()

    # --- transports ---

    @asynccontextmanager
    async def _stdio(self, command: list[str]) -> AsyncIterator[Any]:
        program = StdioServerParameters(
            command=command[0], args=command[1:], env=dict(self._settings.env), cwd=self._settings.cwd
        )
        async with _collected(self._words) as errlog, stdio_client(program, errlog) as (read, write):
            yield _Read(read, lambda: self.end("it has ended")), write

    @asynccontextmanager
    async def _http(self, url: str) -> AsyncIterator[Any]:
        http = httpx2.AsyncClient(
            headers=self._settings.headers,
            timeout=_HTTP_SECONDS,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            event_hooks={"request": [_patient], "response": [self._answered]},
        )
        async with http, streamable_http_client(url, http_client=http) as (read, write):
            yield _Read(read, lambda: self.end("the connection was lost")), write

    async def _answered(self, response: httpx2.Response) -> None:
        """See what the SDK does not tell: the session, that it is forgotten, and why a connection is refused."""
        self._session = response.headers.get(_SESSION) or self._session
        if response.status_code == _NOT_FOUND and _SESSION in response.request.headers and not self.over:
            self.forgotten = True
            self.end("it has forgotten the session")
        self._refused = response.status_code if response.status_code >= _ERROR else 0


class _Read:
    """The stream that the SDK reads, and a word when it ends: the SDK tells only those who wait for an answer."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Any:
        """The context of the sender, where the stream carries one."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message. Raises when the stream is over; who reads it is cancelled only when all is."""
        try:
            message: SessionMessage | Exception = await self._stream.receive()
        except BaseException:
            self._ended()
            raise
        return message

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        result: bool | None = await self._stream.__aexit__(kind, wrong, trace)
        return result


async def _patient(request: httpx2.Request) -> None:
    """Wait for a result as long as its caller does, and for events for ever; for all else not long."""
    wants_result = False
    if request.method == "POST":
        message = msgspec.json.decode(request.content, type=_Message)
        wants_result = message.id is not None and message.method is not None
    if wants_result or request.method == "GET":
        request.extensions["timeout"] = {**request.extensions["timeout"], "read": None}


class _Message(msgspec.Struct):
    """A JSON-RPC message: a request has both."""

    id: str | int | None = None
    method: str | None = None


@asynccontextmanager
async def _collected(words: bytearray) -> AsyncIterator[TextIO]:
    """A file for a program's standard error; the last of it is kept, for the reason of a failure."""
    reader, writer = os.pipe()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: _LastWords(words), os.fdopen(reader, "rb", 0)
    )
    try:
        with os.fdopen(writer, "w") as errlog:
            yield errlog
    finally:
        transport.close()


class _LastWords(asyncio.Protocol):
    def __init__(self, words: bytearray) -> None:
        self._words = words

    def data_received(self, data: bytes) -> None:
        self._words += data
        del self._words[:-_MOST_WORDS]
