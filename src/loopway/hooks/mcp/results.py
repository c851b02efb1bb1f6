"""What an MCP server gave back, as the result of a server tool.

This file must not know how the result came. `mcp_types` is the SDK's own package of types.
"""

from __future__ import annotations

from typing import Any, assert_never

import msgspec
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from loopway.hooks.tools import ToolResult

_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""What the Messages API takes: https://docs.claude.com/en/docs/build-with-claude/vision."""
_MOST_IMAGE = 5 * 1024 * 1024
"""Bytes of an image that the Messages API takes, counted in base64."""

Block = dict[str, Any]


def result_of(came: CallToolResult) -> ToolResult:
    """Text and images as content blocks; what a model cannot be shown as a line that names it.

    The structured result follows as JSON where the content does not say the same. An error result is text alone, as
    the Messages API wants it.
    """
    blocks = [_block(one) for one in came.content]
    if came.structured_content is not None and not _says(blocks, came.structured_content):
        blocks.append(_text(msgspec.json.encode(came.structured_content).decode()))
    if came.is_error:
        words = "\n".join(block["text"] if block["type"] == "text" else "[image, not shown]" for block in blocks)
        return ToolResult(content=words or "The tool failed and says no more.", error=True)
    if all(block["type"] == "text" for block in blocks) and len(blocks) < 2:  # noqa: PLR2004
        return ToolResult(content=blocks[0]["text"] if blocks else "")
    return ToolResult(content=blocks)


def _block(came: ContentBlock) -> Block:
    match came:
        case TextContent():
            return _text(came.text)
        case ImageContent():
            return _image(came.data, came.mime_type) or _left_out("image", came.mime_type, len(came.data))
        case AudioContent():
            return _left_out("audio", came.mime_type, len(came.data))
        case ResourceLink():
            about = f": {came.description}" if came.description else ""
            return _text(f"[resource {came.uri} ({came.title or came.name}){about}]")
        case EmbeddedResource():
            return _resource(came.resource)
        case _:
            assert_never(came)


def _resource(came: TextResourceContents | BlobResourceContents) -> Block:
    if isinstance(came, TextResourceContents):
        return _text(f"[resource {came.uri}]\n{came.text}")
    kind = came.mime_type or "application/octet-stream"
    return _image(came.blob, kind) or _left_out(f"resource {came.uri}", kind, len(came.blob))


def _text(words: str) -> Block:
    return {"type": "text", "text": words}


def _image(data: str, kind: str) -> Block | None:
    if kind not in _IMAGES or len(data) > _MOST_IMAGE:
        return None
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def _left_out(what: str, kind: str, length: int) -> Block:
    return _text(f"[{what}, {kind}, {length * 3 // 4} bytes, not shown]")


def _says(blocks: list[Block], structured: Any) -> bool:
    """Whether the text says the structured result already, as the protocol asks servers to let it.

    Servers made with the SDK wrap a result that is no object as `{"result": …}`, and give a list as a block per item.
    """
    said = [_read(block["text"]) for block in blocks if block["type"] == "text"]
    words = [block["text"] for block in blocks if block["type"] == "text"]
    meant = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        meant.append(structured["result"])
    return any(one in said or one in (said, words) or (isinstance(one, str) and one in words) for one in meant)


def _read(words: str) -> Any:
    try:
        return msgspec.json.decode(words)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return words
