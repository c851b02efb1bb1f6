"""Who watches: each module turns notes about exchanges into what an operator reads."""

from __future__ import annotations

from collections.abc import Sequence

from loopway.engine.notes import Listener, Note, Subject


def all_of(listeners: Sequence[Listener]) -> Listener:
    """One listener that tells several."""
    if len(listeners) == 1:
        return listeners[0]
    several = tuple(listeners)

    def tell(subject: Subject, note: Note) -> None:
        for listener in several:
            listener(subject, note)

    return tell
