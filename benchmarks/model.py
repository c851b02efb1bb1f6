"""A model server that is as fast as Python allows: each answer is bytes that were made before.

The model's name says what it does: `fixed` one reply; `loops1`, `loops3` that many tool calls before it; `four` four
parallel calls; `events` a stream of 102 events. It must not know the gateway.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_MODEL = re.compile(rb'"model":\s*"(\w+)"')
_STREAM = re.compile(rb'"stream":\s*true')
_WORDS = "a word of an answer "


def _messages(content: list[Any], stop: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "bench",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 25, "output_tokens": 50},
    }


def _messages_events(content: list[Any], stop: str, pieces: int = 1) -> bytes:
    out = [("message_start", {"message": {**_messages([], stop), "stop_reason": None}})]
    for index, block in enumerate(content):
        if block["type"] == "text":
            out.append(("content_block_start", {"index": index, "content_block": {"type": "text", "text": ""}}))
            delta: dict[str, Any] = {"type": "text_delta", "text": block["text"]}
        else:
            out.append(("content_block_start", {"index": index, "content_block": {**block, "input": {}}}))
            given = msgspec.json.encode(block["input"]).decode()
            delta = {"type": "input_json_delta", "partial_json": given}
        out += [("content_block_delta", {"index": index, "delta": delta})] * (pieces if block["type"] == "text" else 1)
        out.append(("content_block_stop", {"index": index}))
    out.append(
        ("message_delta", {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 50}})
    )
    out.append(("message_stop", {}))
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **data})) for kind, data in out
    )


def _chat(message: dict[str, Any], finish: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "bench",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 25, "completion_tokens": 50, "total_tokens": 75},
    }


def _chat_events(message: dict[str, Any], finish: str, pieces: int = 1) -> bytes:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "bench"}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if message.get("content"):
        deltas += [{"content": message["content"]}] * pieces
    for index, call in enumerate(message.get("tool_calls", [])):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    chunks = [{**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in chunks) + b"data: [DONE]\n\n"


def _calls(numbers: list[int], tool: str) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": f"toolu_{number}", "name": tool, "input": {"n": number}} for number in numbers]


def _chat_calls(numbers: list[int], tool: str) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": tool, "arguments": f'{{"n": {number}}}'},
        }
        for number in numbers
    ]


class _Replies:
    """The replies of one model: `turns[n]` answers a request with n results in it."""

    def __init__(self, turns: list[list[int]], pieces: int = 1, tool: str = "bench_tool") -> None:
        text = {"type": "text", "text": _WORDS * (1 if pieces > 1 else 6)}
        self._bytes: dict[tuple[bool, bool, int], bytes] = {}
        for place, numbers in enumerate([*turns, []]):
            content = _calls(numbers, tool) or [text]
            message: dict[str, Any] = {"content": None, "tool_calls": _chat_calls(numbers, tool)}
            if not numbers:
                message = {"content": text["text"]}
            stop, finish = ("tool_use", "tool_calls") if numbers else ("end_turn", "stop")
            many = pieces if not numbers else 1
            self._bytes[True, False, place] = msgspec.json.encode(_messages(content, stop))
            self._bytes[True, True, place] = _messages_events(content, stop, many)
            self._bytes[False, False, place] = msgspec.json.encode(_chat(message, finish))
            self._bytes[False, True, place] = _chat_events(message, finish, many)
        self._per_turn = len(turns[0]) if turns else 1
        self._last = len(turns)

    def of(self, *, messages: bool, stream: bool, results: int) -> bytes:
        """The reply to a request that holds so many tool results."""
        return self._bytes[messages, stream, min(results // self._per_turn, self._last)]


_REPLIES = {
    b"fixed": _Replies([]),
    b"watched": _Replies([]),
    b"loops1": _Replies([[1]]),
    b"loops3": _Replies([[1], [2], [3]]),
    b"four": _Replies([[1, 2, 3, 4]], tool="served_tool"),
    b"events": _Replies([], pieces=97),
    b"eventswatched": _Replies([], pieces=97),
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer a request."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    message = await receive()
    body = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    found = _MODEL.search(body)
    replies = _REPLIES[found.group(1) if found else b"fixed"]
    messages = scope["path"].endswith("/messages")
    stream = _STREAM.search(body) is not None
    answered = body.count(b'"tool_use_id"') if messages else body.count(b'"tool_call_id"')
    data = replies.of(messages=messages, stream=stream, results=answered)
    kind = b"text/event-stream" if stream else b"application/json"
    headers = [(b"content-type", kind)]
    if not stream:
        headers.append((b"content-length", b"%d" % len(data)))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if not stream:
        await send({"type": "http.response.body", "body": data})
        return
    for start in range(0, len(data), 4096):
        await send({"type": "http.response.body", "body": data[start : start + 4096], "more_body": True})
    await send({"type": "http.response.body", "body": b""})
