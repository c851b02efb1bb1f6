"""The shape of the configuration: its keys, types, bounds and defaults.

This file must not know how a file is read, or what is wrong with one.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Any, Literal

import msgspec

from loopway.engine.limits import DEFAULT_LOOPS, OnLimit, OnRepeat

DialectName = Literal["messages", "chat_completions"]


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class Secret:
    """A text that no repr, log or error message shows. `reveal()` gives it to the one place that sends it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        """Equality in constant time."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_utf8(self._text), _utf8(other._text))

    def __hash__(self) -> int:
        return hash((Secret, self._text))


LAST_PORT = 65_535
Port = Annotated[int, msgspec.Meta(ge=0, le=LAST_PORT)]
Loops = Annotated[int, msgspec.Meta(ge=0, extra={"unit": "reruns"})]
Count = Annotated[int, msgspec.Meta(ge=1)]
CountOrNone = Annotated[int, msgspec.Meta(ge=0)]
Bytes = Annotated[int, msgspec.Meta(ge=1, extra={"unit": "bytes"})]
Seconds = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "seconds"})]
SecondsOrNone = Annotated[float, msgspec.Meta(ge=0, extra={"unit": "seconds"})]
Text = Annotated[str, msgspec.Meta(min_length=1)]
HiddenText = Annotated[str, msgspec.Meta(min_length=1, extra={"hidden": True})]


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the gateway listens, and what it takes at once.

    Attributes:
        host: Address to listen on; 0.0.0.0 for every IPv4 address.
        port: TCP port for clients; 0 takes a free one.
        admin_port: TCP port for /metrics and health; null puts them on the main port.
        max_body_bytes: Longest request body; a longer one is a 413.
        max_concurrent_requests: Exchanges under way at once; one more is turned away with retry-after.
        request_timeout_seconds: Longest exchange, from its request to the end of its answer.
        drain_seconds: How long open exchanges may go on after SIGTERM; 0 ends them at once.
    """

    host: Text = "127.0.0.1"
    port: Port = 4000
    admin_port: Port | None = 9464
    max_body_bytes: Bytes = 33_554_432
    max_concurrent_requests: Count = 1000
    request_timeout_seconds: Seconds = 600.0
    drain_seconds: SecondsOrNone = 30.0


