"""Loopway: an LLM gateway that answers tool calls on the server.

The public names for hook authors. `loopway.testing` has a scripted model to test hooks with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loopway._version import __version__
from loopway.engine.plan import AgenticLoopPlan, AgenticLoopRequestPatch
from loopway.errors import ConfigError, Rejected
from loopway.hooks.base import AgenticLoopHook
from loopway.hooks.server_tools import ServerTool, server_tool
from loopway.hooks.tools import Tool, ToolContext, ToolError, ToolResult, ToolSource

if TYPE_CHECKING:
    from loopway.app import create_app

__all__ = [
    "AgenticLoopHook",
    "AgenticLoopPlan",
    "AgenticLoopRequestPatch",
    "ConfigError",
    "Rejected",
    "ServerTool",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "ToolSource",
    "__version__",
    "create_app",
    "server_tool",
]


def __getattr__(name: str) -> Any:
    """`create_app` is imported when it is asked for: a hook's module needs no web framework."""
    if name == "create_app":
        from loopway.app import create_app  # noqa: PLC0415

        return create_app
    raise AttributeError(f"module 'loopway' has no attribute {name!r}")
