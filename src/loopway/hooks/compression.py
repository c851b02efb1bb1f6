"""The built-in `compression`: long contexts are cut down, and the model can fetch back what it needs.

This file must not know the driver. It reads and changes request bodies as plain data, in both dialects, and does so
the same way each time: the same history gives the same stand-ins, so that a prompt cache still fits. What belongs to
one exchange lies in a context variable that the pre-call hook sets in the exchange's own task.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Annotated, Any

import msgspec
import structlog

from loopway.errors import Problem
from loopway.hooks.base import AgenticLoopHook
from loopway.hooks.own_settings import WrongSettings, read_settings
from loopway.hooks.ranking import Ranking
from loopway.hooks.tools import Tool, ToolContext, ToolError
from loopway.state import Store

TOOL = "fetch_original"
CHARACTERS_PER_TOKEN = 4
SHORTEST = 800
"""Characters below which a text is not worth a stand-in."""
PIECE = 40_000
"""Characters that one call gives back."""

_HEAD = 160
_IMAGE_CHARACTERS = 6000
"""What an image or a file is taken to cost; its bytes say nothing of that."""
_MEDIA = frozenset({"image", "document", "image_url", "input_audio", "file", "container_upload"})

_DESCRIPTION = (
    "Give back a text that was left out of this conversation. The places say so and name the key. "
    f"A long text comes in pieces of {PIECE} characters; `start` says from where."
)

Tokens = Annotated[int, msgspec.Meta(ge=1, description="a whole number of tokens, at least 1")]
Messages = Annotated[int, msgspec.Meta(ge=0, description="a whole number of messages, at least 0")]
Names = Annotated[list[str], msgspec.Meta(description="a list of texts")]
Flag = Annotated[bool, msgspec.Meta(description="true or false")]


class CompressionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `compression`. A token is taken to be four characters.

    Attributes:
        threshold_tokens: A request that has more is cut down.
        target_tokens: How far, as far as that can be done; half of the threshold by default.
        keep_recent_messages: So many messages at the end stay as they are.
        compress_cached: Whether what stands before a cache mark may be cut down as well.
        models: The model names for which it works; all by default.
    """

    threshold_tokens: Tokens = 60_000
    target_tokens: Tokens | None = None
    keep_recent_messages: Messages = 6
    compress_cached: Flag = False
    models: Names | None = None


class Spot(msgspec.Struct, frozen=True):
    """A text in a history that may be replaced.

    Attributes:
        text: As it is.
        put: Puts another one in its place.
    """

    text: str
    put: Callable[[str], None]


class _Here(msgspec.Struct, frozen=True):
    """One exchange's: what was left out, by key, and whether the model is offered the tool."""

    originals: Mapping[str, str]
    offered: bool


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    start: Annotated[int, msgspec.Meta(ge=0)] = 0


