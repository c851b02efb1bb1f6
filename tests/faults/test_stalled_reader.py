"""A client that stops reading and stays: its connection and what waits in it end in bounded time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faults.counted import at_rest, rig, settled
from inprocess import request_body
from loopway import serving
from loopway.engine.notes import Ended
from loopway.server import respond
from loopway.testing import Reply, text
from streams import Notes, ask

FEW_SECONDS = 0.5
LARGE = 12 << 20
"""More than the kernel takes in for a client that does not read."""


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize(("tool", "dialect"), [("mine", "messages"), ("theirs", "chat_completions")])
async def test_a_client_that_stops_reading_and_stays(
    tool: str, stream: bool, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the end of its exchange the connection is closed, and its unread answer is let go."""
    monkeypatch.setattr(serving, "_HEAD_SECONDS", FEW_SECONDS)
    monkeypatch.setattr(serving, "_IDLE_SECONDS", FEW_SECONDS)
    monkeypatch.setattr(serving, "_TICKS_PER_LOOK", 1)
    monkeypatch.setattr(respond, "_LAST_WORDS_SECONDS", FEW_SECONDS / 10)
    large = lambda _: Reply(text("x" * LARGE, pieces=200))  # noqa: E731
    async with rig({}, scripts={"large": large}, server={"request_timeout_seconds": FEW_SECONDS}) as run:
        before = await at_rest(run)
        notes = Notes(run)
        _, writer = await ask(run, dialect, request_body(dialect, "large", [tool], stream=stream))
        await notes.until(lambda: any(isinstance(one, Ended) and who.model == "large" for who, one in notes))
        try:
            # The test's own end of the connection stays open: one descriptor more than before, and no more.
            await settled(run, replace(before, descriptors=before.descriptors + 1))
        finally:
            writer.transport.abort()


def ends(notes: Notes) -> list[Ended]:
    return [one for who, one in notes if isinstance(one, Ended) and who.model == "large"]


async def test_a_passing_stream_that_is_out_of_time_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last note of an exchange whose time was over says `timeout`, though its client does not read that."""
    monkeypatch.setattr(respond, "_LAST_WORDS_SECONDS", FEW_SECONDS / 10)
    large = lambda _: Reply(text("x" * LARGE, pieces=200))  # noqa: E731
    async with rig({}, scripts={"large": large}, server={"request_timeout_seconds": FEW_SECONDS}) as run:
        notes = Notes(run)
        writers = []
        for tool in ("mine", "theirs"):
            _, writer = await ask(run, "messages", request_body("messages", "large", [tool], stream=True))
            writers.append(writer)
        await notes.until(lambda: len(ends(notes)) == 2)
        for writer in writers:
            writer.transport.abort()
        assert [one.error for one in ends(notes)] == ["timeout"] * 2
