"""When a spliced stream says what, which a finished wire does not show.

This file must not know how a reply is folded.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dialects.laws import MESSAGES_GRAMMAR, frames_of
from loopway.dialects.messages import MESSAGES
from loopway.dialects.messages.splice import MessagesSplicer


def event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


def start(id_: str = "msg_1") -> bytes:
    usage = {"input_tokens": 10, "output_tokens": 1}
    message = {"id": id_, "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    return event("message_start", message=message)


def begun(index: int, **block: Any) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def text(index: int, piece: str) -> bytes:
    return event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})


def piece(index: int, json_: str) -> bytes:
    return event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": json_})


def stop(index: int) -> bytes:
    return event("content_block_stop", index=index)


def end(reason: str | None = "end_turn", **more: Any) -> bytes:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return event("message_delta", delta=delta, usage={"output_tokens": 5}, **more) + event("message_stop")


def words(index: int, piece_: str) -> bytes:
    return begun(index, type="text", text="") + text(index, piece_) + stop(index)


def call(index: int, name: str) -> bytes:
    block = {"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": {}}
    return begun(index, **block) + piece(index, '{"a"') + piece(index, ": 1}") + stop(index)


PING = MESSAGES.ping
VENDOR = event("vendor", x=1)


def owned(name: str) -> bool:
    return name.startswith("owned")


def not_owned(name: str) -> bool:
    return not owned(name)


def made(**begin: Any) -> MessagesSplicer:
    splicer = MESSAGES.splicer(usage="sum", include_usage=True)
    splicer.begin(owned, **begin)
    return splicer


def feed(splicer: MessagesSplicer, *parts: bytes) -> bytes:
    return b"".join(splicer.feed(frame) for frame in frames_of(b"".join(parts)))


def ending(wire: bytes) -> dict[str, Any]:
    """The message_delta of a wire."""
    found: list[dict[str, Any]] = [
        json.loads(frame.data or b"") for frame in frames_of(wire) if frame.event == b"message_delta"
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("everything", [False, True])
def test_the_first_message_start_goes_at_once(everything: bool) -> None:
    """The client sees message_start as soon as it comes, in its own bytes, and no second one."""
    splicer = made(everything=everything)
    assert feed(splicer, start()) == start()
    splicer.begin(owned, everything=everything)
    assert feed(splicer, start("msg_2")) == b""


@pytest.mark.parametrize(
    "part", [words(0, "hello"), begun(0, type="vendor"), PING, VENDOR, b": x\n\n", call(0, "mine")]
)
def test_nothing_but_owned_calls_waits(part: bytes) -> None:
    """Text, unknown blocks and events, pings, comments and other calls go at once, unchanged."""
    splicer = made()
    feed(splicer, start(), call(1, "owned"))
    assert feed(splicer, part) == part


def test_nothing_behind_an_owned_call_waits_for_it() -> None:
    """A held block holds up no other, and the index runs on without it."""
    splicer = made()
    feed(splicer, start(), begun(0, type="tool_use", name="owned", input={}))
    assert feed(splicer, words(1, "x")) == words(0, "x")


@pytest.mark.parametrize("everything", [False, True])
def test_endings_are_never_passed_on(everything: bool) -> None:
    """message_delta and message_stop wait for the outcome."""
    splicer = made(everything=everything)
    feed(splicer, start())
    assert feed(splicer, end()) == b""
    assert splicer.ended


def test_only_the_index_changes() -> None:
    """All other bytes of a moved event stay, spaces and numbers too."""
    splicer = made()
    feed(splicer, start(), call(0, "owned"), begun(1, type="text", text=""))
    odd = (
        b'id: 7\nevent: content_block_delta\ndata: { "type" : "content_block_delta" , "index" :  1, '
        b'"delta":{"type":"text_delta","text":"\\u0041 1"},"p": 1.50 }\n\n'
    )
    assert feed(splicer, odd) == odd.replace(b'"index" :  1', b'"index" :  0')


@pytest.mark.parametrize(
    "data",
    [
        b'{"index":1,"type":"content_block_delta","delta":{"type":"text_delta","text":"\\"index\\":1"},"p":1.50}',
        b'{"type":"content_block_delta","delta":{"type":"text_delta","text":"x","index":1},"index":1}',
        b'{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"x","index":1}}',
        b'{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"\\ud83d"}}',
        b'{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"twice"},"index":1}',
        b'{"index":1,"type":"content_block_delta","delta":{"type":"text_delta","text":"\\ud83d"}}',
    ],
)
def test_the_index_is_found_wherever_it_stands(data: bytes) -> None:
    """The member of the event itself changes, and no other of that name."""
    splicer = made()
    feed(splicer, start(), call(0, "owned"), begun(1, type="text", text=""))
    out = feed(splicer, b"event: content_block_delta\ndata: " + data + b"\n\n")
    assert json.loads(frames_of(out)[0].data or b"") == {**json.loads(data), "index": 0}


def test_a_released_call_comes_in_its_own_pieces() -> None:
    """Held events go out as they came, with the next index."""
    splicer = made()
    feed(splicer, start(), call(0, "owned_released"), words(1, "x"), end("tool_use"))
    out = splicer.finish(lambda _: True)
    assert out.startswith(call(1, "owned_released"))


@pytest.mark.parametrize(
    ("names", "everything", "delivered"),
    [((), False, False), (("owned",), False, False), (("owned", "mine"), False, True), (("mine",), True, False)],
)
def test_delivered(names: tuple[str, ...], everything: bool, delivered: bool) -> None:
    """A reply says whether a call of it has already gone to the client."""
    splicer = made(everything=everything)
    feed(splicer, start(), *[call(index, name) for index, name in enumerate(names)], end("tool_use"))
    assert splicer.reply().delivered is delivered
    splicer.begin(owned)
    assert splicer.reply().delivered is False


@pytest.mark.parametrize(
    ("part", "content"),
    [(start(), False), (PING, False), (call(0, "owned"), False), (words(0, ""), True), (call(0, "mine"), True)],
)
def test_content(part: bytes, content: bool) -> None:
    """Content is a block that the client has got; pings and held calls are none."""
    splicer = made()
    feed(splicer, *([] if part == start() else [start()]), part)
    assert splicer.content is content


def test_an_error_is_kept_and_ends_what_is_shown() -> None:
    """The error's own data is there for the driver, and nothing behind it goes on."""
    splicer = made()
    feed(splicer, start())
    error = event("error", error={"type": "overloaded_error", "message": "m"})
    assert feed(splicer, error, PING, words(0, "x"), end()) == b""
    assert splicer.error == frames_of(error)[0].data
    assert not splicer.ended
    splicer.begin(owned)
    assert splicer.error is None


