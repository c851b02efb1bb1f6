"""Facts about an exchange, for telemetry. Each listener is a function of a `Note`.

This file must not know who listens. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from loopway.engine.limits import Breach
from loopway.engine.loop import Outcome

__all__ = [
    "Began", "Breach", "CallBegan", "CallEnded", "CallFailed", "Ended", "FirstChunk", "FirstContent", "GonePhase",
    "HookRan", "IterationDecided", "Listener", "Note", "Outcome", "Phase", "ReplyCame", "Said", "Subject", "ToolBegan",
    "ToolRan", "ToolResult", "nobody",
]  # fmt: skip

Phase = Literal["pre_call", "gate", "plan", "post", "cleanup"]
"""The phases of a hook."""

ToolResult = Literal["ok", "error", "timeout", "cancelled"]
"""How a call of a server tool ended."""

GonePhase = Literal["request", "upstream", "stream", "hook"]
"""Where an exchange was when its client left."""


class Subject(msgspec.Struct, kw_only=True):
    """The exchange that a note is about. Filled in as it becomes known; listeners may keep state beside it.

    Attributes:
        request_id: The client's own id if it sent a sane one, else made here.
        dialect: The wire format.
        model: The model name that the client asked for; never a label before it is known to be configured.
        known: Whether `model` is a configured name.
        stream: Whether the client asked for a stream.
        key_name: The configured name of the caller's key, never the key.
        began: When the request came.
        traceparent: The caller's W3C trace context, if it sent one.
        tracestate: The vendor part of it.
        http: Reads what a trace shows of the HTTP request: `scheme`, `host`, `port`, `client`, `version`, `user_agent`;
            what is not known is not there.
        state: What a listener keeps for this exchange, by the listener's name. `trace_id` is there for others, and
            `exemplar` if the trace is recorded.
        answer_headers: What a listener adds to the head of the answer when it hears `Began`.
    """

    request_id: str
    dialect: str
    began: float
    model: str = ""
    known: bool = False
    stream: bool = False
    key_name: str = ""
    method: str = "POST"
    route: str = ""
    traceparent: str = ""
    tracestate: str = ""
    http: Callable[[], Mapping[str, str | int]] = dict
    state: dict[str, Any] = msgspec.field(default_factory=dict)
    answer_headers: list[tuple[bytes, bytes]] = msgspec.field(default_factory=list)


class Began(msgspec.Struct, frozen=True):
    """An exchange was admitted: its key is good and there is room. Its body is still to be read."""


class CallBegan(msgspec.Struct, frozen=True):
    """A model call is about to be sent to one upstream; its tries follow as `CallEnded`.

    It ends with `ReplyCame` or with `CallFailed`. A fallback is a call of its own.

    Attributes:
        model: The model name that the upstream gets.
        parameters: Reads the sampling parameters, by their names on the wire.
        content: Reads the request's body, for those who asked to see prompts.
        headers: May be added to (trace context).
    """

    depth: int
    upstream: str
    model: str
    server: str
    port: int | None
    parameters: Callable[[], Mapping[str, Any]]
    headers: dict[str, str]
    content: Callable[[], Mapping[str, Any]] = dict


class CallEnded(msgspec.Struct, frozen=True):
    """One try at an upstream ended: its head came, or it failed before. `status` 0: no head came."""

    depth: int
    upstream: str
    status: int
    seconds: float
    error: str | None = None


class FirstChunk(msgspec.Struct, frozen=True):
    """The first bytes of a streamed reply came, so many seconds behind the call; a ping of the upstream counts."""

    depth: int
    upstream: str
    model: str
    seconds: float


class CallFailed(msgspec.Struct, frozen=True):
    """A model call ended without a reply. `error`: an HTTP status, a kind of `errors.py`, or `cancelled`."""

    depth: int
    upstream: str
    model: str
    seconds: float
    error: str


class FirstContent(msgspec.Struct, frozen=True):
    """The first content of the answer goes to the client."""

    at: float


class ReplyCame(msgspec.Struct, frozen=True):
    """A reply is whole, or as whole as it will be. `model` is the name that the upstream got."""

    depth: int
    upstream: str
    model: str
    response_model: str
    response_id: str
    finish: str
    usage: Mapping[str, int]
    seconds: float
    fault: str | None = None
    value: Callable[[], Mapping[str, Any]] | None = None


class HookRan(msgspec.Struct, frozen=True):
    """A phase of a hook ended; `error` is the kind of failure, if it failed."""

    hook: str
    phase: Phase
    seconds: float
    depth: int
    error: str | None = None
    detail: str | None = None


class ToolBegan(msgspec.Struct, frozen=True):
    """A server tool is about to run. Told in the tool's own task, so that a trace context may be set in it."""

    tool: str
    call_id: str
    depth: int
    tool_of: str


class ToolRan(msgspec.Struct, frozen=True):
    """A server tool ran. Told in the tool's own task. `detail` is for the log, `told` are span attributes."""

    tool: str
    result: ToolResult
    seconds: float
    depth: int
    call_id: str
    detail: str | None = None
    told: Mapping[str, str | int] = {}


class IterationDecided(msgspec.Struct, frozen=True):
    """What was decided on the reply of one iteration."""

    depth: int
    outcome: Outcome
    hook: str | None
    breach: Breach | None
    fingerprint: str | None


class Said(msgspec.Struct, frozen=True):
    """Something that an operator should read once, e.g. why no loop is run on a request."""

    event: str
    detail: str


class Ended(msgspec.Struct, frozen=True):
    """The exchange is over, however.

    Attributes:
        status: How it ended, as an HTTP status: the one that the client saw, or, if an error came into an answer that
            had begun, the one that the error would have had; 499 if the client left before one.
        delivered: The status that went out; 0 if none did.
        outcome: What was decided last, if anything was.
        admitted: Whether it began; false if it was refused at the door.
        error: The kind of error that ended it, or None.
        gone: Where the exchange was when the client left, or None.
        upstream_seconds: Time spent waiting for upstreams.
        hook_seconds: Time spent in hooks.
    """

    status: int
    iterations: int
    seconds: float
    upstream_seconds: float = 0.0
    hook_seconds: float = 0.0
    admitted: bool = True
    delivered: int = 0
    outcome: Outcome | None = None
    breach: Breach | None = None
    error: str | None = None
    error_text: str | None = None
    gone: GonePhase | None = None
    usage: Mapping[str, int] = {}


Note = (
    Began
    | CallBegan
    | CallEnded
    | FirstChunk
    | CallFailed
    | FirstContent
    | ReplyCame
    | HookRan
    | ToolBegan
    | ToolRan
    | IterationDecided
    | Said
    | Ended
)
Listener = Callable[[Subject, Note], None]


def nobody(_subject: Subject, _note: Note) -> None:
    """A listener that does not listen."""
