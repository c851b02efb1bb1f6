"""A `loopway` command in a process of its own, and what it has printed so far.

Must not know what a test wants of it. No wait here is a sleep: each ends with a line, or with the process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from served import running

__all__ = ["LONGEST_SECONDS", "MODULE_SECONDS", "Running", "environment", "run", "running"]

LONGEST_SECONDS = 30.0
"""A command that takes longer is killed, and the test fails, unless it says how long it needs."""

MODULE_SECONDS = 600.0
"""For a command that serves all tests of a module."""

_CHANGES_BEHAVIOUR = re.compile(r"(?i)^(.*_proxy|(OTEL|LOOPWAY|LITELLM|ANTHROPIC|OPENAI|PROMETHEUS)_.*)$")


def environment(**more: str) -> dict[str, str]:
    """This environment without what could change what the command does."""
    return {name: value for name, value in os.environ.items() if not _CHANGES_BEHAVIOUR.match(name)} | more


class Running:
    """A command while it runs; a context manager. Standard output and error are one text.

    Args:
        seconds: It is killed when it takes longer.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        seconds: float = LONGEST_SECONDS,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loopway", *arguments],
            cwd=cwd,
            env=environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        self.said = ""
        self._timer = threading.Timer(seconds, self.process.kill)

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._timer.cancel()
        self._timer.join()

    def line(self, pattern: str) -> str:
        """Read on until a line has this pattern; that line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if re.search(pattern, line):
                return line
        raise AssertionError(f"no line has {pattern!r}; it said:\n{self.said}")

    def ready(self) -> dict[str, Any]:
        """What `loopway serve` says once it takes requests: `url`, `admin_url`, `workers`."""
        said: dict[str, Any] = json.loads(self.line(r'"event": ?"ready"'))
        return said

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, read the rest; the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Read the rest until it ends by itself; the exit code."""
        self.said += self.process.communicate()[0]
        return self.process.returncode


def run(*arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a command to its end: the exit code, and all that it said."""
    with Running(*arguments, cwd=cwd, env=env) as running:
        return running.wait(), running.said