def test_everything_waits_in_order_but_pings() -> None:
    """Under `everything` pings keep the wire alive, and all else comes out in its order."""
    splicer = made(everything=True)
    feed(splicer, start())
    assert feed(splicer, words(0, "a"), PING, VENDOR, call(1, "mine"), words(2, "b"), end("tool_use")) == PING
    out = splicer.finish(not_owned)
    assert out.startswith(words(0, "a") + VENDOR + call(1, "mine") + words(2, "b"))


@pytest.mark.parametrize("everything", [False, True])
def test_drop_forgets_what_is_held(everything: bool) -> None:
    """What was held when an iteration was rerun never goes, even if everything may be kept."""
    splicer = made(everything=everything)
    wire = feed(splicer, start(), words(0, "first"), call(1, "owned"), end("tool_use"))
    splicer.drop()
    wire += splicer.finish(lambda _: True)
    blocks = MESSAGES_GRAMMAR.fold(frames_of(wire))["content"]
    assert [block["text"] for block in blocks] == ([] if everything else ["first"])


def test_begin_forgets_what_is_held() -> None:
    """A driver that did not drop leaks no call either."""
    splicer = made()
    feed(splicer, start(), call(0, "owned"), end("tool_use"))
    splicer.begin(owned)
    feed(splicer, end())
    assert b"owned" not in splicer.finish(lambda _: True)


