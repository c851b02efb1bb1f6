"""The members that are one in a whole stream: `id`, `object`, `created`, `model`; and where usage may stand.

This file must not know what a chunk says.
"""

from __future__ import annotations

from typing import Any

import msgspec

from loopway.dialects.chat_completions.chunk import EMPTY, HEAD, NULL, Chunk, Draft, framed


class Head:
    """Those of the first chunk that has an id; until one came, chunks go as they are."""

    __slots__ = ("_include_usage", "_known", "_members")

    def __init__(self, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._known = False
        self._members: dict[str, msgspec.Raw] = {}

    def learn(self, chunk: Chunk) -> None:
        """Look at a chunk."""
        if not self._known:
            self._known = bytes(chunk.id) not in EMPTY
            if self._known or not self._members:
                self._members = chunk.head

    def fits(self, chunk: Chunk) -> bool:
        """Whether a chunk has these members already."""
        return not self._known or all(getattr(chunk, name) == raw for name, raw in self._members.items())

    def changes(self, draft: Draft) -> tuple[dict[str, msgspec.Raw], tuple[str, ...]]:
        """What has to change at the top of a chunk, and what has to go: usage goes in a chunk of its own."""
        top: dict[str, msgspec.Raw] = {}
        if self._known:
            top = {name: raw for name, raw in self._members.items() if draft.top.raw(name) != bytes(raw)}
        if (draft.top.raw("usage") or b"null") == b"null":
            return top, ()
        if self._include_usage:
            return {**top, "usage": NULL}, ()
        return top, ("usage",)

    def chunk(self, members: dict[str, Any]) -> bytes:
        """A chunk of our own."""
        head = {"object": "chat.completion.chunk", **self._members}
        return framed(msgspec.json.encode({name: head[name] for name in HEAD if name in head} | members))
