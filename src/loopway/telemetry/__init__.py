"""Who watches: each module turns notes about exchanges into what an operator reads."""

from __future__ import annotations

from collections.abc import Sequence

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
    """One listener that tells several."""
    if len(listeners) == 1:
        return listeners[0]
    several = tuple(listeners)

    def tell(subject: Subject, note: Note) -> None:
        for listener in several:
            listener(subject, note)

    return tell
