"""What the splicer of Chat Completions returns, frame by frame and byte by byte.

This file must not know what is in the case files; the laws are held by test_laws.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dialects.chat_completions.grammar import CHAT_GRAMMAR
from dialects.laws import frames_of
from loopway.dialects.chat_completions import CHAT_COMPLETIONS
from loopway.dialects.chat_completions.splice import ChatSplicer
from loopway.dialects.sse import Frame, encode_data

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def chunk(delta: dict[str, Any] | None, finish: str | None = None, number: int = 1, **more: Any) -> bytes:
    head = {"id": f"c{number}", "object": "chat.completion.chunk", "created": number, "model": f"m{number}"}
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return encode_data(json.dumps({**head, "choices": choices, **more}).encode())


def begun(name: str, arguments: str = "", *, index: int = 0, id: str = "t1") -> dict[str, Any]:  # noqa: A002
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}


def more(arguments: str, *, index: int = 0) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


def nothing(_: str) -> bool:
    return False


def ours(name: str) -> bool:
    return name == "srv"


def client(name: str) -> bool:
    return name != "srv"


def splicer(include_usage: bool = False) -> ChatSplicer:
    made = CHAT_COMPLETIONS.splicer(usage="sum", include_usage=include_usage)
    made.begin(ours)
    return made


def fed(made: ChatSplicer, *raws: bytes) -> list[bytes]:
    return [made.feed(frame) for raw in raws for frame in frames_of(raw)]


def told(wire: bytes) -> list[Any]:
    return [json.loads(frame.data) for frame in frames_of(wire) if frame.data and frame.data != b"[DONE]"]


def rerun(made: ChatSplicer, *raws: bytes) -> list[bytes]:
    made.drop()
    made.begin(ours)
    return fed(made, *raws)


# --- what passes ---


@pytest.mark.parametrize(
    "raw",
    [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "a"}),
        chunk({"content": "a"}, usage=None),
        chunk({"content": "a"}, x_new={"deep": [1, 2]}),
        chunk({"content": [{"type": "text", "text": "a"}]}),
        chunk({"content": "a", "tool_calls": []}),
        chunk({"content": "a", "tool_calls": None, "function_call": None}),
        chunk({}),
        chunk(None),
        chunk(None, x_filter=[1]),
        chunk({"content": "a"}).replace(b"\n\n", b"\r\n\r\n"),
        b"event: chunk\n" + chunk({"content": "a"}),
        b"id: 7\n" + chunk({"content": "a"}),
        b": a comment\n\n",
        b": a comment\r\r",
        chunk(begun("cli", "{}")),
        chunk({"audio": {"id": "a", "data": "AAAA"}}),
    ],
)
def test_bytes_pass(raw: bytes) -> None:
    """What needs no change goes out in its original bytes."""
    assert fed(splicer(), raw) == [raw]


@pytest.mark.parametrize(
    "raw",
    [
        chunk({}, "stop"),
        chunk({"content": "", "reasoning_content": None}, "stop"),
        chunk(None, usage=USAGE),
        b"data: [DONE]\n\n",
        b"data:\n\n",
        b"event: ping\ndata: {}\n\n",
        b"event: ping\n\n",
        chunk(begun("srv", "{}")),
        chunk(more("{}")),
        b'data: {"error": {"message": "no"}}\n\n',
    ],
)
def test_bytes_do_not_pass(raw: bytes) -> None:
    """Endings, usage, held calls, pings and errors are not passed on."""
    assert fed(splicer(), raw) == [b""]


@pytest.mark.parametrize(
    ("raw", "data"),
    [
        (b'data: {"error": {"message": "no"}}\n\n', b'{"error": {"message": "no"}}'),
        (b'data: {"error":"no"}\n\n', b'{"error":"no"}'),
        (b'event: error\ndata: {"message":"no"}\n\n', b'{"message":"no"}'),
        (b"event: error\ndata: no\n\n", b"no"),
        (b'data: {"id":"c1","choices":[],"error":{"code":502}}\n\n', b'{"id":"c1","choices":[],"error":{"code":502}}'),
        (b'data: {"id":"c1","choices":[],"error":null}\n\n', None),
    ],
)
def test_error(raw: bytes, data: bytes | None) -> None:
    """The data of an error is kept as it came."""
    made = splicer()
    fed(made, raw)
    assert made.error == data
    assert (made.reply().fault == "the upstream reported an error") == (data is not None)


def test_nothing_counts_behind_an_error() -> None:
    """Chunks behind an error neither pass nor count."""
    made = splicer()
    out = fed(made, b'data: {"error":{}}\n\n', chunk({"content": "a"}), chunk({}, "stop"))
    assert (b"".join(out), made.ended, made.content) == (b"", False, False)


def test_the_next_iteration_has_no_error() -> None:
    """An error belongs to its iteration."""
    made = splicer()
    fed(made, b'data: {"error":{}}\n\n')
    rerun(made, chunk({"content": "a"}))
    assert made.error is None


@pytest.mark.parametrize(
    "raw", [b"data: {broken\n\n", b"data: 5\n\n", b'data: {"choices":[{"delta":"no"}]}\n\n', b"data: \xff\n\n"]
)
def test_unreadable_chunk(raw: bytes) -> None:
    """A chunk that cannot be read is a fault, though a finish_reason comes behind it."""
    made = splicer()
    assert fed(made, raw, chunk({}, "stop")) == [b"", b""]
    assert made.reply().fault == "a chunk could not be read"


# --- flags ---


@pytest.mark.parametrize(
    ("raws", "ended", "content", "delivered"),
    [
        ([], False, False, False),
        ([chunk({"role": "assistant", "content": ""})], False, False, False),
        ([chunk({"content": "a"})], False, True, False),
        ([chunk({"reasoning_content": "a"})], False, True, False),
        ([chunk({"reasoning": "a"})], False, True, False),
        ([chunk({"refusal": "a"})], False, True, False),
        ([chunk(begun("srv"))], False, False, False),
        ([chunk(begun("cli"))], False, True, True),
        ([chunk({"function_call": {"name": "cli", "arguments": ""}})], False, True, True),
        ([chunk({}, "stop")], True, False, False),
        ([b"data: [DONE]\n\n"], False, False, False),
        ([chunk({"content": "a"}, "stop")], True, True, False),
    ],
)
def test_flags(raws: list[bytes], ended: bool, content: bool, delivered: bool) -> None:
    """`ended`, `content` and `delivered` say what has come and what has gone."""
    made = splicer()
    fed(made, *raws)
    assert (made.ended, made.content, made.reply().delivered) == (ended, content, delivered)


def test_content_and_delivered_stay() -> None:
    """What has gone to the client stays gone over reruns."""
    made = splicer()
    fed(made, chunk(begun("cli", "{}")), chunk({}, "tool_calls"))
    rerun(made, chunk({}, "stop"))
    assert (made.content, made.reply().delivered) == (True, True)


# --- one stream of several ---


def test_later_chunks_get_the_head_of_the_first() -> None:
    """Of a later iteration's chunk only id, object, created and model change; all else keeps its bytes."""
    made = splicer()
    fed(made, chunk({"role": "assistant", "content": ""}), chunk({}, "tool_calls"))
    (out,) = rerun(
        made,
        b'data: {"id":"c2","object":"o","choices":[ {"delta":{"content":"\\u00e9"} , "n":1.0}],'
        b'"created":2,"x": [1,  2],"model":"m2"}\n\n',
    )
    assert out == (
        b'data: {"id":"c1","object":"chat.completion.chunk","choices":[{"delta":{"content":"\\u00e9"},"n":1.0}],'
        b'"created":1,"x":[1,  2],"model":"m1"}\n\n'
    )


