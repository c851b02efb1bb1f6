"""An MCP server made with the official SDK. `python tools_server.py` speaks stdio, with a port it speaks HTTP.

This file must not know what a test wants of it. What cannot be said over MCP goes to a socket of the test, as lines.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import CallToolResult, EmbeddedResource, ResourceLink, TextContent, TextResourceContents

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def made() -> MCPServer:
    """A server of its own."""
    server = MCPServer("tools")
    meetings: dict[str, asyncio.Barrier] = {}

    @server.tool(structured_output=False)
    async def echo(words: str) -> str:
        """Says the words again."""
        return words

    @server.tool(structured_output=False)
    async def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @server.tool()
    async def weather(city: str) -> dict[str, Any]:
        """The weather, structured."""
        return {"city": city, "celsius": 4}

    @server.tool(structured_output=False)
    async def picture() -> list[Any]:
        """A picture with a word about it."""
        return ["one pixel", Image(data=PNG, format="png")]

    @server.tool(structured_output=False)
    async def pages() -> CallToolResult:
        """A resource and a link to one."""
        return CallToolResult(
            content=[
                EmbeddedResource(resource=TextResourceContents(uri="doc://a", text="page a", mime_type="text/plain")),
                ResourceLink(uri="doc://b", name="b", description="page b"),
            ]
        )

    @server.tool(structured_output=False)
    async def sums() -> CallToolResult:
        """A structured result beside a text that says less."""
        return CallToolResult(content=[TextContent(text="two rows")], structured_content={"rows": [1, 2]})

    @server.tool(structured_output=False)
    async def broken() -> str:
        """Always fails."""
        raise ValueError("it is broken")

    @server.tool(structured_output=False)
    async def meet(name: str, count: int) -> str:
        """Comes back when so many are here."""
        await meetings.setdefault(name, asyncio.Barrier(count)).wait()
        return "met"

    @server.tool(name="odd/name.with dots")
    async def odd() -> str:
        """Has a name that no model server takes."""
        return "odd"

    @server.tool(structured_output=False)
    async def heard(context: Context) -> dict[str, Any]:
        """What came with the call beside its arguments."""
        meta = context.request_context.meta or {}
        headers = dict(context.headers or {})
        kept = {name: value for name, value in dict(meta).items() if name in ("traceparent", "tracestate", "baggage")}
        return {"meta": kept, "authorization": headers.get("authorization"), "env": os.environ.get("MODE")}

    @server.tool(structured_output=False)
    async def grow(name: str, context: Context) -> str:
        """Adds a tool, and tells."""

        async def added() -> str:
            return f"{name} is new"

        server.add_tool(added, name=name, description="New.")
        await context.notify_tools_changed()
        await context.request_context.session.send_tool_list_changed()
        return "grown"

    @server.tool(structured_output=False)
    async def wait(port: int) -> str:
        """Waits for ever; tells the test that it does, and when it is cancelled."""
        _, out = await asyncio.open_connection("127.0.0.1", port)
        out.write(f"{os.getpid()}\n".encode())
        await out.drain()
        try:
            await asyncio.Event().wait()
        finally:
            out.write(b"cancelled\n")
            out.close()
        return "never"

    return server


if __name__ == "__main__":
    server = made()
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
