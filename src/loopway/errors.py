"""Every error that an exchange can end in, as one tree.

This file must not know a wire format, HTTP, or where an error is shown.

::

    LoopwayError
    ├── ConfigError            the operator's: the configuration cannot work; never starts
    ├── ExchangeError          ends one exchange; has a status and a text for the client
    │   ├── RequestError       the client's: 4xx
    │   │   ├── BadRequest         400, with the JSON path of what is wrong
    │   │   ├── ThreadUnsupported  400, the one that SDKs fall back from by themselves
    │   │   ├── Rejected           400, a pre-call hook said no
    │   │   ├── Unauthorized       401
    │   │   ├── NotAllowed         403, the key is not for this model
    │   │   ├── NotFound           404, no such model or path
    │   │   ├── MethodNotAllowed   405
    │   │   └── TooLarge           413
    │   ├── UpstreamError      the model server's: 502 and 504, or its own status and body
    │   │   ├── Unreachable        502, no connection
    │   │   ├── Broken             502, an answer that is no answer
    │   │   ├── Silent             504, no byte in time
    │   │   ├── Refused            its own status and body, before the first byte
    │   │   └── Reported           an error event inside its stream
    │   ├── HookFailed         a hook's: 500, names hook and phase
    │   ├── RuleFailed         500, a post-call rule refuses the answer
    │   └── LimitReached       a configured limit
    │       ├── Full               503 or 529, with retry-after
    │       ├── OutOfTime          504, request_timeout_seconds
    │       └── Draining           503, the gateway is shutting down
    └── ClientGone             nobody is left to be told
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

Family = Literal["yours", "upstream", "ours", "limit"]


class LoopwayError(Exception):
    """The root of the tree."""


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with a configuration: where it is, and what was found and is wanted."""

    path: str
    text: str


class ConfigError(LoopwayError):
    """A configuration that cannot work. Holds every problem that was found, not the first one."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """One line per problem: file, key path, text."""
        return [
            f"{self.source}: {problem.path}: {problem.text}" if problem.path else f"{self.source}: {problem.text}"
            for problem in self.problems
        ]


class ExchangeError(LoopwayError):
    """An error that ends one exchange. `text` is for the client: no key, no prompt, no traceback."""

    status: int = 500
    family: ClassVar[Family] = "ours"
    kind: ClassVar[str] = "internal_error"  # a closed list, for logs and metrics
    path: str | None = None  # the JSON path in the request, where one is to blame
    retry_after: int | None = None  # seconds

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)


class RequestError(ExchangeError):
    """What the client sent cannot be served."""

    status = 400
    family = "yours"
    kind = "bad_request"


class BadRequest(RequestError):
    """The body or a header is wrong; `path` says where, as `$.messages[0]` or a header's name."""

    def __init__(self, text: str, path: str | None = None) -> None:
        self.path = path
        super().__init__(text)


class ThreadUnsupported(RequestError):
    """`thread` in a Messages request that a hook watches. SDKs send the whole history instead."""

    path = "$.thread"
    kind = "thread_unsupported"

    def __init__(self) -> None:
        super().__init__(
            "thread: a hook answers tool calls of this request, and it cannot see a history that the provider "
            "holds; send the whole history in messages"
        )


class Rejected(RequestError):
    """A pre-call hook refused the request; its own words are the text."""

    kind = "rejected"


class Unauthorized(RequestError):
    """No key, or a key that is not configured."""

    status = 401
    kind = "unauthorized"


class NotAllowed(RequestError):
    """The key is good, but not for this model."""

    status = 403
    kind = "not_allowed"


class NotFound(RequestError):
    """No such model or path."""

    status = 404
    kind = "not_found"

    def __init__(self, text: str, path: str | None = None) -> None:
        self.path = path
        super().__init__(text)


class MethodNotAllowed(RequestError):
    """The path is there, but not for this method.

    Args:
        text: What was asked for.
        allow: The methods that the path is there for, as the `allow` header has them (RFC 9110, section 15.5.6).
    """

    status = 405
    kind = "method_not_allowed"

    def __init__(self, text: str, allow: str) -> None:
        super().__init__(text)
        self.allow = allow


class TooLarge(RequestError):
    """The body has more than `server.max_body_bytes`."""

    status = 413
    kind = "too_large"


class UpstreamError(ExchangeError):
    """The model server did not give an answer. `upstream` is its configured name."""

    status = 502
    family = "upstream"
    kind = "upstream_broken"

    def __init__(self, upstream: str, text: str) -> None:
        self.upstream = upstream
        super().__init__(text)


class Unreachable(UpstreamError):
    """No connection could be made, or it broke before the first byte of an answer."""

    kind = "upstream_unreachable"


class Broken(UpstreamError):
    """The answer broke off, or is none: cut, no JSON, longer than any buffer."""


class Silent(UpstreamError):
    """No connection or no byte within the configured time."""

    status = 504
    kind = "upstream_timeout"


class Refused(UpstreamError):
    """An HTTP error status of the upstream. Goes to the client with its own status, headers and body."""

    kind = "upstream_status"

    def __init__(self, upstream: str, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = tuple(headers)
        self.body = body
        super().__init__(upstream, f"the upstream {upstream!r} answered with status {status}")


class Reported(UpstreamError):
    """An error event inside an upstream's stream; `data` is the event's own JSON."""

    kind = "upstream_event"

    def __init__(self, upstream: str, data: bytes, status: int = 502) -> None:
        self.data = data
        self.status = status
        super().__init__(upstream, f"the upstream {upstream!r} reported an error in its stream")


class HookFailed(ExchangeError):
    """A hook raised, hung or returned something that is no answer. The cause stays in the log."""

    kind = "hook_failed"

    def __init__(self, hook: str, phase: str, what: str) -> None:
        self.hook = hook
        self.phase = phase
        super().__init__(f"the hook {hook!r} failed in its {phase}: {what}")


class RuleFailed(ExchangeError):
    """A post-call rule refuses the answer; its own words are the text."""

    kind = "rule_failed"


class LimitReached(ExchangeError):
    """A configured limit of the gateway, not of the upstream."""

    status = 503
    family = "limit"
    kind = "limit"


class Full(LimitReached):
    """`server.max_concurrent_requests` exchanges are under way."""

    kind = "full"
    retry_after = 1

    def __init__(self) -> None:
        super().__init__("the gateway has as many requests as it may have at once; try again soon")


class OutOfTime(LimitReached):
    """`server.request_timeout_seconds` are over."""

    status = 504
    kind = "timeout"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request took longer than {seconds:g} seconds (server.request_timeout_seconds)")


class Draining(LimitReached):
    """The gateway is shutting down."""

    kind = "draining"
    retry_after = 1

    def __init__(self) -> None:
        super().__init__("the gateway is shutting down; try again, another instance will answer")


class ClientGone(LoopwayError):
    """The client closed its connection; nobody is left to be told."""
