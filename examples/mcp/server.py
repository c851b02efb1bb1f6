"""A tiny MCP server, made with the official SDK, that speaks over its standard input and output.

Use it to see the `mcp` hook at work: `loopway serve --config examples/mcp/loopway.yaml`, from this folder.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

from mcp.server.mcpserver import MCPServer

server = MCPServer("time")


@server.tool(structured_output=False)
def now() -> str:
    """Date and time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@server.tool(structured_output=False)
def days_between(first: date, second: date) -> int:
    """Days from one date to another, both as YYYY-MM-DD."""
    return (second - first).days


if __name__ == "__main__":
    server.run()