def test_created_that_changes_in_one_iteration() -> None:
    """XAI's `created` grows in mid-stream; the client's stays."""
    made = splicer()
    first = chunk({"content": "a"})
    later = first.replace(b'"created": 1', b'"created": 2')
    assert [one["created"] for one in told(b"".join(fed(made, first, later, later)))] == [1, 1, 1]


def test_blank_line_is_a_chunk_of_its_own() -> None:
    """The blank line between two texts comes before the first text of the later iteration, once."""
    made = splicer()
    fed(made, chunk({"role": "assistant", "content": "One"}), chunk({}, "tool_calls"))
    out = rerun(made, *[chunk(delta, number=2) for delta in ({"role": "assistant", "content": ""}, {"content": "T"})])
    deltas = [one["choices"][0]["delta"] for one in told(b"".join(out))]
    assert deltas == [{"content": "\n\n"}, {"content": "T"}]
    assert [one["choices"][0]["delta"] for one in told(b"".join(fed(made, chunk({"content": "w"}))))] == [
        {"content": "w"}
    ]


@pytest.mark.parametrize(
    ("earlier", "later", "joined"),
    [
        ({"content": "a"}, {"content": "b"}, True),
        ({"content": "a"}, {"reasoning_content": "b"}, False),
        ({"reasoning_content": "a"}, {"reasoning_content": "b"}, True),
        ({"reasoning": "a"}, {"reasoning": "b"}, True),
        ({"content": ""}, {"content": "b"}, False),
        ({"content": "a"}, {"content": ""}, False),
        ({"content": "a"}, begun("cli"), False),
    ],
)
def test_where_texts_are_joined(earlier: dict[str, Any], later: dict[str, Any], joined: bool) -> None:
    """A blank line stands only where both sides have text of the same kind."""
    made = splicer()
    fed(made, chunk(earlier))
    assert (b"\\n\\n" in b"".join(rerun(made, chunk(later)))) == joined


