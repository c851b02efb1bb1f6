"""The server's halves of mixed replies: kept when the client gets its own calls, run when it answers them.

Kept under the caller's key name and a mark of the client's turn (its call ids, what they call, the message before),
so that nobody reads another key's and no conversation another one's. This file must not
know a wire format. What is lost (a full memory, a Redis that is away, a restart) is gone without harm: the exchange
goes on without it.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from loopway.engine.answers import Answer, Kept
from loopway.engine.reply import ToolCall
from loopway.state import Store

_CLAIM_SECONDS = 120.0
"""How long another replica waits for results before it runs the calls itself."""
_LOOK_SECONDS = 0.05

Run = Callable[[Sequence[ToolCall], int], Awaitable[tuple[Answer, ...]]]


class _Half(msgspec.Struct):
    """As it lies in the store."""

    name: str
    mark: str
    client_ids: tuple[str, ...]
    turns: list[dict[str, Any]]
    calls: tuple[ToolCall, ...]
    depth: int


class _Result(msgspec.Struct):
    content: Any
    error: bool


_HALF = msgspec.json.Decoder(_Half)
_RESULTS = msgspec.json.Decoder(list[_Result])


class KeptHalves:
    """The kept halves of all exchanges. Takes the store that they lie in."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def keep(
        self,
        key_name: str,
        *,
        client_ids: Sequence[str],
        mark: str,
        turns: list[dict[str, Any]],
        calls: Sequence[ToolCall],
        depth: int,
    ) -> None:
        """Keep what the client does not get.

        Args:
            key_name: The caller.
            client_ids: The ids of the calls that it gets.
            mark: Tells its turn from another one whose calls have the same ids; some servers count from `call_0`.
            turns: What its history will lack; the last is the full assistant turn.
            calls: All other calls in that turn.
            depth: Reruns done so far.
        """
        name = f"half:{uuid.uuid4().hex}"
        half = _Half(name, mark, tuple(client_ids), turns, tuple(calls), depth)
        await self._store.put(_key(key_name, mark), msgspec.json.encode(half))

    async def find(self, key_name: str, history: Sequence[tuple[tuple[str, ...], str]], run: Run) -> list[Kept]:
        """The halves that belong to these calls, their server's calls answered: run now, or when it was their time.

        Args:
            key_name: The caller.
            history: The turns of a history that make calls: the calls' ids, and the turn's mark.
            run: Runs calls, given the depth of their reply.
        """
        found: dict[str, _Half] = {}
        kept = await self._store.get([_key(key_name, mark) for _, mark in history])
        for (ids, mark), raw in zip(history, kept, strict=True):
            half = _decoded(_HALF, raw)
            if half is not None and half.mark == mark and set(half.client_ids) == set(ids):
                found.setdefault(half.name, half)
        return [Kept(half.client_ids, half.turns, await self._answers(half, run)) for half in found.values()]

    async def _answers(self, half: _Half, run: Run) -> tuple[Answer, ...]:
        """The results of a half's calls; nobody runs them twice."""
        results, claim = half.name + ":results", half.name + ":claim"
        waited = 0.0
        while True:
            (raw,) = await self._store.get([results])
            known = _decoded(_RESULTS, raw)
            if known is not None and len(known) == len(half.calls):
                return tuple(Answer(call, one.content, one.error) for call, one in zip(half.calls, known, strict=True))
            if waited >= _CLAIM_SECONDS or await self._store.claim(claim, _CLAIM_SECONDS):
                break
            await asyncio.sleep(_LOOK_SECONDS)  # another exchange with this history runs them
            waited += _LOOK_SECONDS
        try:
            answers = await run(half.calls, half.depth)
            made = [_Result(answer.content, answer.error) for answer in answers]
            await self._store.put(results, msgspec.json.encode(made))
        finally:
            await self._store.forget(claim)
        return answers


def _key(key_name: str, mark: str) -> str:
    return "half:" + hashlib.sha256(f"{len(key_name)}:{key_name}:{mark}".encode()).hexdigest()


def _decoded(decoder: msgspec.json.Decoder[Any], raw: bytes | None) -> Any:
    """What lies in the store, or None if it is not there or was not written by us."""
    if raw is None:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