class Compression(AgenticLoopHook):
    """Cuts requests down, and answers `fetch_original`."""

    def __init__(self, settings: CompressionSettings) -> None:
        self._settings = settings
        self._models = None if settings.models is None else frozenset(settings.models)
        self._threshold = settings.threshold_tokens * CHARACTERS_PER_TOKEN
        self._target = (settings.target_tokens or settings.threshold_tokens // 2) * CHARACTERS_PER_TOKEN
        self._store: Store | None = None
        self._here: ContextVar[_Here | None] = ContextVar("compression", default=None)
        self._tool = Tool(
            name=TOOL,
            description=_DESCRIPTION,
            schema={
                "type": "object",
                "properties": {
                    "key": {"type": "string", "description": "The key that stands in the text's place."},
                    "start": {"type": "integer", "minimum": 0, "default": 0},
                },
                "required": ["key"],
                "additionalProperties": False,
            },
            most_characters=PIECE + 200,
            models=self._models,
        )

    def bind_store(self, store: Store) -> None:
        """Where texts are kept beyond the exchange; without it they live as long as the exchange."""
        self._store = store

    # --- as a source of tools ---

    def tools(self) -> Sequence[Tool]:
        """The one tool; inside an exchange only if something was left out, or a cache wants the same tools always."""
        here = self._here.get()
        return (self._tool,) if here is None or here.offered else ()

    async def start(self) -> None:
        """Nothing to start."""

    async def aclose(self) -> None:
        """Nothing to end."""

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> str:
        """Give a text back, or a piece of it.

        Raises:
            ToolError: The arguments are wrong, or there is no such text for this caller.
        """
        try:
            asked = msgspec.convert(arguments, _Arguments, strict=True)
        except msgspec.ValidationError as wrong:
            raise ToolError(f"The arguments of {name} are wrong: {wrong}. Call it again with a key.") from None
        here = self._here.get()
        text = None if here is None else here.originals.get(asked.key)
        if text is None and self._store is not None:
            (found,) = await self._store.get([_place(context.key_name, asked.key)])
            text = None if found is None else found.decode("utf-8", "surrogatepass")
        if text is None:
            raise ToolError("There is no text under this key, or it is not kept any more. Go on without it.")
        piece = text[asked.start : asked.start + PIECE]
        if not piece:
            raise ToolError(f"The text has {len(text)} characters; nothing is behind character {asked.start}.")
        end = asked.start + len(piece)
        more = f"\n[{len(text) - end} more characters: {TOOL} with start={end}]" if end < len(text) else ""
        return piece + more

    # --- as a pre-call hook ---

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,
        cache: Any,  # noqa: ARG002
        data: dict[str, Any],
        call_type: str,
    ) -> dict[str, Any]:
        """Cut a request down that is over the threshold."""
        self._here.set(_Here({}, offered=False))
        messages = data.get("messages")
        if not isinstance(messages, list) or not self._works(data):
            return data
        marked = _last_mark(data, messages)
        steady = marked >= 0 or _has_mark(data.get("system"))
        self._here.set(_Here({}, offered=steady))
        before = _size(data)
        if before <= self._threshold:
            return data
        key_name = str(user_api_key_dict.get("key_alias") or "")
        question = _last_question(messages)
        first = 0 if self._settings.compress_cached else marked + 1
        free = [
            message
            for number, message in enumerate(messages)
            if first <= number < len(messages) - self._settings.keep_recent_messages and number != question
        ]
        spots = [spot for message in free for spot in _spots(message) if len(spot.text) >= SHORTEST]
        asked = _words(messages[question]) if question >= 0 else ""
        originals: dict[str, str] = {}
        after = before
        for number in await asyncio.to_thread(_least_relevant_first, [spot.text for spot in spots], asked):
            if after <= self._target:
                break
            spot = spots[number]
            key = _key(key_name, spot.text)
            made = stand_in(key, spot.text)
            spot.put(made)
            originals[key] = spot.text
            after -= len(spot.text) - len(made)
        self._here.set(_Here(originals, offered=steady or bool(originals)))
        await self._keep(key_name, originals)
        structlog.get_logger().info(
            "compressed",
            model=data.get("model"),
            key_name=key_name,
            dialect="chat_completions" if call_type == "acompletion" else "messages",
            texts=len(originals),
            tokens_before=before // CHARACTERS_PER_TOKEN,
            tokens_after=after // CHARACTERS_PER_TOKEN,
        )
        return data

    def _works(self, data: Mapping[str, Any]) -> bool:
        """Whether this request may be cut down: the model must be able to fetch what is left out."""
        if self._models is not None and data.get("model") not in self._models:
            return False
        if "functions" in data or data.get("n") not in (None, 1) or data.get("thread") is not None:
            return False
        tools = data.get("tools")
        return not any(_name(tool) == TOOL for tool in tools) if isinstance(tools, list) else True

    async def _keep(self, key_name: str, originals: Mapping[str, str]) -> None:
        store = self._store
        if store is not None:
            places = [(_place(key_name, key), text.encode("utf-8", "surrogatepass")) for key, text in originals.items()]
            await asyncio.gather(*(store.put(place, text) for place, text in places))


def compression(settings: Mapping[str, Any]) -> Compression:
    """The built-in from its settings. Raises `WrongSettings` with every problem."""
    made = read_settings(CompressionSettings, settings)
    if made.target_tokens is not None and made.target_tokens > made.threshold_tokens:
        text = f"it is more than threshold_tokens ({made.threshold_tokens}); write a smaller number"
        raise WrongSettings(Problem("target_tokens", text))
    return Compression(made)


