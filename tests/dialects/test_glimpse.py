"""What is seen of a reply that passes by unparsed: whole, cut anywhere, broken, or no reply at all.

Must not know what the gateway does with it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopway.dialects.glimpse import Ends, Glimpse, glimpse


def event(**fields: Any) -> bytes:
    return f"event: {fields.get('type')}\ndata: {json.dumps(fields)}\n\n".encode()


def chunk(**fields: Any) -> bytes:
    return f"data: {json.dumps({'id': 'c1', 'model': 'gpt', **fields})}\n\n".encode()


START = event(
    type="message_start", message={"id": "m1", "model": "claude", "usage": {"input_tokens": 3, "output_tokens": 1}}
)
DELTA = event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "x" * 100})
END = event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 5, "input_tokens": None})
STOP = event(type="message_stop")
PING = event(type="ping")
ROLE = chunk(choices=[{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}], usage=None)
WORD = chunk(choices=[{"delta": {"content": "x" * 100}, "finish_reason": None}], usage=None)
FINISH = chunk(choices=[{"delta": {}, "finish_reason": "stop"}], usage=None)
USAGE = chunk(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 5})

MESSAGES = Glimpse({"input_tokens": 3, "output_tokens": 5}, "m1", "claude", "end_turn")
CHAT = Glimpse({"prompt_tokens": 3, "completion_tokens": 5}, "c1", "gpt", "stop")
STREAMS = [
    (b"".join([START, PING, DELTA, END, STOP]), MESSAGES),
    (b"".join([START, DELTA * 200, END, STOP]), MESSAGES),
    (b"".join([START, DELTA, END, STOP]).replace(b"\n", b"\r\n"), MESSAGES),
    (b"".join([ROLE, WORD, FINISH, USAGE, b"data: [DONE]\n\n"]), CHAT),
    (b"".join([ROLE, WORD * 200, FINISH, USAGE, b"data: [DONE]\n\n"]), CHAT),
]


@pytest.mark.parametrize(("stream", "seen"), STREAMS)
@given(data=st.data())
def test_stream(stream: bytes, seen: Glimpse, data: st.DataObject) -> None:
    """Wherever a stream is cut into chunks, its ends tell the same."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    ends = Ends()
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        ends.passed(stream[start:stop])
    assert ends.told() == seen
    assert ends.last == stream[-4096:]


@pytest.mark.parametrize(
    ("before", "content"),
    [
        ([START, PING], event(type="content_block_start", index=0, content_block={"type": "text", "text": ""})),
        ([ROLE], WORD),
        ([ROLE], chunk(choices=[{"delta": {"tool_calls": []}}])),
        ([ROLE], chunk(choices=[{"delta": {"reasoning_content": "x"}}])),
    ],
)
def test_content(before: list[bytes], content: bytes) -> None:
    """A ping, an opened message and a role are no content; the first piece is."""
    ends = Ends()
    for one in before:
        ends.passed(one)
        assert not ends.content
    ends.passed(content)
    assert ends.content


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        (b'{"id":"m1","model":"claude","stop_reason":"end_turn","usage":{"input_tokens":3}}',
         Glimpse({"input_tokens": 3}, "m1", "claude", "end_turn")),
        (b'{"id":"c1","model":"gpt","choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}',
         Glimpse({"prompt_tokens": 3}, "c1", "gpt", "stop")),
        (b'{"data":[],"usage":{"prompt_tokens":3},"model":"e"}', Glimpse({"prompt_tokens": 3}, "", "e", "")),
        (b"{}", Glimpse()),
        (b'{"id":null,"usage":null,"choices":[]}', Glimpse()),
    ],
)  # fmt: skip
def test_body(body: bytes, seen: Glimpse) -> None:
    """A JSON reply of either dialect tells its id, model, ending and usage."""
    assert glimpse(body) == seen


@given(st.binary() | st.sampled_from([b"[" * 100_000, b'{"usage":[]}', b'{"id":7}', b"data: {\n\n", b"data: [1]\n\n"]))
def test_anything(data: bytes) -> None:
    """No bytes make it fail, and what is no reply tells nothing."""
    ends = Ends()
    ends.passed(data)
    assert ends.told() == Glimpse()
    assert glimpse(data) == Glimpse()
