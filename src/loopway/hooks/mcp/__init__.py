"""The built-in hook `mcp`: tools of MCP servers, over stdio and streamable HTTP.

The SDK (`mcp`) is imported when the hook is configured, not before. This file must not know what a server offers.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from loopway.hooks.mcp import settings as shape


def make(settings: dict[str, Any]) -> Any:
    """The hook for its settings. Raises `ValueError` with every problem."""
    servers = shape.read(settings)
    try:
        source = importlib.import_module("loopway.hooks.mcp.source")
    except ImportError as missing:
        raise ValueError(
            f'the MCP SDK cannot be imported ({missing}); install it: pip install "loopway[mcp]"'
        ) from missing
    sdk = logging.getLogger("mcp")
    if sdk.level == logging.NOTSET:
        sdk.setLevel(logging.CRITICAL)  # what goes wrong is told here, once, and without what servers send
    return source.McpTools(servers)