# --- what is replaced ----------------------------------------------------------


def stand_in(key: str, text: str) -> str:
    """What stands in a text's place: the same for the same key and text."""
    head = " ".join(text[: 4 * _HEAD].split())[:_HEAD]
    return f'[{len(text)} characters are left out here; {TOOL} with key="{key}" gives them back. They begin: {head} …]'


def _key(key_name: str, text: str) -> str:
    """The key of a text: it holds the caller's name, so that nobody meets another one's text."""
    return hashlib.sha256(f"{len(key_name)}:{key_name}:{text}".encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _place(key_name: str, key: str) -> str:
    return "text:" + hashlib.sha256(f"{len(key_name)}:{key_name}:{key}".encode("utf-8", "surrogatepass")).hexdigest()


def _spots(message: Any) -> Iterator[Spot]:
    """The texts of a message that may be replaced: what was said, and what tools gave; in both dialects."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "tool"):
        return
    yield from _texts(message)
    content = message.get("content")
    for block in content if isinstance(content, list) else []:
        if isinstance(block, dict) and block.get("type") == "tool_result":
            yield from _texts(block)


def _texts(holder: dict[str, Any]) -> Iterator[Spot]:
    """The texts in a `content`: itself, or its blocks of text that nothing else points into."""
    content = holder.get("content")
    if isinstance(content, str):
        yield Spot(content, _putter(holder, "content"))
    for block in content if isinstance(content, list) else []:
        plain = isinstance(block, dict) and block.get("type") == "text" and not block.get("citations")
        if plain and isinstance(block.get("text"), str):
            yield Spot(block["text"], _putter(block, "text"))


def _putter(holder: dict[str, Any], name: str) -> Callable[[str], None]:
    def put(text: str) -> None:
        holder[name] = text

    return put


def _least_relevant_first(texts: Sequence[str], question: str) -> list[int]:
    """The numbers of texts: those that share no word with the question first, the oldest of them first."""
    ranking: Ranking[int] = Ranking()
    try:
        ranking.add((number, "", text) for number, text in enumerate(texts))
        scores = dict(ranking.best(question, len(texts)))
    finally:
        ranking.close()
    # Words that stand nearly everywhere weigh a millionth; rounded, they are no reason.
    return sorted(range(len(texts)), key=lambda number: (round(scores.get(number, 0.0), 3), number))


# --- what a request holds ------------------------------------------------------


def _size(value: Any) -> int:
    """The characters of all texts in a value; an image or a file counts as a fixed number."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        if value.get("type") in _MEDIA:
            return _IMAGE_CHARACTERS
        return sum(_size(item) for item in value.values())
    return sum(_size(item) for item in value) if isinstance(value, (list, tuple)) else 0


def _has_mark(value: Any) -> bool:
    """Whether a cache mark stands somewhere in a value."""
    if isinstance(value, Mapping):
        return value.get("cache_control") is not None or any(_has_mark(item) for item in value.values())
    return any(_has_mark(item) for item in value) if isinstance(value, (list, tuple)) else False


def _last_mark(data: Mapping[str, Any], messages: Sequence[Any]) -> int:
    """The last message that is in a cached prefix; -1 if none is. A mark of the whole request caches all of them."""
    if data.get("cache_control") is not None:
        return len(messages) - 1
    return max((number for number, message in enumerate(messages) if _has_mark(message)), default=-1)


def _last_question(messages: Sequence[Any]) -> int:
    """The last turn in which the user says something, and does not only answer calls; -1 if there is none."""
    for number in range(len(messages) - 1, -1, -1):
        message = messages[number]
        if isinstance(message, Mapping) and message.get("role") == "user" and _asks(message.get("content")):
            return number
    return -1


def _asks(content: Any) -> bool:
    if isinstance(content, list):
        return any(not (isinstance(block, Mapping) and block.get("type") == "tool_result") for block in content)
    return isinstance(content, str)


def _words(message: Mapping[str, Any]) -> str:
    """What a user's turn says."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _name(tool: Any) -> Any:
    if not isinstance(tool, Mapping):
        return None
    inner = tool.get("function")
    return (inner if isinstance(inner, Mapping) else tool).get("name")