class KeySettings(msgspec.Struct, frozen=True, kw_only=True):
    """One client key. It has exactly one of `key` and `sha256`.

    Attributes:
        name: Whose key it is; shown in logs and to hooks.
        key: The key itself, best as ${NAME}.
        sha256: The SHA-256 of the key, as 64 hex digits, where the key itself must not be in the file.
        models: The models that it may call: configured names, or "*" for all.
    """

    name: Text
    key: Secret | None = None
    sha256: HiddenText | None = None
    models: list[Text] = msgspec.field(default_factory=lambda: ["*"])

    @property
    def digest(self) -> str:
        """The SHA-256 of the key in lower-case hex, whichever way it was configured."""
        if isinstance(self.key, Secret):
            return hashlib.sha256(_utf8(self.key.reveal())).hexdigest()
        return self.sha256.lower() if isinstance(self.sha256, str) else ""

    def allows(self, model: str) -> bool:
        """Whether this key may call a model."""
        return "*" in self.models or model in self.models


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who may call.

    Attributes:
        keys: The client keys; at least one, unless mode is open.
        mode: keys asks every client for one of the keys; open lets everybody call.
    """

    keys: list[KeySettings] = []
    mode: Literal["keys", "open"] = "keys"


class UpstreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One model server.

    Attributes:
        base_url: What stands before /v1/messages or /v1/chat/completions.
        api_key: The key for this server, best as ${NAME}; null sends none.
        dialects: The wire formats that this server speaks: messages, chat_completions.
        forward_client_auth: Send the client's own key on to this server.
        headers: Headers added to every call, name to value.
        connect_timeout_seconds: Longest wait for a connection.
        read_timeout_seconds: Longest silence between two pieces of an answer.
        max_retries: Further attempts after a failure, only before the first byte of an answer.
        ca_file: PEM file with a private certificate authority; a relative path starts at this file.
        proxy: URL of an HTTP proxy; null takes the standard *_PROXY variables.
    """

    base_url: Text
    api_key: Secret | None = None
    dialects: list[DialectName] = msgspec.field(default_factory=lambda: ["messages"])
    forward_client_auth: bool = False
    headers: dict[str, Secret] = {}
    connect_timeout_seconds: Seconds = 5.0
    read_timeout_seconds: Seconds = 300.0
    max_retries: CountOrNone = 2
    ca_file: Text | None = None
    proxy: Secret | None = None

    def __post_init__(self) -> None:
        """A slash at the end of `base_url` means nothing, so it is cut off."""
        if isinstance(self.base_url, str):
            msgspec.structs.force_setattr(self, "base_url", self.base_url.rstrip("/"))


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One model name that clients may send.

    Attributes:
        name: What clients send as model.
        upstream: The name of the upstream that serves it.
        model: What the upstream gets as model; null sends name.
        max_agentic_loops: Most reruns for this model; null takes loop.max_agentic_loops.
        fallback: Another models[].name, tried when the upstream fails before the first byte.
    """

    name: Text
    upstream: Text
    model: Text | None = None
    max_agentic_loops: Loops | None = None
    fallback: Text | None = None

    @property
    def sent_as(self) -> str:
        """What the upstream gets as `model`."""
        return self.model or self.name


class LoopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How far a loop may go, and how its stream looks.

    Attributes:
        max_agentic_loops: Most reruns of one exchange (not model calls); 0 means none.
        max_agentic_loops_ceiling: The most reruns that a request or a hook may ask for.
        max_seconds: Wall clock of the whole loop.
        max_tool_calls: Calls of owned tools in one exchange.
        on_limit: stop ends with the reply at hand; final_answer spends one more call in which no tool is used.
        on_repeat: On the same tool calls a second time, abort ends the loop, tell_model tells the model.
        stream: merged makes one valid message of all iterations; appended sends them one behind the other.
        interim_text: Text of iterations that were rerun; stream shows it live in streams only, always also in
            JSON answers, never in neither.
        usage: sum adds up the tokens of all iterations; last reports those of the last one.
        keepalive_seconds: Longest silence on a stream before it gets a keepalive.
        hook_timeout_seconds: Longest run of one hook method or server tool.
    """

    max_agentic_loops: Loops = DEFAULT_LOOPS
    max_agentic_loops_ceiling: Loops = 10
    max_seconds: Seconds = 300.0
    max_tool_calls: CountOrNone = 32
    on_limit: OnLimit = "stop"
    on_repeat: OnRepeat = "abort"
    stream: Literal["merged", "appended"] = "merged"
    interim_text: Literal["stream", "always", "never"] = "stream"
    usage: Literal["sum", "last"] = "sum"
    keepalive_seconds: Seconds = 15.0
    hook_timeout_seconds: Seconds = 60.0


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway says about itself. Traces are set by the standard OTEL_* variables.

    Attributes:
        service_name: The name of this gateway in traces, logs and metrics.
        log_level: The least serious lines that are written.
        log_format: json is an object per line, text is for people, auto is text on a terminal, else json.
    """

    service_name: Text = "loopway"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "text"] = "auto"


class StateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where that is kept which outlives an exchange: the server's halves of mixed replies, compressed texts.

    Attributes:
        redis_url: A Redis that all replicas share, as redis://host:6379/0; null keeps it in memory, per process.
        max_bytes: Most that is kept in memory; the oldest goes first.
        keep_seconds: How long something is kept.
    """

    redis_url: Secret | None = None
    max_bytes: Bytes = 67_108_864
    keep_seconds: Seconds = 3600.0


class HookSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `hooks`: either `path` or `builtin` is set. Its repr shows no setting's value.

    Attributes:
        path: The dotted path of an instance.
        builtin: The name of a built-in hook.
        settings: The built-in's own settings, checked by the built-in.
    """

    path: str | None = None
    builtin: str | None = None
    settings: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"HookSetting({self.path or self.builtin}, settings={sorted(map(str, self.settings))})"


class RuleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Plain functions that fail a request or an answer by its text, as dotted paths.

    Attributes:
        pre_call: See the text of a request's messages; a no is a 400.
        post_call: See the text of the last reply; a no is a 500, in a stream an error event.
    """

    pre_call: list[Text] = []
    post_call: list[Text] = []


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration, checked.

    Attributes:
        server: Where the gateway listens, and what it takes at once.
        auth: Who may call.
        upstreams: The model servers by name; at least one.
        models: The model names that clients may send; at least one.
        loop: How far a loop may go, and how its stream looks.
        hooks: The hooks, asked in this order; a dotted path of an instance, or a built-in with its settings.
        telemetry: What the gateway says about itself.
        state: Where that is kept which outlives an exchange.
        rules: Functions that fail a request or an answer by its text.
    """

    server: ServerSettings = ServerSettings()
    auth: AuthSettings = AuthSettings()
    upstreams: dict[str, UpstreamSettings]
    models: list[ModelSettings]
    loop: LoopSettings = LoopSettings()
    hooks: list[HookSetting] = []
    telemetry: TelemetrySettings = TelemetrySettings()
    state: StateSettings = StateSettings()
    rules: RuleSettings = RuleSettings()
