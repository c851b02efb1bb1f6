"""The tools of all MCP servers, as one source of server tools.

This file must not know how a server is reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from loopway.hooks.mcp import names
from loopway.hooks.mcp.link import BACK_OFF, Link
from loopway.hooks.mcp.results import result_of
from loopway.hooks.mcp.settings import ServerSettings
from loopway.hooks.tools import Tool, ToolContext, ToolError, ToolResult

START_SECONDS = 2.0
"""The longest that the gateway waits for its servers before it is ready."""
CLOSE_SECONDS = 15.0

_log = logging.getLogger(__name__)


class McpTools:
    """Offers the tools of MCP servers and has them called there.

    Args:
        servers: Their settings by name; of two tools with one name the first counts.
        back_off: The first and the longest wait before a server is tried again, in seconds.
    """

    def __init__(self, servers: Mapping[str, ServerSettings], *, back_off: tuple[float, float] = BACK_OFF) -> None:
        self._servers = dict(servers)
        self._back_off = back_off
        self._links: list[Link] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._tools: tuple[Tool, ...] = ()
        self._routes: dict[str, tuple[Link, str]] = {}
        self._said: set[str] = set()

    def __repr__(self) -> str:
        return f"mcp({', '.join(self._servers)})"

    def tools(self) -> Sequence[Tool]:
        """What the servers offer now; a server that is away keeps its last list."""
        return self._tools

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Call a tool at its server. Raises `ToolError` if the server is away or refuses."""
        route = self._routes.get(name)
        if route is None:
            raise ToolError(f"There is no tool {name!r} any more.")
        link, own = route
        return result_of(await link.call(own, arguments, context.told))

    async def start(self) -> None:
        """Connect to every server, and wait a moment for them; who is late comes later."""
        self._links = [
            Link(name, settings, self._changed, back_off=self._back_off) for name, settings in self._servers.items()
        ]
        self._tasks = [asyncio.create_task(link.run(), name=f"mcp {link.name}") for link in self._links]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                for link in self._links:
                    await link.settled.wait()

    async def aclose(self) -> None:
        """Leave every server, and end those that were started here."""
        for link in self._links:
            link.stop()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._links, self._tasks = [], []

    def _changed(self) -> None:
        """A server's list is another."""
        tools: list[Tool] = []
        routes: dict[str, tuple[Link, str]] = {}
        for link in self._links:
            settings = self._servers[link.name]
            offered = names.offered(link.name, settings, [tool.name for tool in link.tools])
            for tool in link.tools:
                name = offered.get(tool.name)
                if name is None:
                    continue
                if name in routes:
                    other = routes[name][0].name
                    self._say(
                        f"the MCP servers {other!r} and {link.name!r} both offer {name!r}; the first one's counts"
                    )
                    continue
                self._say_mended(link.name, settings, tool.name, name)
                routes[name] = (link, tool.name)
                tools.append(
                    Tool(
                        name=name,
                        description=tool.description or tool.title or "",
                        schema={"type": "object", **tool.input_schema},
                        timeout_seconds=settings.timeout_seconds,
                        most_characters=settings.max_result_chars,
                        models=None if settings.models is None else frozenset(settings.models),
                    )
                )
        self._tools, self._routes = tuple(tools), routes

    def _say_mended(self, server: str, settings: ServerSettings, own: str, name: str) -> None:
        prefix = settings.prefix if settings.prefix is not None else f"{server}_"
        if name not in (prefix + own, settings.rename.get(own)):
            self._say(f"the tool {own!r} of the MCP server {server!r} is offered as {name!r}: its name cannot be used")

    def _say(self, text: str) -> None:
        """A line for the operator, once."""
        if text not in self._said:
            self._said.add(text)
            _log.warning("%s", text)
