"""A client's request: what the gateway must know of it, and how a rerun's request is made from it.

The base of both dialects' requests; what differs between them is in `dialects/*/request.py`. Members that nobody
touches keep their bytes.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec

from loopway.dialects.members import Members, NotAnObject
from loopway.dialects.text import text_of_messages
from loopway.engine.answers import Answer, Answers, Kept
from loopway.engine.limits import loops_asked
from loopway.engine.plan import AgenticLoopRequestPatch
from loopway.engine.reply import Reply
from loopway.errors import BadRequest

LOOPS = "max_agentic_loops"
"""The gateway's own member of a request body; it never goes upstream."""


class Request(ABC):
    """One request in a dialect's shape. Never changed; `patched` and its like make a new one.

    Attributes:
        model: The model name that the client sent, or a patch has set.
        stream: Whether the client wants a stream.
        loops: The `max_agentic_loops` that the client sent, or None.
    """

    __slots__ = ("_members", "_tool_names", "loops", "model", "stream")

    PRIVATE: ClassVar[tuple[str, ...]] = ("model", "messages", "stream", LOOPS)

    def __init__(self, members: Members, model: str, *, stream: bool, loops: int | None) -> None:
        self._members = members
        self.model = model
        self.stream = stream
        self.loops = loops
        self._tool_names: frozenset[str] | None = None

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Decode a body. Raises `BadRequest` with the JSON path of what is wrong."""
        try:
            members = Members.parse(body)
        except NotAnObject as wrong:
            raise BadRequest(str(wrong), "$") from None
        if members.repeated("model"):
            raise BadRequest("$.model: the member is there more than once; send it once", "$.model")
        try:
            return cls._of(members)
        except RecursionError:
            raise BadRequest("the body is nested too deeply", "$") from None

    @classmethod
    def _of(cls, members: Members) -> Self:
        model = members.get("model")
        if not isinstance(model, str) or not model:
            found = "missing" if "model" not in members else f"{_kind(model)}"
            raise BadRequest(f"$.model: it is {found}; write the name of a model", "$.model")
        stream = members.get("stream")
        if stream is not None and not isinstance(stream, bool):
            raise BadRequest(f"$.stream: it is {_kind(stream)}; write true or false", "$.stream")
        loops = None
        if LOOPS in members:
            try:
                loops = loops_asked(members.get(LOOPS))
            except ValueError as wrong:
                raise BadRequest(f"$.{LOOPS}: it {wrong}", f"$.{LOOPS}") from None
        return cls(members, model, stream=stream is True, loops=loops)

    # --- what hooks and the driver read ---

    @property
    def tool_names(self) -> frozenset[str]:
        """The names of the tools that this request offers to the model."""
        if self._tool_names is None:
            self._tool_names = self._read_tool_names()
        return self._tool_names

    @property
    def client_tools(self) -> frozenset[str]:
        """The names of those that the client answers itself; others the provider runs."""
        return self.tool_names

    @property
    def single(self) -> bool:
        """Whether one reply is asked for; with several no loop can be run."""
        return True

    @property
    def include_usage(self) -> bool:
        """Whether a stream of this request has to tell its usage (Chat Completions asks for it)."""
        return True

    @property
    def thread(self) -> bool:
        """Whether the provider holds the history of this request (Messages threads)."""
        return False

    def messages(self) -> list[Any]:
        """The messages as fresh plain data. Raises `BadRequest`."""
        messages = self._members.get("messages")
        if not isinstance(messages, list):
            raise BadRequest(f"$.messages: it is {_kind(messages)}; write a list of messages", "$.messages")
        return messages

    def system(self) -> Any:
        """The system prompt that stands beside the messages (Messages), as fresh plain data, or None."""
        return self._members.get("system")

    def tools(self) -> list[Any] | None:
        """The tools as fresh plain data, or None where the request has none."""
        tools = self._members.get("tools")
        return tools if isinstance(tools, list) else None

    def optional_params(self) -> dict[str, Any]:
        """All members but model, messages and stream, as fresh plain data."""
        return self._members.fresh(*self.PRIVATE)

    def metadata(self) -> dict[str, Any]:
        """The request's own `metadata`, as fresh plain data."""
        metadata = self._members.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    def data(self) -> dict[str, Any]:
        """The whole body as fresh plain data, for `async_pre_call_hook`."""
        return self._members.fresh()

    def parameters(self) -> Mapping[str, Any]:
        """The sampling parameters that telemetry shows, by their names on the wire."""
        wanted = ("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stop", "stop_sequences")
        more = ("frequency_penalty", "presence_penalty", "seed", "n", "service_tier")
        return {name: self._members.get(name) for name in (*wanted, *more) if name in self._members}

    # --- what goes upstream ---

    def body(self, model: str) -> bytes:
        """The bytes for an upstream that knows the model by this name."""
        members = self._members
        removed = (LOOPS,) if LOOPS in members else ()
        if removed or members.get("model") != model:
            members = members.with_members({"model": model}, removed)
        return members.encode()

    # --- what a rerun makes of it ---

    def replaced(self, data: Mapping[str, Any]) -> Self:
        """The request that a pre-call hook returned; members that it did not change keep their bytes.

        Raises `BadRequest` if it is no request any more.
        """
        changed: dict[str, Any] = {}
        for name, value in data.items():
            raw = self._members.raw(name)
            if raw is None or msgspec.json.decode(raw) != value:
                changed[name] = value
        removed = tuple(name for name in self._members.names() if name not in data)
        if not changed and not removed:
            return self
        try:
            return self._of(self._members.with_members(changed, removed))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as wrong:
            raise BadRequest(f"the changed request is no JSON: {wrong}") from None

    def patched(self, patch: AgenticLoopRequestPatch) -> Self:
        """The request of a rerun. What the patch leaves out stays; a forced tool choice does not."""
        changed: dict[str, Any] = {}
        removed: list[str] = []
        for name, value in patch.optional_params.items():
            if value is None:
                removed.append(name)
            else:
                changed[name] = value
        if patch.messages is not None:
            changed["messages"] = patch.messages
        if patch.tools is not None:
            changed["tools"] = patch.tools
        if patch.max_tokens is not None:
            changed[self._max_tokens_member()] = patch.max_tokens
        if not self._chosen(patch.optional_params):
            self._loosen(changed, removed)
        if changed.get("tools") == []:  # an empty list is refused by the providers, and so is a choice without tools
            del changed["tools"]
            removed += ["tools", "tool_choice", "parallel_tool_calls"]
            changed.pop("tool_choice", None)
        return self._rerun(changed, tuple(removed), model=patch.model)

    def answered(self, answers: Answers) -> Self:
        """The request with the assistant turn of a reply behind it, exactly, and one result per call."""
        changed: dict[str, Any] = {"messages": self.messages() + self._turns(answers)}
        removed: list[str] = []
        if answers.choice_none:
            changed["tool_choice"] = self._choice_none()
        else:
            self._loosen(changed, removed)
        if "tools" not in self._members:
            changed.pop("tool_choice", None)
        return self._rerun(changed, tuple(removed))

    def offering(self, tools: Sequence[tuple[str, str, Mapping[str, Any]]]) -> Self:
        """The request with more tools behind its own: (name, description, JSON Schema) each."""
        if not tools:
            return self
        own = self.tools() or []
        members = self._members.with_members({"tools": [*own, *(self._tool(*tool) for tool in tools)]})
        return type(self)(members, self.model, stream=self.stream, loops=self.loops)

    def restored(self, kept: Sequence[Kept]) -> Self:
        """The request with the server's halves of mixed replies back in its history."""
        messages = self.messages()
        for half in kept:
            messages = self._restored(messages, half)
        return self._rerun({"messages": messages}, ())

    def completed(self, messages: list[dict[str, Any]], answers: Answers) -> list[dict[str, Any]] | None:
        """Messages of a patch that answer some calls of a reply, with these answers beside them.

        None if they do not hold the reply's assistant turn and results behind it.
        """
        ids = {call.id for call in answers.reply.calls}
        for place in range(len(messages) - 1, -1, -1):
            if ids & set(self._call_ids(messages[place])):
                return self._completed(messages, place, answers)
        return None

    def history(self) -> list[tuple[tuple[str, ...], str]]:
        """The assistant turns of the history that make calls: the calls' ids, and a mark of the whole turn."""
        messages = self._members.get("messages")
        if not isinstance(messages, list):
            return []
        turns: list[tuple[tuple[str, ...], str]] = []
        before: Any = None
        for message in messages:
            if isinstance(message, dict) and (calls := self._calls_of(message)):
                turns.append((tuple(id_ for id_, _, _ in calls), mark_of(calls, before)))
            before = message
        return turns

    def mark(self, calls: Sequence[tuple[str, str, Any]]) -> str:
        """The mark that a turn with these calls (id, name, arguments) has when it comes back behind this request."""
        messages = self._members.get("messages")
        return mark_of(calls, messages[-1] if isinstance(messages, list) and messages else None)

    def _rerun(self, changed: dict[str, Any], removed: tuple[str, ...], model: str | None = None) -> Self:
        if model is not None:
            changed["model"] = model
        members = self._members.with_members(changed, (*removed, LOOPS))
        return type(self)(members, model or self.model, stream=self.stream, loops=self.loops)

    # --- what the dialects differ in ---

    @abstractmethod
    def _read_tool_names(self) -> frozenset[str]: ...

    def _turns(self, answers: Answers) -> list[dict[str, Any]]:
        """The assistant turn of a reply, exactly, and the turns that answer its calls."""
        return [self.assistant_turn(answers.reply), *self._results(answers.results)]

    @abstractmethod
    def assistant_turn(self, reply: Reply) -> dict[str, Any]:
        """A reply as the turn of a history, exactly."""

    @abstractmethod
    def _results(self, answers: Sequence[Answer]) -> list[dict[str, Any]]:
        """The turns that answer calls, in the order given."""

    @abstractmethod
    def _tool(self, name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A tool in the dialect's shape."""

    @abstractmethod
    def _calls_of(self, message: dict[str, Any]) -> list[tuple[str, str, Any]]:
        """The calls that an assistant turn makes: id, name, arguments."""

    def _call_ids(self, message: dict[str, Any]) -> list[str]:
        return [id_ for id_, _, _ in self._calls_of(message)]

    @abstractmethod
    def _restored(self, messages: list[dict[str, Any]], kept: Kept) -> list[dict[str, Any]]:
        """A history with one server's half put back; unchanged where the client's half is not in it."""

    @abstractmethod
    def _completed(self, messages: list[dict[str, Any]], place: int, answers: Answers) -> list[dict[str, Any]] | None:
        """A history whose turn at this place makes some of a reply's calls, with all of these made and answered."""

    @abstractmethod
    def _loosen(self, changed: dict[str, Any], removed: list[str]) -> None:
        """Let a forced tool choice go: kept, the model could only call again, for ever."""

    @abstractmethod
    def _choice_none(self) -> Any:
        """The tool choice that keeps the tools but lets the model call none."""

    def _chosen(self, params: Mapping[str, Any]) -> bool:
        return params.get("tool_choice") is not None

    def _max_tokens_member(self) -> str:
        return "max_tokens"


def mark_of(calls: Sequence[tuple[str, str, Any]], before: Any) -> str:
    """What tells an assistant turn from another one whose calls have the same ids.

    Made of its calls and the text of the message before it, which a client sends back as they are; its own text is
    not, since a stream has more of it than a JSON answer.
    """
    told = json.dumps(
        [sorted([id_, name, _plain(given)] for id_, name, given in calls), text_of_messages([before])], sort_keys=True
    )
    return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(arguments: Any) -> str:
    try:
        return json.dumps(arguments, sort_keys=True, default=repr)
    except (RecursionError, ValueError):
        return "nested too deeply"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    if value == "":
        return "empty"
    return names.get(type(value), "something else")
