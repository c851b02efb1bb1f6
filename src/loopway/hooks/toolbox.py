"""All server tools of a gateway, and how the calls of one reply are answered: at once, bounded, each with its time-out.

This file must not know a wire format. A failing tool is an error result for the model; cancellation is none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from loopway.engine.answers import Answer
from loopway.engine.notes import Listener, Subject, ToolBegan, ToolRan
from loopway.engine.reply import ToolCall
from loopway.hooks.failure import told
from loopway.hooks.tools import Surface, Tool, ToolContext, ToolError, ToolResult, ToolSource

_AT_ONCE = 16
"""Calls of one reply that run at the same time."""


class Offer(msgspec.Struct, frozen=True):
    """A tool, and who runs it."""

    name: str
    """The source's name in the configuration."""
    source: ToolSource
    tool: Tool


class Toolbox:
    """The server tools of all sources.

    Args:
        sources: Names and instances, in the configured order; of two tools with one name the first counts.
        timeout_seconds: Most time of a tool that sets none.
        listener: Is told each call.
        clock: Seconds, rising.
    """

    def __init__(
        self,
        sources: Sequence[tuple[str, ToolSource]],
        *,
        timeout_seconds: float,
        listener: Listener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sources = tuple(sources)
        self._timeout_seconds = timeout_seconds
        self._listener = listener
        self._clock = clock

    def offers(self, model: str) -> dict[str, Offer]:
        """The tools for a model, by name, in the configured order."""
        found: dict[str, Offer] = {}
        for name, source in self.sources:
            for tool in source.tools():
                if tool.models is None or model in tool.models:
                    found.setdefault(tool.name, Offer(name, source, tool))
        return found

    async def start(self) -> None:
        """Start every source."""
        await asyncio.gather(*(source.start() for _, source in self.sources))

    async def aclose(self) -> None:
        """End every source."""
        await asyncio.gather(*(source.aclose() for _, source in self.sources), return_exceptions=True)

    async def answer(
        self,
        calls: Sequence[ToolCall],
        offers: Mapping[str, Offer],
        *,
        subject: Subject,
        surface: Surface,
        depth: int,
    ) -> tuple[Answer, ...]:
        """Answer calls, in their order. A call that no offer covers gets an error result."""
        bound = asyncio.Semaphore(_AT_ONCE)

        async def one(call: ToolCall) -> Answer:
            offer = offers.get(call.name)
            if offer is None:
                return Answer(call, f"There is no tool {call.name!r} here.", error=True)
            async with bound:
                context = ToolContext(
                    request_id=subject.request_id,
                    call_id=call.id,
                    tool=call.name,
                    model=subject.model,
                    dialect=surface,
                    depth=depth,
                    key_name=subject.key_name,
                )
                return await self._run(call, offer, context, subject)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(call)) for call in calls]
        return tuple(task.result() for task in tasks)

    async def _run(self, call: ToolCall, offer: Offer, context: ToolContext, subject: Subject) -> Answer:
        tool = offer.tool
        seconds = tool.timeout_seconds if tool.timeout_seconds is not None else self._timeout_seconds
        began = self._clock()
        outcome: Literal["ok", "error", "timeout", "cancelled"] = "cancelled"
        detail: str | None = None
        self._listener(subject, ToolBegan(tool=call.name, call_id=call.id, depth=context.depth, tool_of=offer.name))
        try:
            arguments = _arguments(call)
            async with asyncio.timeout(seconds) as limit:
                result = _result(await offer.source.call(call.name, arguments, context))
        except ToolError as wrong:
            outcome, detail = "error", told(wrong)
            result = ToolResult(content=str(wrong) or "The tool failed.", error=True)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the exchange is cancelled
            outcome, detail = "error", "CancelledError: something that it waited for was cancelled"
            result = ToolResult(content=f"{call.name} failed: {detail}", error=True)
        except GeneratorExit:
            raise
        except BaseException as raised:  # noqa: BLE001 - a tool's own code may raise anything
            if isinstance(raised, TimeoutError) and limit.expired():
                outcome, detail = "timeout", f"no result within {seconds:g} s"
                result = ToolResult(content=f"{call.name} gave no result within {seconds:g} seconds.", error=True)
            else:
                outcome, detail = "error", told(raised)
                result = ToolResult(content=f"{call.name} failed: {type(raised).__name__}: {raised}", error=True)
        else:
            outcome = "error" if result.error else "ok"
        finally:
            context.cancelled.set()
            self._listener(
                subject,
                ToolRan(
                    tool=call.name,
                    result=outcome,
                    seconds=self._clock() - began,
                    depth=context.depth,
                    call_id=call.id,
                    detail=detail,
                    told=context.told,
                ),
            )
        return Answer(
            call, _capped(result.content, tool.most_characters), result.error, result.shown, dict(result.usage)
        )


def _arguments(call: ToolCall) -> dict[str, Any]:
    if isinstance(call.arguments, dict):
        return call.arguments
    raise ToolError(f"The arguments of {call.name} are no object; call it again with an object.")


def _result(returned: Any) -> ToolResult:
    """What a tool returned, as a result: text as it is, None as an empty text, anything else as JSON."""
    if isinstance(returned, ToolResult):
        return returned
    if isinstance(returned, str):
        return ToolResult(content=returned)
    if returned is None:
        return ToolResult(content="")
    try:
        return ToolResult(content=msgspec.json.encode(returned).decode())
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        raise ToolError(f"The tool returned a {type(returned).__name__}, which is no text and no JSON.") from None


def _capped(content: str | list[dict[str, Any]], most: int) -> str | list[dict[str, Any]]:
    """A result of at most so many characters of text; a cut one says so."""
    if isinstance(content, str):
        if not content.isascii():
            content = content.encode(errors="replace").decode()  # half a surrogate pair, as in odd file names
        if len(content) <= most:
            return content
        return content[:most] + f"\n[cut: {len(content) - most} of {len(content)} characters left out]"
    blocks: list[dict[str, Any]] = []
    for block in content:
        text = block.get("text")
        if isinstance(text, str):
            kept = _capped(text, max(most, 0))
            most -= len(text)
            blocks.append({**block, "text": kept})
        else:
            blocks.append(block)
    return blocks
