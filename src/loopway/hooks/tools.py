"""Server tools as the gateway sees them: what a tool is, who offers it, what it is told and what it gives back.

This file must not know how a tool was written, nor any wire format. A source of tools is a hook like any other: it
stands in the configuration's `hooks`, by dotted path or as a built-in.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from loopway.state import Store

Surface = Literal["messages", "chat_completions"]


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool may know of the exchange that it is called in.

    Attributes:
        request_id: The exchange's.
        call_id: The call's, as the model server made it.
        tool: The name that was called.
        model: The model that the client asked for.
        dialect: The wire format of the client.
        depth: Reruns done so far.
        key_name: The configured name of the caller's key; empty where none is needed.
        cancelled: Set when nobody waits for the result any more; for functions that run in a thread. An `async`
            function is cancelled itself.
        told: Gets what a trace shows of the call beside its name, as span attributes.
    """

    request_id: str
    call_id: str
    tool: str
    model: str
    dialect: Surface
    depth: int
    key_name: str
    cancelled: threading.Event = msgspec.field(default_factory=threading.Event)
    told: dict[str, Any] = msgspec.field(default_factory=dict)


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool gives back, where a plain return value does not say enough.

    Attributes:
        content: Text, or content blocks in Anthropic's shape (`text`, `image`, …); Chat Completions gets their text.
        error: Whether it is an error result for the model.
        shown: Blocks that the client sees for this call (Messages only), as `server_tool_use` and its result.
        usage: Counts that are added to the usage that the client sees.
    """

    content: str | list[dict[str, Any]] = ""
    error: bool = False
    shown: tuple[dict[str, Any], ...] = ()
    usage: Mapping[str, Any] = {}


class ToolError(Exception):
    """Raised by a tool: its text is an error result for the model, as it stands."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool that a source offers.

    Attributes:
        name: What the model calls.
        description: What the model reads.
        schema: JSON Schema of its arguments, an object.
        timeout_seconds: Longest run; None takes `loop.hook_timeout_seconds`.
        most_characters: Longest result; a longer one is cut, and says so.
        models: The model names for which it is offered; None for all.
        inject: Whether it is offered where the client did not declare it. If not, the source has put it into the
            request itself.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    timeout_seconds: float | None = None
    most_characters: int = 100_000
    models: frozenset[str] | None = None
    inject: bool = True


@runtime_checkable
class ToolSource(Protocol):
    """Offers tools and runs them. One instance serves all exchanges at once.

    A source may also derive from `AgenticLoopHook`, for a pre-call hook of its own.
    """

    def tools(self) -> Sequence[Tool]:
        """The tools as they are now; asked for each exchange, so it must be quick."""
        ...

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run a tool. What it returns is its result: text, a `ToolResult`, or anything that JSON can say.

        Raises:
            ToolError: An error result for the model, in these words. Any other exception is one as well.
        """
        ...

    async def start(self) -> None:
        """The gateway starts. Must not fail because a server of tools is away."""
        ...

    async def aclose(self) -> None:
        """The gateway ends."""
        ...


@runtime_checkable
class KeepsTexts(Protocol):
    """A built-in that keeps something beyond an exchange."""

    def bind_store(self, store: Store) -> None:
        """Called once, before the gateway starts."""
        ...
