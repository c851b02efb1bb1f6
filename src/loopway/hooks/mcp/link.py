"""One MCP server: kept connected by one task, called from any other.

This file must not know how a server is reached, under which names its tools are offered, nor to whom.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import anyio
from mcp import Client, MCPError
from mcp_types import CONNECTION_CLOSED, METHOD_NOT_FOUND, CallToolResult, Tool

from loopway.hooks.mcp import names
from loopway.hooks.mcp.connection import Connection
from loopway.hooks.mcp.settings import ServerSettings
from loopway.hooks.tools import ToolError

CONNECT_SECONDS = 30.0
"""Start, handshake and first list."""
LIST_SECONDS = 30.0
CLOSE_SECONDS = 5.0
BACK_OFF = (0.5, 30.0)
"""The first and the longest wait before the next attempt, in seconds, give or take a fifth."""

_SUBSCRIBE_SECONDS = 5.0
_MOST_PAGES = 100

_log = logging.getLogger(__name__)


class Link:
    """The connection to one server.

    Args:
        name: The server's, in the configuration.
        settings: How it is reached.
        changed: Is called when `tools` has changed.
        back_off: The first and the longest wait before the next attempt, in seconds.

    Attributes:
        tools: What it offered last; stays while it is away.
        settled: Set when the first attempt to connect is over, however it went.
    """

    def __init__(
        self,
        name: str,
        settings: ServerSettings,
        changed: Callable[[], None],
        *,
        back_off: tuple[float, float] = BACK_OFF,
    ) -> None:
        self.name = name
        self.tools: tuple[Tool, ...] = ()
        self.settled = asyncio.Event()
        self._settings = settings
        self._changed = changed
        self._back_off = back_off
        self._scope = anyio.CancelScope()
        self._now: Connection | None = None
        self._up = asyncio.Event()
        self._said_away = False

    async def run(self) -> None:
        """Keep the connection up until `stop`. The SDK wants one task to enter and leave its contexts: it is this."""
        failures = 0
        with self._scope:
            while True:
                connection = Connection(self._settings)
                why = await self._keep(connection)
                stood = connection.stood()
                if connection.forgotten and stood > self._back_off[0]:
                    continue  # it is there, so there is nothing to wait for
                self._say_away(why)
                self.settled.set()
                failures = 0 if stood > self._back_off[1] else failures
                await anyio.sleep(self._wait(failures))
                failures += 1

    def stop(self) -> None:
        """Let `run` come to its end."""
        self._scope.cancel()

    async def call(self, name: str, arguments: dict[str, Any], told: dict[str, Any]) -> CallToolResult:
        """Call a tool by the server's own name.

        Args:
            name: The tool.
            arguments: Its arguments; the server checks them.
            told: Gets what a trace shows of the call, in the names of OpenTelemetry's conventions.

        Raises:
            ToolError: The server is away, went away, or refused; the text tells the model.
        """
        connection = self._now
        if connection is None:
            raise ToolError(f"The MCP server {self.name!r} is away; it is being reconnected. Go on without {name}.")
        told.update(connection.facts())
        try:
            return await connection.call(name, arguments)
        except MCPError as wrong:
            if not connection.forgotten:
                raise self._told(wrong, connection, name) from wrong
        # It answered that it does not know the session, so it has not run the call: a new session may.
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._up.wait()
        except TimeoutError:
            raise ToolError(f"The MCP server {self.name!r} is away; it is being reconnected.") from None
        again = self._now
        if again is None:
            raise ToolError(f"The MCP server {self.name!r} is away; it is being reconnected.")
        told.update(again.facts())
        try:
            return await again.call(name, arguments)
        except MCPError as wrong:
            raise self._told(wrong, again, name) from wrong

    def _told(self, wrong: MCPError, connection: Connection, name: str) -> ToolError:
        if connection.over or wrong.code == CONNECTION_CLOSED:
            connection.stale()  # if it is there still, its list is good; if not, that shows now
            return ToolError(
                f"The MCP server {self.name!r} went away during the call; whether {name} has run is not known."
            )
        return ToolError(f"The MCP server {self.name!r} refused the call of {name}: {wrong.message}")

    # --- the task ---

    async def _keep(self, connection: Connection) -> str:
        """One connection, from its start to its end; gives why it ended."""
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + CONNECT_SECONDS) as scope:
                async with connection.client as client, anyio.create_task_group() as group:
                    with anyio.move_on_after(_SUBSCRIBE_SECONDS):
                        await group.start(connection.subscribe)
                    await self._list(client)
                    scope.deadline = float("inf")
                    self._came(connection)
                    while await connection.wants_list():
                        with anyio.fail_after(LIST_SECONDS):
                            await self._list(client)
                    self._gone(connection)
                    scope.deadline = anyio.current_time() + CLOSE_SECONDS
                    group.cancel_scope.cancel()
        except Exception as wrong:  # noqa: BLE001 - a transport may raise anything, and a hook must not end the gateway
            return connection.reason(wrong)
        finally:
            self._gone(connection)
        if connection.over:
            return connection.reason()
        return f"no connection within {CONNECT_SECONDS:g} s"

    async def _list(self, client: Client) -> None:
        """Read the whole list of tools."""
        found: dict[str, Tool] = {}
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            try:
                page = await client.list_tools(cursor=cursor)
            except MCPError as wrong:
                if wrong.code == METHOD_NOT_FOUND and not found:
                    break  # it has no tools
                raise
            for tool in page.tools:
                found.setdefault(tool.name, tool)
            cursor = page.next_cursor
            if cursor is None:
                break
        order = names.in_order([tool.name for tool in self.tools], found)
        self.tools = tuple(found[name] for name in order)
        self._changed()

    def _came(self, connection: Connection) -> None:
        self._now = connection
        connection.came = anyio.current_time()
        connection.ended = lambda: self._gone(connection)
        self._up.set()
        self.settled.set()
        if self._said_away:
            _log.warning("the MCP server %r is back", self.name)
        self._said_away = False

    def _gone(self, connection: Connection) -> None:
        if self._now is connection:
            self._now = None
            self._up.clear()

    def _say_away(self, why: str) -> None:
        """Say it once, until it is back."""
        if not self._said_away:
            _log.warning("the MCP server %r is away: %s; it is tried again", self.name, why)
        self._said_away = True

    def _wait(self, failures: int) -> float:
        first, longest = self._back_off
        return min(longest, first * 2.0 ** min(failures, 16)) * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
