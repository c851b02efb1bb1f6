"""`make fuzz`: atheris on all that reads bytes from outside, each for a time, without a corpus to begin with.

Usage: python tests/fuzz/for_atheris.py [SECONDS] [TARGET ...]; what fails is written to a file `crash-…` and is a case
for `test_bytes.py`. This file must not know what a target checks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def spoken(data: bytes) -> Any:
    """Bytes as plain data that uses the words of the dialects: no mutation of it is only a JSON that does not parse."""
    from fuzz import targets

    left = iter(data)

    def value(depth: int) -> Any:
        kind = next(left, 0)
        match kind % 8:
            case 0 | 1 | 2 if depth < 6:
                return {targets.NAMES[next(left, 0) % len(targets.NAMES)]: value(depth + 1) for _ in range(kind // 32)}
            case 3 | 4 if depth < 6:
                return [value(depth + 1) for _ in range(kind // 64)]
            case 5:
                return targets.NUMBERS[kind // 8 % len(targets.NUMBERS)]
            case 6:
                return chr(kind) * (kind // 64)
        return targets.WORDS[kind // 4 % len(targets.WORDS)]

    def top() -> dict[str, Any]:
        return {targets.NAMES[next(left, 0) % len(targets.NAMES)]: value(0) for _ in range(1 + next(left, 0) % 6)}

    found = [top()]
    while len(found) < 10 and next(left, 0):
        found.append(top())
    return found


def in_words(name: str, target: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """A target that takes half of its inputs as they are, and half as words."""

    def run(data: bytes) -> None:
        if not data or data[0] % 2 or name == "sse":
            target(data[1:])
            return
        tops = spoken(data[1:])
        if name == "stream":
            kinds = [json.dumps(one.get("type", "message_delta"))[1:-1] for one in tops]
            lines = [f"event: {kind}\ndata: {json.dumps(one)}\n\n" for kind, one in zip(kinds, tops, strict=True)]
            target("".join(lines).encode())
        else:
            target(json.dumps({"model": "m", **tops[0]}).encode())

    return run


def one(name: str, arguments: list[str]) -> None:
    """Run one target for ever, or as the arguments of libFuzzer say."""
    import atheris  # type: ignore[import-untyped]

    sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]
    with atheris.instrument_imports(include=["loopway"]):
        from fuzz import targets
    atheris.Setup([sys.argv[0], *arguments], in_words(name, getattr(targets, name)))
    atheris.Fuzz()


def main() -> int:
    """Run each target in a process of its own; 1 if one of them has failed."""
    seconds, *names = sys.argv[1:] or ["30"]
    failed = 0
    for name in names or ("sse", "request", "reply", "stream"):
        print(f"== {name}, {seconds} s", flush=True)  # noqa: T201 - a command line
        limits = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=10", "-print_final_stats=1"]
        failed |= subprocess.run([sys.executable, __file__, "--one", name, *limits], check=False).returncode
    return min(failed, 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