@pytest.mark.parametrize("began", [True, False])
def test_an_ending_is_valid_in_every_state(began: bool) -> None:
    """Even where no event ever came, what finish gives is one valid message."""
    splicer = made() if began else MESSAGES.splicer(usage="sum", include_usage=True)
    assert MESSAGES_GRAMMAR.breaches(frames_of(splicer.finish(not_owned)), ended=True) == []


def test_a_rendered_reply_alone_is_a_whole_message() -> None:
    """Where no message_start has gone, the rendered one does."""
    splicer = made(counted=False)
    value = {"content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"}
    wire = b"".join(map(splicer.feed, MESSAGES.render(value))) + splicer.finish(not_owned)
    frames = frames_of(wire)
    assert MESSAGES_GRAMMAR.breaches(frames, ended=True) == []
    assert MESSAGES_GRAMMAR.fold(frames)["content"] == value["content"]


@pytest.mark.parametrize(
    ("calls", "said", "told"),
    [
        ("", "tool_use", "end_turn"),
        ("", "end_turn", "end_turn"),
        ("", None, "end_turn"),
        ("earlier", None, "tool_use"),
        ("earlier", "end_turn", "tool_use"),
        ("earlier", "tool_use", "tool_use"),
        ("earlier", "max_tokens", "max_tokens"),
        ("earlier", "stop_sequence", "stop_sequence"),
        ("earlier", "refusal", "refusal"),
        ("last", "end_turn", "end_turn"),
        ("last", "tool_use", "tool_use"),
        ("last", "pause_turn", "pause_turn"),
        ("held", "tool_use", "tool_use"),
        ("dropped", "tool_use", "end_turn"),
        ("dropped", "max_tokens", "max_tokens"),
    ],
)
def test_stop_reasons(calls: str, said: str | None, told: str) -> None:
    """The ending is the last iteration's, made true where calls came or went."""
    splicer = made()
    feed(splicer, start(), call(0, "mine") if calls == "earlier" else b"", end("tool_use"))
    splicer.drop()
    splicer.begin(owned)
    more = {"last": call(0, "mine"), "held": call(0, "owned"), "dropped": call(0, "owned")}.get(calls, b"")
    feed(splicer, start(), more, end(said))
    assert ending(splicer.finish(lambda _: calls == "held"))["delta"]["stop_reason"] == told


@pytest.mark.parametrize(
    ("usage", "wanted"),
    [("sum", {"input_tokens": 20, "output_tokens": 10}), ("last", {"input_tokens": 10, "output_tokens": 5})],
)
def test_usage_leaves_out_what_no_model_made(usage: Any, wanted: dict[str, int]) -> None:
    """The ending tells the counted iterations, in both modes, also behind an override."""
    splicer = MESSAGES.splicer(usage=usage, include_usage=True)
    for counted in (True, True, False):
        splicer.drop()
        splicer.begin(owned, counted=counted)
        feed(splicer, start(), end())
    assert ending(splicer.finish(not_owned))["usage"] == wanted


def test_other_members_of_the_last_ending_stay() -> None:
    """What an ending says beside reason and usage is the last iteration's, byte for byte."""
    splicer = made()
    feed(splicer, start(), end("tool_use", old=1))
    splicer.begin(owned)
    last = (
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"tool_use",'
        b'"container":{"id":"c", "n":1.50}},"usage":{},"new":[\ndata: 1.0 ]}\n\n'
    )
    feed(splicer, start(), last, event("message_stop"))
    wire = splicer.finish(not_owned)
    assert b'"container":{"id":"c", "n":1.50}' in wire
    assert b'"new":[ 1.0 ]' in wire
    assert b"old" not in wire
