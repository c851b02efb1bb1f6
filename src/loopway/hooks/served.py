"""The server tools of one exchange: which are offered, which calls are claimed, what is answered and what is kept.

They are asked behind all hooks. This file must not know a wire format.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from loopway.engine.answers import Answer, Answers, Kept
from loopway.engine.loop import Claim, Gate, Plan
from loopway.engine.notes import Subject
from loopway.engine.plan import Answered
from loopway.engine.reply import Reply, ToolCall
from loopway.hooks.kept import KeptHalves
from loopway.hooks.toolbox import Offer, Toolbox
from loopway.hooks.tools import Surface

PLACE = 1 << 30
"""Where server tools stand in the order of asking: behind every hook."""


class ServedTools:
    """The exchange's side of the toolbox.

    Args:
        toolbox: The gateway's tools.
        kept: The halves of mixed replies.
        subject: The exchange.
        surface: Its dialect.
        offers: The tools of this exchange. A tool that the client declares itself is the client's.

    Attributes:
        names: The names of the tools.
        seconds: Time spent in tools.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        kept: KeptHalves,
        subject: Subject,
        surface: Surface,
        offers: dict[str, Offer],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._toolbox = toolbox
        self._kept = kept
        self._subject = subject
        self._surface = surface
        self._offers = offers
        self._clock = clock
        self.names = frozenset(offers)
        self.seconds = 0.0

    def to_inject(self, offered: frozenset[str]) -> list[tuple[str, str, Any]]:
        """What a request that offers these tools lacks, in the configured order: name, description, JSON Schema."""
        return [
            (name, offer.tool.description, offer.tool.schema)
            for name, offer in self._offers.items()
            if offer.tool.inject and name not in offered
        ]

    def claim(self, command: Gate, declared: frozenset[str], owned: frozenset[str]) -> Claim | None:
        """Claim a reply that calls server tools and none of the client's."""
        calls = self.of(command.reply)
        if not calls or command.after >= PLACE or any(_theirs(call, declared, owned) for call in command.reply.calls):
            return None
        context = {"tool_calls": [{"id": call.id, "name": call.name, "input": call.arguments} for call in calls]}
        return Claim(PLACE, self._offers[calls[0].name].name, context)

    async def plan(self, command: Plan) -> Answered:
        """Answer every call of a reply."""
        return Answered(Answers(command.reply, await self.answers(command.reply.calls, command.depth)))

    async def answers(self, calls: Sequence[ToolCall], depth: int) -> tuple[Answer, ...]:
        """Run calls, all at once; their results in call order."""
        began = self._clock()
        try:
            return await self._toolbox.answer(
                calls, self._offers, subject=self._subject, surface=self._surface, depth=depth
            )
        finally:
            self.seconds += self._clock() - began

    def of(self, reply: Reply) -> list[ToolCall]:
        """The calls of server tools in a reply."""
        return [call for call in reply.calls if call.name in self.names]

    async def keep(
        self,
        theirs: Sequence[ToolCall],
        ours: Sequence[ToolCall],
        *,
        mark: str,
        turns: list[dict[str, Any]],
        depth: int,
    ) -> None:
        """Keep the server's half of a mixed reply; `turns` is what the client's history will lack."""
        ids = [call.id for call in theirs]
        name = self._subject.key_name
        await self._kept.keep(name, client_ids=ids, mark=mark, turns=turns, calls=ours, depth=depth)

    async def find(self, history: Sequence[tuple[tuple[str, ...], str]]) -> list[Kept]:
        """The kept halves that belong to a history, with the results of their calls."""
        return await self._kept.find(self._subject.key_name, history, self.answers)


def _theirs(call: ToolCall, declared: frozenset[str], owned: frozenset[str]) -> bool:
    return call.name in declared and call.name not in owned
