"""The protocol of a dialect: all that the driver may ask of a wire format.

A new dialect is one folder with these four files: `request.py`, `reply.py`, `splice.py`, `errors.py`, and one line in
`dialects/table.py`. This file must not know any particular dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from loopway.dialects.request import Request
from loopway.dialects.sse import Frame
from loopway.engine.reply import Reply
from loopway.errors import ExchangeError, Full

DialectName = Literal["messages", "chat_completions"]
InterimText = Literal["stream", "always", "never"]
UsageMode = Literal["sum", "last"]
Keep = Callable[[str], bool]
"""Says of a tool's name whether a call to it may reach the client."""


class Splicer(Protocol):
    """Makes one valid message of the streams of several iterations. Feed it frames, send on what it returns.

    One per exchange. The driver's road::

        begin(…)  feed(frame)*  reply()          an iteration
        drop()                                   it was rerun: held calls go, and held text with them
        begin(…)  feed(frame)*  reply()          the next one
        finish(keep)                             the one ending, from the outcome

    A `Reply` that did not come as a stream (an override, a replaced reply) is fed as `Dialect.render` shows it.
    """

    @property
    def ended(self) -> bool:
        """Whether the current iteration's stream said that it is complete."""
        ...

    @property
    def error(self) -> bytes | None:
        """The data of an error event in the current iteration; nothing behind it counts."""
        ...

    @property
    def content(self) -> bool:
        """Whether any content (text, thinking, a call) has been returned for the client yet."""
        ...

    def begin(self, holds: Keep, *, everything: bool = False, counted: bool = True) -> None:
        """A new iteration begins.

        Args:
            holds: Which tool calls wait for `drop` or `finish`; the others leave at once.
            everything: Hold text, thinking and all calls.
            counted: Whether its usage counts; false for what no model call made.
        """
        ...

    def feed(self, frame: Frame) -> bytes:
        """Take one event, give what the client gets now; empty for nothing."""
        ...

    def reply(self) -> Reply:
        """The current iteration's events, folded. `fault` is set if the stream was not complete."""
        ...

    def release(self) -> bytes:
        """Text that was held under `everything` goes now; calls stay held."""
        ...

    def drop(self) -> None:
        """The iteration was rerun or overridden: what is held never goes."""
        ...

    def finish(self, keep: Keep) -> bytes:
        """Release or drop what is held, and write the one ending."""
        ...


class Dialect(Protocol):
    """A wire format."""

    name: DialectName
    path: str
    provider: str
    """What `custom_llm_provider` and `gen_ai.provider.name` say."""
    call_type: str
    """What `async_pre_call_hook` gets as `call_type`."""
    full_status: int
    """The status that says: too many at once. SDKs try again on it."""
    ping: bytes
    """What keeps a silent stream alive without any client noticing."""
    tail: bytes
    """What the end of a complete stream holds."""

    def request(self, body: bytes) -> Request:
        """Decode a request. Raises `errors.BadRequest` with the JSON path."""
        ...

    def reply(self, raw: bytes) -> Reply:
        """Read a JSON reply. Raises `ValueError` if it is no reply of this dialect."""
        ...

    def render(self, value: Mapping[str, Any]) -> list[Frame]:
        """A whole reply as the stream that would tell it. Raises `ValueError` if it is no reply of this dialect."""
        ...

    def splicer(self, *, usage: UsageMode, include_usage: bool) -> Splicer:
        """A splicer for one exchange."""
        ...

    def final(
        self, reply: Reply, *, keep: Keep, interim: Sequence[Reply] = (), usage: Mapping[str, Any] | None = None
    ) -> bytes:
        """The JSON answer made of the last reply; its own bytes where nothing has to change.

        Args:
            reply: The last reply.
            keep: Calls to other tools are removed, and a finish that announces calls becomes a plain one if none
                is left.
            interim: Earlier replies whose text goes in front.
            usage: Replaces the reply's own.
        """
        ...

    def shown(self, blocks: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> dict[str, Any]:
        """A reply that holds what tools want the client to see, and what they add to its usage.

        Args:
            blocks: Content blocks; a dialect that has none leaves them out.
            usage: Counts.
        """
        ...

    def error_body(self, error: ExchangeError, request_id: str) -> bytes:
        """An error as a JSON body."""
        ...

    def error_event(self, error: ExchangeError, request_id: str) -> bytes:
        """An error inside a stream; the stream closes behind it."""
        ...

    def tokens(self, usage: Mapping[str, Any]) -> dict[str, int]:
        """A usage object by neutral names: input, output, cache_read, cache_creation, reasoning.

        `input` includes the cached tokens (OpenTelemetry's rule for gen_ai.usage.input_tokens).
        """
        ...


def status_of(error: ExchangeError, dialect: Dialect) -> int:
    """The HTTP status of an error. Being full has the dialect's own.

    Shutting down is a 503 in each: SDKs try again on it as well, and proxies know it as "ask another instance".
    """
    return dialect.full_status if isinstance(error, Full) else error.status
