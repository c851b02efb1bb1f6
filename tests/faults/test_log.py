"""A log that nobody reads: lines are lost, the gateway goes on, and it says later how many there were."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any, TextIO

import pytest
import structlog

from loopway.telemetry import logs


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The number of a pipe's reading end, and its writing end, to which the log goes."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(writing, "w") as stream:
        logs.configure(form="json", stream=stream)
        yield reading, stream
        logs.configure(form="json")
        os.close(reading)


def read(number: int) -> list[str]:
    got = b""
    while True:
        try:
            got += os.read(number, 1 << 20)
        except BlockingIOError:
            return got.decode().splitlines()


@pytest.mark.parametrize("size", [100, 5000], ids=["short", "longer than a pipe takes at once"])
def test_a_reader_that_stands_still(pipe: Any, size: int) -> None:
    """Lines without number cost the patience for one; what is lost is counted, and no line runs into another."""
    number, _ = pipe
    log = structlog.get_logger()
    began = time.monotonic()
    for count in range(2000):
        log.info("line", count=count, exception="x" * size)
    assert time.monotonic() - began < 5
    first = read(number)
    log.info("behind")
    behind = [json.loads(line) for line in read(number) if line.startswith("{")]
    whole = [json.loads(line) for line in first if line.endswith("}")]
    assert 1 < len(whole) < 2000
    assert [line["event"] for line in behind] == ["log_lines_lost", "behind"]
    assert behind[0]["lines"] + len(whole) == 2000


def test_a_reader_that_reads(pipe: Any) -> None:
    """Not a line is lost while somebody reads."""
    number, _ = pipe
    log = structlog.get_logger()
    got: list[str] = []
    for count in range(2000):
        log.info("line", count=count)
        got += read(number)
    assert [json.loads(line)["count"] for line in got] == list(range(2000))