def test_role_of_a_dropped_chunk() -> None:
    """The role of a chunk whose call is held goes at once, and the later ones do not."""
    made = splicer()
    (out,) = fed(made, chunk({"role": "assistant", "content": None, **begun("srv", "{}")}))
    assert told(out)[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert rerun(made, chunk({"role": "assistant", "content": ""}), chunk({"role": "assistant"})) == [b"", b""]


@pytest.mark.parametrize("include_usage", [False, True])
def test_usage_chunk(include_usage: bool) -> None:
    """The sum goes in one chunk, and only if the client asked for it."""
    made = splicer(include_usage)
    fed(made, chunk({"content": "a"}, usage=None), chunk({}, "tool_calls", usage=USAGE))
    rerun(made, chunk({"content": "b"}), chunk({}, "stop"), chunk(None, usage=USAGE))
    out = told(made.finish(nothing))
    assert [one for one in out if one.get("usage")] == (
        [
            {
                "id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m1", "choices": [],
                "usage": {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30},
            }
        ]
        if include_usage
        else []
    )  # fmt: skip


@pytest.mark.parametrize(("include_usage", "shown"), [(False, "absent"), (True, None)])
def test_usage_that_nobody_asked_for(include_usage: bool, shown: object) -> None:
    """A usage beside content is counted, and not sent there."""
    made = splicer(include_usage)
    (out,) = fed(made, chunk({"content": "a"}, usage=USAGE))
    assert told(out)[0].get("usage", "absent") == shown
    assert made.reply().usage == USAGE


def test_uncounted_iteration() -> None:
    """What no model call made adds nothing to the usage."""
    made = splicer(include_usage=True)
    fed(made, chunk({}, "stop", usage=USAGE))
    made.drop()
    made.begin(ours, counted=False)
    fed(made, chunk({"content": "b"}, number=2), chunk({}, "stop", usage=USAGE))
    assert told(made.finish(nothing))[-1]["usage"] == USAGE


def test_last_usage_may_be_none() -> None:
    """With `last`, an iteration without usage shows none, not that of the one before."""
    made = CHAT_COMPLETIONS.splicer(usage="last", include_usage=True)
    made.begin(ours)
    fed(made, chunk({}, "stop", usage=USAGE))
    rerun(made, chunk({"content": "b"}), chunk({}, "stop"))
    assert not any(one.get("usage") for one in told(made.finish(nothing)))


# --- the ending ---


@pytest.mark.parametrize(
    ("first", "last", "keep", "reason"),
    [
        ([], [chunk({}, "stop")], nothing, "stop"),
        ([], [chunk({}, "length")], nothing, "length"),
        ([], [chunk({}, "content_filter")], nothing, "content_filter"),
        ([], [chunk({}, "new_reason")], nothing, "new_reason"),
        ([], [], nothing, "stop"),
        ([], [chunk({}, "tool_calls")], nothing, "stop"),
        ([], [chunk({}, "function_call")], nothing, "stop"),
        ([], [chunk(begun("srv")), chunk({}, "tool_calls")], nothing, "stop"),
        ([], [chunk(begun("srv")), chunk({}, "length")], nothing, "length"),
        ([], [chunk(begun("srv")), chunk({}, "tool_calls")], ours, "tool_calls"),
        ([], [chunk(begun("cli")), chunk({}, "tool_calls")], client, "tool_calls"),
        ([], [chunk(begun("cli")), chunk({}, "stop")], client, "stop"),
        ([chunk(begun("cli")), chunk({}, "tool_calls")], [chunk({}, "stop")], client, "tool_calls"),
        ([chunk(begun("cli")), chunk({}, "tool_calls")], [chunk({}, "length")], client, "length"),
        ([chunk(begun("srv")), chunk({}, "tool_calls")], [chunk({}, "stop")], client, "stop"),
    ],
)
def test_finish_reason(first: list[bytes], last: list[bytes], keep: Any, reason: str) -> None:
    """The finish_reason is the last iteration's; one that announces calls needs a call."""
    made = splicer()
    fed(made, *first)
    rerun(made, *last)
    wire = made.finish(keep)
    assert [c["finish_reason"] for one in told(wire) for c in one["choices"] if c["finish_reason"]] == [reason]
    assert wire.endswith(b"\n\ndata: [DONE]\n\n")


def test_ending_keeps_what_its_chunk_had() -> None:
    """Unknown members of the chunk that ends the last iteration go with the ending."""
    made = splicer()
    fed(made, chunk({}, "tool_calls", x_last=1))
    rerun(made, chunk({"content": "a"}, number=2), chunk({}, "stop", number=2, citations=["u"]))
    (ending,) = told(made.finish(nothing))
    assert (ending["citations"], ending["id"], "x_last" in ending) == (["u"], "c1", False)


def test_content_of_the_chunk_that_ends() -> None:
    """Text in a chunk with a finish_reason goes at once, without it."""
    made = splicer()
    (out,) = fed(made, chunk({"content": "a"}, "stop"))
    assert told(out)[0]["choices"][0] == {"index": 0, "delta": {"content": "a"}, "finish_reason": None}
    assert told(made.finish(nothing))[0]["choices"][0]["delta"] == {"role": "assistant"}


def test_what_has_gone_is_not_in_the_ending() -> None:
    """Members of a chunk with text and a finish_reason go with the text, and not again."""
    made = splicer()
    (out,) = fed(made, chunk({"content": "a"}, "stop", x_once=1))
    assert (told(out)[0]["x_once"], "x_once" in told(made.finish(nothing))[0]) == (1, False)


def test_an_empty_chunk_of_a_later_iteration() -> None:
    """A chunk that says nothing, and that nothing was taken from, goes on with the first iteration's head."""
    made = splicer()
    fed(made, chunk({}))
    assert rerun(made, chunk({}, number=2)) == [chunk({}).replace(b'": ', b'":').replace(b', "', b',"')]


def test_text_behind_the_finish_reason() -> None:
    """Text that comes behind a finish_reason still goes before the ending."""
    made = splicer()
    out = fed(made, chunk({"role": "assistant"}), chunk({}, "stop"), chunk({"content": "a"}))
    wire = b"".join(out) + made.finish(nothing)
    assert CHAT_GRAMMAR.breaches(frames_of(wire), ended=True) == []


# --- calls ---


def test_released_in_original_bytes() -> None:
    """A held call whose chunks need no change is released as it came."""
    made = splicer()
    raws = [chunk(begun("srv")), *[chunk(more(piece)) for piece in '{"a":1}']]
    fed(made, chunk({"role": "assistant"}), *raws, chunk({}, "tool_calls"))
    assert made.finish(ours).startswith(b"".join(raws))


def test_dropped_calls_never_go() -> None:
    """What was dropped does not come back at the end."""
    made = splicer()
    fed(made, chunk(begun("srv")), chunk(more("{}")), chunk({}, "tool_calls"))
    made.drop()
    assert b"srv" not in made.finish(lambda _: True)


def test_dropped_text_never_goes() -> None:
    """Text that was held and dropped does not come back at the end."""
    made = CHAT_COMPLETIONS.splicer(usage="sum", include_usage=False)
    made.begin(ours, everything=True)
    fed(made, chunk({"content": "secret"}), chunk({}, "tool_calls"))
    made.drop()
    assert b"secret" not in made.finish(lambda _: True)


@pytest.mark.parametrize("held", [False, True])
def test_later_fragments_have_neither_id_nor_name(held: bool) -> None:
    """Clients glue ids and names that come again, so they come once; an empty one counts as one."""
    made = splicer()
    name = "srv" if held else "cli"
    empty = {"tool_calls": [{"index": 0, "id": "", "function": {"name": "", "arguments": "}"}}]}
    out = b"".join(fed(made, chunk(begun(name, "{")), chunk(begun(name, " ")), chunk(empty))) + made.finish(ours)
    pieces = [c["delta"]["tool_calls"][0] for one in told(out) for c in one["choices"] if "tool_calls" in c["delta"]]
    assert [sorted(piece) for piece in pieces] == [
        ["function", "id", "index", "type"],
        ["function", "index", "type"],
        ["function", "index"],
    ]
    assert [sorted(piece["function"]) for piece in pieces] == [["arguments", "name"], ["arguments"], ["arguments"]]


def test_a_custom_call_without_a_type() -> None:
    """The type that a first fragment lacks is told by what it has."""
    made = splicer()
    (out,) = fed(made, chunk({"tool_calls": [{"index": 0, "id": "t1", "custom": {"name": "cli", "input": ""}}]}))
    assert told(out)[0]["choices"][0]["delta"]["tool_calls"][0]["type"] == "custom"


def test_indices_run_on_over_iterations() -> None:
    """The index of a call is its number among the calls that were sent, over the whole stream."""
    made = splicer()
    out = fed(
        made, chunk(begun("srv", "{}", index=0)), chunk(begun("cli", index=1, id="t2")), chunk(more("{}", index=1))
    )
    out += rerun(
        made, chunk(begun("srv", "{}", index=0)), chunk(begun("cli", index=1, id="t3")), chunk(more("{}", index=1))
    )
    pieces = [c["delta"]["tool_calls"][0] for one in told(b"".join(out)) for c in one["choices"] if c["delta"]]
    assert [(piece["index"], piece.get("id")) for piece in pieces] == [(0, "t2"), (0, None), (1, "t3"), (1, None)]


def test_a_call_without_an_id_gets_one() -> None:
    """A call that its server gave no id can be answered all the same."""
    made = splicer()
    out = fed(made, chunk({"tool_calls": [{"function": {"name": "cli", "arguments": "{}"}}]}))
    (piece,) = told(b"".join(out))[0]["choices"][0]["delta"]["tool_calls"]
    assert piece == {"function": {"name": "cli", "arguments": "{}"}, "index": 0, "id": "call_0", "type": "function"}


def test_a_call_without_a_name_is_never_sent() -> None:
    """Fragments whose call is never named wait, and go nowhere."""
    made = splicer()
    assert fed(made, chunk(more("{}")), chunk({}, "tool_calls")) == [b"", b""]
    assert b"tool_calls" not in made.finish(lambda _: True)


def test_holds_is_asked_once_per_call() -> None:
    """Whether a call is held is decided when its name comes, not again."""
    asked: list[str] = []

    def holds(name: str) -> bool:
        asked.append(name)
        return False

    made = CHAT_COMPLETIONS.splicer(usage="sum", include_usage=False)
    made.begin(holds)
    fed(made, chunk(begun("cli")), chunk(more("{")), chunk(more("}")), chunk(begun("two", index=1, id="t2")))
    assert asked == ["cli", "two"]


def test_everything_is_held() -> None:
    """With `everything`, texts and all calls wait for the end, and nothing is lost."""
    made = CHAT_COMPLETIONS.splicer(usage="sum", include_usage=False)
    made.begin(ours, everything=True)
    out = fed(
        made, chunk({"role": "assistant", "content": "a"}), chunk({"reasoning_content": "r", **begun("cli", "{}")})
    )
    assert out == [b"", b""]
    wire = b"".join(out) + b"".join(fed(made, chunk({"content": "b"}, "tool_calls"))) + made.finish(client)
    assert CHAT_GRAMMAR.breaches(frames_of(wire), ended=True) == []
    message = CHAT_GRAMMAR.fold(frames_of(wire))["message"]
    assert (message["content"], message["reasoning_content"]) == ("ab", "r")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["cli"]


def test_frames_of_a_shape_are_told_from_others() -> None:
    """A chunk that begins and ends like the ones before, but says more, is read in full."""
    made = splicer()
    plain = [chunk({"content": word}) for word in ("a", "b", "c")]
    other = plain[0].replace(b'"a"}', b'"a", "x": "y"}, "logprobs": {"content": "z"}')
    assert fed(made, *plain, other, chunk({}, "stop")) == [*plain, other, b""]
    assert made.reply().value()["choices"][0]["message"] == {"role": "assistant", "content": "abca", "x": "y"}


def test_padding_is_no_way_in() -> None:
    """What stands where OpenAI's padding stood is not passed unread."""
    made = splicer()
    padded = [chunk({"content": word}, obfuscation="xy").replace(b'": ', b'":') for word in ("a", "b", "c")]
    wrong = padded[0].replace(b'"xy"}', b'"xy","error":{"message":"no"},"z":"y"}')
    fed(made, *padded, wrong)
    assert made.error is not None


def test_a_frame_without_json_is_not_a_text() -> None:
    """A frame that has the ends of the chunks before, and no JSON string between, is a fault."""
    made = splicer()
    plain = [chunk({"content": word}) for word in ("aa", "bb")]
    fed(made, *plain, plain[0].replace(b'"aa"', b'"a"a"'), chunk({}, "stop"))
    assert made.reply().fault == "a chunk could not be read"


def test_a_member_of_the_same_name_is_no_text() -> None:
    """A text is not mixed up with another member of its name and value."""
    made = splicer()
    head = b'data: {"x":{"content":"aa"},"id":"c1","choices":[{"index":0,"delta":{"content":"aa"}}]}\n\n'
    fed(made, head, head, head.replace(b'"x":{"content":"aa"}', b'"x":{"content":"bb"}'))
    assert made.reply().value()["choices"][0]["message"]["content"] == "aaaaaa"


def test_the_same_logprobs_twice() -> None:
    """Logprobs are collected from each chunk, also where they are the same."""
    made = splicer()
    raw = chunk({"content": "a"}).replace(b'"finish_reason"', b'"logprobs": {"refusal": [1]}, "finish_reason"')
    fed(made, raw, raw, raw)
    assert made.reply().value()["choices"][0]["logprobs"] == {"refusal": [1, 1, 1]}


@pytest.mark.parametrize("role", ["assistant", None, ""])
def test_role_in_each_chunk(role: str | None) -> None:
    """A role that comes again is removed from every later chunk, whatever it says."""
    made = splicer()
    raw = chunk({"role": role, "content": "a"})
    out = told(b"".join(fed(made, raw, raw, raw)))
    assert ["role" in one["choices"][0]["delta"] for one in out] == [True, False, False]


def test_comment_frame() -> None:
    """A comment is passed on while text is held, too."""
    made = CHAT_COMPLETIONS.splicer(usage="sum", include_usage=False)
    made.begin(ours, everything=True)
    assert made.feed(Frame(b": x\n\n", b"", None)) == b": x\n\n"
