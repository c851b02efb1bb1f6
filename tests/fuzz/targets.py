"""All that is given bytes from outside: the SSE reader, decoders of requests and replies, splicers. And what must hold.

Both `test_bytes.py` (hypothesis) and `for_atheris.py` call these. This file must not know where bytes come from.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from loopway.dialects.base import Dialect
from loopway.dialects.glimpse import Ends, glimpse
from loopway.dialects.sse import Reader
from loopway.dialects.table import DIALECTS
from loopway.engine.answers import REPEATED, Kept, refusing
from loopway.engine.plan import AgenticLoopRequestPatch
from loopway.engine.reply import Reply
from loopway.errors import BadRequest

NAMES = (
    "model", "stream", "messages", "tools", "role", "content", "type", "text",
    "id", "name", "input", "function", "arguments", "tool_calls", "choices", "delta",
    "index", "message", "finish_reason", "stop_reason", "usage", "error", "tool_choice", "content_block",
    "input_tokens", "prompt_tokens_details", "max_agentic_loops", "metadata", "n", "stream_options", "include_usage",
    "thread",
    "tool_use_id", "partial_json", "thinking", "signature", "tool_call_id", "Model", "", "$ref",
)  # fmt: skip
"""Names of members that mean something to somebody."""
WORDS = (
    "m", "user", "assistant", "text", "tool_use", "thinking", "message_start", "content_block_start",
    "message_delta", "content_block_delta", "content_block_stop", "message_stop",
    "input_json_delta", "text_delta", "ping",
    "error",
    "function", "tool_calls", "stop", "end_turn", "tool_result", "[DONE]", "{", "{}",
    "\u00e9\u2028", "\u0000", "1",
)  # fmt: skip
"""Texts that do."""
NUMBERS = (
    0, 1, -1, 2147483648, 9223372036854775808, 18446744073709551616, -9223372036854775809,
    1000000000000000000000000000000,
    0.5, 1e+300, float("inf"), float("nan"), True, None,
)  # fmt: skip
"""Values that are no text, some of which JSON does not have."""

REPLY = Reply(raw=b'{"content":[],"choices":[{"message":{"role":"assistant","content":null}}]}')
BOM = b"\xef\xbb\xbf"


def sse(data: bytes) -> None:
    """Wherever the bytes are cut, the same frames; together they are the bytes."""
    whole = Reader()
    frames = whole.feed(data)
    parts = Reader()
    step = 1 + data[0] % 7 if data else 1
    cut = [frame for place in range(0, len(data), step) for frame in parts.feed(data[place : place + step])]
    # A CR at a cut may be half a CRLF, so the last frame of the pieces may come one byte later.
    assert [frame.raw for frame in cut] == [frame.raw for frame in frames][: len(cut)]
    assert len(frames) - len(cut) <= 1
    for reader, found in ((whole, frames), (parts, cut)):
        assert b"".join(frame.raw for frame in found) + reader.rest() in (data, data.removeprefix(BOM))


def request(data: bytes) -> None:
    """A body is a `BadRequest`, or a request whose every part can be asked for, with no other error."""
    for dialect in DIALECTS.values():
        try:
            made = dialect.request(data)
        except BadRequest:
            continue
        asked: list[Callable[[], Any]] = [
            lambda made=made: made.tool_names,  # type: ignore[misc]
            lambda made=made: made.single,  # type: ignore[misc]
            lambda made=made: made.include_usage,  # type: ignore[misc]
            lambda made=made: made.thread,  # type: ignore[misc]
            made.messages,
            made.tools,
            made.optional_params,
            made.metadata,
            made.data,
            made.parameters,
            made.history,
            lambda made=made: made.replaced(made.data()),  # type: ignore[misc]
            lambda made=made: made.patched(AgenticLoopRequestPatch(max_tokens=1, tools=[])),  # type: ignore[misc]
            lambda made=made: made.offering([("t", "", {})]),  # type: ignore[misc]
            lambda made=made: made.answered(refusing(REPLY, REPEATED)),  # type: ignore[misc]
            lambda made=made: made.restored([Kept(("c",), [{"role": "assistant", "content": []}], ())]),  # type: ignore[misc]
        ]
        for ask in asked:
            with contextlib.suppress(BadRequest):
                ask()
        sent = made.body("another-model-name")
        assert b'"another-model-name"' in sent
        with contextlib.suppress(BadRequest):
            assert made.replaced(made.data()) is made


def reply(data: bytes) -> None:
    """A JSON reply is a `ValueError` or one that can be written again."""
    glimpse(data)
    for dialect in DIALECTS.values():
        try:
            made = dialect.reply(data)
        except (ValueError, RecursionError):
            continue
        written(dialect, made)


def written(dialect: Dialect, made: Reply) -> None:
    final = dialect.final(made, keep=lambda name: len(name) % 2 == 0, interim=[made], usage=None)
    json.loads(final)
    dialect.tokens(made.usage)


def stream(data: bytes) -> None:
    """Events go through a splicer without an error, whatever they are; what it has folded can be written again."""
    frames = Reader().feed(data)
    ends = Ends()
    ends.passed(data)
    ends.told()
    for dialect in DIALECTS.values():
        for everything in (False, True):
            splicer = dialect.splicer(usage="sum", include_usage=True)
            for _ in range(2):
                splicer.begin(lambda name: len(name) % 2 == 0, everything=everything)
                for frame in frames:
                    splicer.feed(frame)
                    if splicer.error is not None:
                        break
                folded = splicer.reply()
                if not folded.fault:
                    dialect.tokens(folded.usage)
                splicer.drop()
            splicer.finish(lambda _name: True)


TARGETS: tuple[Callable[[bytes], None], ...] = (sse, request, reply, stream)
