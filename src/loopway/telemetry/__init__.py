"""Who watches: each module turns notes about exchanges into what an operator reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from loopway.engine.notes import Listener, Note, Subject

_OPERATIONS = {
    "/v1/embeddings": "embeddings",
    "/v1/completions": "text_completion",
    "/v1/messages/count_tokens": "count_tokens",
}


def operation(route: str) -> str:
    """`gen_ai.operation.name` of the calls behind an endpoint; all but `chat` are only passed on and have no loop."""
    return _OPERATIONS.get(route, "chat")


def all_of(listeners: Sequence[Listener]) -> Listener:
    """One listener that tells several. Those that say in `handlers` which notes they hear get no others."""
    heard = {kind: tuple(_hears(one, kind) for one in listeners) for kind in get_args(Note)}
    by_kind = {kind: tuple(one for one in all_ if one is not None) for kind, all_ in heard.items()}

    def tell(subject: Subject, note: Note) -> None:
        for listener in by_kind[type(note)]:
            listener(subject, note)

    return tell


def _hears(listener: Listener, kind: type[Any]) -> Callable[[Subject, Any], None] | None:
    handlers: Mapping[type[Any], Callable[[Subject, Any], None]] | None = getattr(listener, "handlers", None)
    return listener if handlers is None else handlers.get(kind)
