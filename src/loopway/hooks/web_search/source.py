"""The built-in `web_search`: a tool that every model can call, and what clients of a native search expect.

This file must not know a provider's wire. What belongs to one exchange lies in a context variable that the pre-call
hook sets in the exchange's own task: it ends with it, and no other exchange sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import msgspec

from loopway.errors import Problem
from loopway.hooks.base import AgenticLoopHook
from loopway.hooks.own_settings import WrongSettings
from loopway.hooks.tools import Tool, ToolContext, ToolResult
from loopway.hooks.web_search.blocks import shown, taken_back
from loopway.hooks.web_search.declared import (
    Declared,
    is_typed,
    name_of,
    take_from_chat,
    take_from_messages,
    with_location,
)
from loopway.hooks.web_search.domains import Domains
from loopway.hooks.web_search.hits import Hit, SearchFailed, for_model
from loopway.hooks.web_search.own_docs import own_docs
from loopway.hooks.web_search.providers import Brave, Provider, Searxng, Tavily, Wish
from loopway.hooks.web_search.settings import WebSearchSettings, read

_TIME_TO_TELL = 5.0
"""Seconds behind a search's own time-out after which the tool's strikes."""

_DESCRIPTIONS = {
    "web": "Search the web. Gives titles, addresses and passages of pages that fit.",
    "local": "Search the documents that this server holds. Gives titles, addresses and passages that fit.",
}


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    query: Annotated[str, msgspec.Meta(min_length=1)]


class _Asked:
    """What one exchange asks for, and how much of it is used."""

    def __init__(self, wish: Wish, most: int, *, typed: bool = False, tool: Tool | None = None) -> None:
        self.wish = wish
        self.most = most
        self.typed = typed
        self.tool = tool
        self.used = 0


class WebSearch(AgenticLoopHook):
    """Searches, and shows clients of Anthropic's typed tool what Anthropic's own search would have shown.

    Args:
        settings: Its settings.
        provider: Searches.
    """

    def __init__(self, settings: WebSearchSettings, provider: Provider) -> None:
        self._settings = settings
        self._provider = provider
        self._models = None if settings.models is None else frozenset(settings.models)
        self._domains = Domains(
            None if settings.allowed_domains is None else tuple(settings.allowed_domains),
            tuple(settings.blocked_domains),
        )
        # Results of `local` have no domain, unless they are given one.
        self._filtered = settings.provider != "local" or settings.base_url is not None
        self._asked: ContextVar[_Asked | None] = ContextVar("web_search", default=None)
        self._tool = Tool(
            name=settings.tool_name,
            description=_DESCRIPTIONS["local" if settings.provider == "local" else "web"],
            schema={
                "type": "object",
                "properties": {"query": {"type": "string", "description": "What to search for."}},
                "required": ["query"],
                "additionalProperties": False,
            },
            timeout_seconds=settings.timeout_seconds + _TIME_TO_TELL,
            models=self._models,
            inject=settings.inject,
        )

    # --- as a source of tools ---

    def tools(self) -> Sequence[Tool]:
        """The one tool; inside an exchange as that exchange wants it."""
        asked = self._asked.get()
        return (self._tool if asked is None or asked.tool is None else asked.tool,)

    async def start(self) -> None:
        """Make the provider ready. One that is away is no failure here."""
        try:
            await self._provider.start()
        except SearchFailed:
            return  # the next search tries again

    async def aclose(self) -> None:
        """Close the provider."""
        await self._provider.aclose()

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:  # noqa: ARG002
        """Search. A failure is an error result for the model, and the matching block for a client that sees blocks."""
        asked = self._asked.get() or self._plain()
        query = arguments.get("query")
        try:
            hits = await self._search(arguments, asked)
        except SearchFailed as failed:
            blocks = shown(context.call_id, query, failed.code) if asked.typed else ()
            return ToolResult(content=str(failed), error=True, shown=blocks)
        if not asked.typed:
            return ToolResult(content=for_model(hits))
        return ToolResult(
            content=for_model(hits),
            shown=shown(context.call_id, query, hits),
            usage={"server_tool_use": {"web_search_requests": 1}},
        )

    async def _search(self, arguments: dict[str, Any], asked: _Asked) -> list[Hit]:
        try:
            query = msgspec.convert(arguments, _Arguments, strict=True).query.strip()
        except msgspec.ValidationError as wrong:
            text = f"The arguments of {self._tool.name} are wrong: {wrong}. Call it again with a query."
            raise SearchFailed("invalid_tool_input", text) from None
        if not query:
            raise SearchFailed("invalid_tool_input", "The query is empty. Call it again with words to search for.")
        if len(query) > self._provider.longest_query:
            text = (
                f"The query is longer than {self._provider.longest_query} characters. Call it again with a shorter one."
            )
            raise SearchFailed("query_too_long", text)
        if asked.used >= asked.most:
            text = f"max_uses_exceeded: this exchange may search {asked.most} times. Answer with what you have."
            raise SearchFailed("max_uses_exceeded", text)
        asked.used += 1
        wish = asked.wish
        if self._filtered and wish.domains.allowed == ():
            return []  # what the client allows is nothing that the settings allow
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                found = await self._provider.search(query, wish)
        except TimeoutError:
            text = f"The search gave no answer within {self._settings.timeout_seconds:g} seconds."
            raise SearchFailed("unavailable", text) from None
        kept = [one for one in found if not self._filtered or wish.domains.lets(one.url)]
        return kept[: wish.count]

    def _plain(self) -> _Asked:
        """For a client that declared no search."""
        settings = self._settings
        return _Asked(Wish(settings.max_results, self._domains), settings.max_uses)

    # --- as a pre-call hook ---

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,  # noqa: ARG002
        cache: Any,  # noqa: ARG002
        data: dict[str, Any],
        call_type: str,
    ) -> dict[str, Any]:
        """Take the client's declaration of a search over, and what earlier searches left in the history."""
        self._asked.set(self._plain())
        chat = call_type == "acompletion"
        works = self._works(data, chat=chat)
        if not chat and (messages := data.get("messages")) is not None:
            data["messages"] = taken_back(messages, self._tool.name, every=works)
        if works:
            declared = take_from_chat(data) if chat else take_from_messages(data, self._function())
            if declared is not None:
                self._asked.set(self._of(declared))
        return data

    def _works(self, data: Mapping[str, Any], *, chat: bool) -> bool:
        """Whether this request may search here. A tool of our name that the client declares itself is the client's."""
        if self._models is not None and data.get("model") not in self._models:
            return False
        if chat and ("functions" in data or data.get("n") not in (None, 1)):
            return False  # no loop is run, or no tool can be offered
        tools = data.get("tools")
        own = tools if isinstance(tools, list) else []
        return not any(name_of(tool) == self._tool.name and not (is_typed(tool) and not chat) for tool in own)

    def _function(self) -> dict[str, Any]:
        """The tool in the shape of Messages."""
        tool = self._tool
        return {"name": tool.name, "description": tool.description, "input_schema": tool.schema}

    def _of(self, declared: Declared) -> _Asked:
        settings = self._settings
        most = settings.max_uses if declared.max_uses is None else min(settings.max_uses, declared.max_uses)
        wish = Wish(
            declared.count(settings.max_results),
            self._domains.narrowed(declared.domains.allowed, declared.domains.blocked),
            declared.location,
        )
        description = with_location(self._tool.description, declared.location)
        # The typed tool is in the request already, in its place.
        tool = msgspec.structs.replace(self._tool, description=description, inject=not declared.typed)
        return _Asked(wish, most, typed=declared.typed, tool=tool)


def web_search(settings: Mapping[str, Any]) -> WebSearch:
    """The built-in from its settings. Raises `WrongSettings` with every problem."""
    read_ = read(settings)
    return WebSearch(read_, _provider(read_))


def _provider(settings: WebSearchSettings) -> Provider:
    match settings.provider:
        case "searxng":
            return Searxng(settings)
        case "tavily":
            return Tavily(settings)
        case "brave":
            return Brave(settings)
        case "local":
            return _local(settings)


def _local(settings: WebSearchSettings) -> Provider:
    try:
        from loopway.hooks.web_search.local import Local  # noqa: PLC0415 - a Python may have been built without SQLite
    except ImportError:
        raise WrongSettings(Problem("provider", "local needs sqlite3, which this Python was built without")) from None
    if settings.folder is not None:
        return Local(Path(settings.folder), settings.base_url or "")
    try:
        return Local(own_docs(), settings.base_url or "")
    except FileNotFoundError:
        raise WrongSettings(Problem("folder", "it is missing; write the path of the folder to search")) from None
