"""`make fuzz`: atheris on all that reads bytes from outside, each for a time, without a corpus to begin with.

Usage: python tests/fuzz/for_atheris.py [SECONDS] [TARGET ...]; what fails is written to a file `crash-…` and is a case for
`test_bytes.py`. This file must not know what a target checks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
WORDS = (
    '"model":"m"', '"stream":true', '"messages":[', '"tools":[', '"role":"assistant"', '"content":[', '"type":"tool_use"',
    '"tool_calls":[', '"choices":[', '"delta":{', '"index":0', '"finish_reason":"stop"', '"usage":{', '"arguments":"',
    '"function":{', '"content_block":{', '"message":{', '"error":{', '"input_json_delta"', '"partial_json":"', "event: ",
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    "data: ", "1e999", "[DONE]", "\\\\ud800",
)  # fmt: skip
"""What a mutation may put in."""


def one(name: str, arguments: list[str]) -> None:
    """Run one target for ever, or as the arguments of libFuzzer say."""
    import atheris

    sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]
    with atheris.instrument_imports(include=["loopway"]):
        from fuzz import targets
    atheris.Setup([sys.argv[0], *arguments], getattr(targets, name))
    atheris.Fuzz()


def main() -> int:
    """Run each target in a process of its own; 1 if one of them has failed."""
    seconds, *names = sys.argv[1:] or ["30"]
    words = Path(os.environ.get("TMPDIR", "/tmp")) / "loopway-fuzz.dict"
    words.write_text("".join('"{}"\n'.format(word.replace('"', '\\"')) for word in WORDS))
    failed = 0
    for name in names or ("sse", "request", "reply", "stream"):
        print(f"== {name}, {seconds} s", flush=True)
        limits = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=10", f"-dict={words}", "-print_final_stats=1"]
        failed |= subprocess.run([sys.executable, __file__, "--one", name, *limits], check=False).returncode
    return min(failed, 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
