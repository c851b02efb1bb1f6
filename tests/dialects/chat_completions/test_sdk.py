"""The official SDK's own accumulation reads of a merged stream what the grammar's folder reads.

This file must not know how a stream is merged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from dialects.chat_completions.grammar import CHAT_GRAMMAR
from dialects.laws import Case, cases, frames_of, play
from loopway.dialects.chat_completions import CHAT_COMPLETIONS

ODD = (
    "azure",
    "azure-rerun",
    "function-call",
    "function-call-held",
    "custom-tool",
    "custom-tool-held",
    "unknown-members",
)
"""What the SDK's accumulation does not do: empty ids in front, legacy and custom calls, members that are no text."""
CASES = [
    case
    for case in cases(Path(__file__).parent / "cases")
    if not case.fault and not case.name.startswith(("surrogates", "length", "content_filter")) and case.name not in ODD
]


def accumulated(case: Case) -> dict[str, Any]:
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    for frame in frames_of(play(CHAT_COMPLETIONS, case).wire):
        if frame.data is not None and frame.data != b"[DONE]":
            list(state.handle_chunk(ChatCompletionChunk.model_validate_json(frame.data)))
    return state.current_completion_snapshot.model_dump(mode="json", exclude_none=True)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_sdk_reads_the_same(case: Case) -> None:
    """Text, reasoning, calls, ending, id and usage of a merged stream are the same to the SDK."""
    got = accumulated(case)
    wanted = CHAT_GRAMMAR.fold(frames_of(play(CHAT_COMPLETIONS, case).wire))
    (choice,) = got["choices"]
    message = choice["message"]
    for name in ("content", "reasoning_content", "reasoning", "refusal"):
        assert (message.get(name) or None) == wanted["message"].get(name)
    calls = [
        (call["id"], call["function"]["name"], call["function"].get("arguments", ""))
        for call in message.get("tool_calls") or []
    ]
    assert calls == [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in wanted["message"].get("tool_calls", [])
    ]
    assert (choice["finish_reason"], got["id"], got["model"]) == tuple(
        wanted[name] for name in ("finish_reason", "id", "model")
    )
    assert (got.get("usage") or {}).get("total_tokens") == wanted.get("usage", {}).get("total_tokens")
