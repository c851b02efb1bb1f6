"""What spans say: attributes in the names of CONTRACT section 8, made of notes.

Values are plain: texts, numbers, booleans and tuples of texts; what a client or an upstream has chosen is bounded. This
file must not know when a span begins or ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopway.engine.notes import CallBegan, Ended, ReplyCame, Subject
from loopway.telemetry import content

Attributes = dict[str, Any]

SERVER_ERROR = 500
"""The first HTTP status that is a failure of the server."""

_LONGEST = 256
"""Characters of a text that a client or an upstream has chosen."""
_INT64 = range(-(2**63), 2**63)
_NUMBERS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}
_TOKENS = {
    "input": "gen_ai.usage.input_tokens",
    "output": "gen_ai.usage.output_tokens",
    "cache_read": "gen_ai.usage.cache_read.input_tokens",
    "cache_creation": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning": "gen_ai.usage.reasoning.output_tokens",
}
_HTTP = {
    "scheme": "url.scheme",
    "version": "network.protocol.version",
    "host": "server.address",
    "port": "server.port",
    "client": "client.address",
    "user_agent": "user_agent.original",
}


def of_exchange(subject: Subject, note: Ended) -> Attributes:
    """An exchange, when it is over."""
    told = _http(subject)
    told |= {
        "loopway.model": text_of(subject.model),
        "loopway.stream": subject.stream,
        "loopway.loop.iterations": note.iterations,
        "loopway.upstream_seconds": note.upstream_seconds,
        "loopway.hook_seconds": note.hook_seconds,
    }
    if subject.key_name:
        told["loopway.key"] = subject.key_name
    if note.delivered:
        told["http.response.status_code"] = note.delivered
    if note.breach is not None:
        told["loopway.loop.abort_reason"] = note.breach
    if note.gone is not None:
        told["loopway.client_left"] = note.gone
    for kind, number in note.usage.items():
        told[f"loopway.tokens.{kind}"] = _bounded(number)
    if note.error is not None:
        told["loopway.error"] = note.error
        if note.status >= SERVER_ERROR:
            told["error.type"] = note.error
    return told


def for_sampler(note: CallBegan, named: str, provider: str) -> Attributes:
    """What the conventions want a sampler to see of a call, when its span begins."""
    told: Attributes = {
        "gen_ai.operation.name": named,
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": note.model,
        "server.address": note.server,
    }
    if note.port is not None:
        told["server.port"] = note.port
    return told


def of_call(subject: Subject, note: CallBegan) -> Attributes:
    """The rest of a call."""
    told = _parameters(note.parameters())
    told["loopway.upstream"] = note.upstream
    if subject.stream:
        told["gen_ai.request.stream"] = True
    if subject.dialect == "chat_completions":
        told["openai.api.type"] = "chat_completions"
    return told


def of_reply(note: ReplyCame, *, capture: bool) -> Attributes:
    """A reply; `capture` says whether its content is wanted."""
    told: Attributes = {}
    if note.response_id:
        told["gen_ai.response.id"] = text_of(note.response_id)
    if note.response_model:
        told["gen_ai.response.model"] = text_of(note.response_model)
    value = note.value() if note.value is not None else {}
    finish = _finish(value) or note.finish
    if finish:
        told["gen_ai.response.finish_reasons"] = (text_of(finish),)
    for kind, number in note.usage.items():
        if kind in _TOKENS:
            told[_TOKENS[kind]] = _bounded(number)
    if capture and value:
        told.update(content.of_reply(value, finish))
    if note.fault is not None:
        told["error.type"] = "upstream_broken"
    return told


def text_of(value: str) -> str:
    """A text that somebody else has chosen: short, and such that every exporter can encode it."""
    value = value[:_LONGEST]
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _http(subject: Subject) -> Attributes:
    seen = subject.http()
    told: Attributes = {"loopway.request_id": subject.request_id, "loopway.dialect": subject.dialect}
    for name, attribute in _HTTP.items():
        if value := seen.get(name):
            told[attribute] = value if isinstance(value, int) else text_of(value)
    return told


def _finish(value: Mapping[str, Any]) -> str:
    """How a reply ended, in its dialect's own word."""
    choices = value.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else value
    finish = (first.get("stop_reason") or first.get("finish_reason")) if isinstance(first, dict) else None
    return finish if isinstance(finish, str) else ""


def _parameters(sent: Mapping[str, Any]) -> Attributes:
    """The sampling parameters; what a client sent in another type than they have is left out."""
    told: Attributes = {}
    for name, value in sent.items():
        if name in _NUMBERS:
            if isinstance(value, float) or (type(value) is int and value in _INT64):
                told[_NUMBERS[name]] = value
        elif name in ("stop", "stop_sequences"):
            stops = [value] if isinstance(value, str) else value
            if isinstance(stops, list) and all(isinstance(one, str) for one in stops):
                told["gen_ai.request.stop_sequences"] = tuple(text_of(one) for one in stops)
        elif name == "n" and type(value) is int and value != 1 and value in _INT64:
            told["gen_ai.request.choice.count"] = value
        elif name == "service_tier" and isinstance(value, str):
            told["openai.request.service_tier"] = text_of(value)
    return told


def _bounded(number: int) -> int:
    """A count that an upstream has made up: OTLP has 64 bits for it."""
    return min(number, _INT64[-1])
