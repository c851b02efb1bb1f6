"""The six laws that every stream of every dialect obeys, and the grammar of a Messages stream.

Nothing here knows how a dialect is written: it is checked through the protocol of `dialects/base.py` only, and the
folder of a `Grammar` is written apart from the one under test.

A dialect's test module loads its cases and calls `check_laws(DIALECT, case, GRAMMAR, cut)` with `whole`, `bytewise`
and cuts that hypothesis chose (`at`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import msgspec

from loopway.dialects.base import Dialect, InterimText, UsageMode
from loopway.dialects.sse import Frame, Reader
from loopway.engine.reply import Reply

ITERATION = b"=== iteration ===\n"
"""What stands between the streams of two iterations in a case file."""

Cut = Callable[[bytes], Iterable[bytes]]
"""How the bytes of one stream are cut into reads."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange: what the upstream sends, and what has to come of it.

    Attributes:
        name: The case file's name.
        streams: The upstream's bytes, one stream per iteration. All but the last were rerun.
        owned: Tools that only the server runs.
        declared: Tools that the client declared itself.
        watched: A hook without names watches, so every call is held.
        interim: `never` holds text, too.
        usage: The sum, or the last iteration's.
        override: A whole reply that a hook put in the place of the last one, or None.
        replies: What each stream folds to; empty for not looked at.
        final: The one message that the client gets; None where the last stream is faulty, so that an error follows.
        fault: Whether the last stream is faulty.
        sent: Of a faulty case: the text that the client has got before.
        untouched: False where the upstream's own wire is not valid, so that bytes cannot stay.
    """

    name: str
    streams: tuple[bytes, ...]
    owned: frozenset[str] = frozenset()
    declared: frozenset[str] = frozenset()
    watched: bool = False
    interim: InterimText = "stream"
    usage: UsageMode = "sum"
    override: dict[str, Any] | None = None
    replies: tuple[dict[str, Any], ...] = ()
    final: dict[str, Any] | None = None
    fault: bool = False
    sent: str | None = None
    untouched: bool = True

    def holds(self, name: str) -> bool:
        """Whether a call waits for the end of its iteration."""
        return self.watched or not self.keep(name)

    def keep(self, name: str) -> bool:
        """Whether a call may reach the client."""
        return name in self.declared and name not in self.owned


class Grammar(Protocol):
    """What a valid wire of one dialect is."""

    def breaches(self, frames: Sequence[Frame], *, ended: bool) -> list[str]:
        """What breaks the grammar of one message; with `ended` false a beginning of one is enough."""
        ...

    def fold(self, frames: Sequence[Frame]) -> dict[str, Any]:
        """The message that a valid wire tells; its usage is the member `usage`."""
        ...

    def calls(self, message: Mapping[str, Any]) -> list[str]:
        """The names of the tools that a message calls."""
        ...

    def text(self, frames: Sequence[Frame]) -> str:
        """All text of a wire, broken off or not."""
        ...

    def ending(self, frame: Frame) -> bool:
        """Whether a frame belongs to the ending of a stream, which is written anew."""
        ...


class Played(msgspec.Struct, frozen=True):
    """What came of a case: the client's bytes, each iteration's reply, and what was returned per frame."""

    wire: bytes
    replies: tuple[Reply, ...]
    error: bytes | None
    passed: tuple[tuple[Frame, bytes], ...]


# --- cuts --------------------------------------------------------------------


def whole(stream: bytes) -> Iterable[bytes]:
    return (stream,)


def bytewise(stream: bytes) -> Iterable[bytes]:
    return (stream[place : place + 1] for place in range(len(stream)))


def at(places: Iterable[int]) -> Cut:
    """Cut at these places, each taken modulo the length."""
    places = list(places)

    def cut(stream: bytes) -> Iterator[bytes]:
        edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
        return (stream[start:end] for start, end in pairwise(edges))

    return cut


# --- cases -------------------------------------------------------------------


def cases(folder: Path) -> list[Case]:
    """The case files of a folder: NAME.sse with the streams, NAME.json with the rest of a `Case`."""
    found = []
    for path in sorted(folder.glob("*.sse")):
        told = json.loads(path.with_suffix(".json").read_bytes())
        told.pop("about")
        streams = path.read_bytes().split(ITERATION)
        found.append(msgspec.convert({**told, "name": path.stem, "streams": streams}, Case))
    return found


def recorded(dialect: Literal["messages", "chat_completions"]) -> list[tuple[str, list[bytes]]]:
    """The recorded payloads of real providers, if their folder lies beside the checkout."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "recorded" / dialect
    return [
        (path.name.removesuffix(".chunks.txt"), [line for line in path.read_bytes().splitlines() if line.strip()])
        for path in sorted(folder.glob("*.chunks.txt"))
    ]


# --- the laws ----------------------------------------------------------------


def frames_of(stream: bytes, cut: Cut = whole) -> list[Frame]:
    """The events of a stream."""
    reader = Reader()
    return [frame for piece in cut(stream) for frame in reader.feed(piece)]


def play(dialect: Dialect, case: Case, cut: Cut = whole) -> Played:
    """Drive a splicer through a case as the driver would."""
    splicer = dialect.splicer(usage=case.usage, include_usage=True)
    everything = case.interim == "never"
    replies: list[Reply] = []
    passed: list[tuple[Frame, bytes]] = []
    for stream in case.streams:
        if replies:
            splicer.drop()
        splicer.begin(case.holds, everything=everything)
        passed += [(frame, splicer.feed(frame)) for frame in frames_of(stream, cut)]
        replies.append(splicer.reply())
    error = splicer.error
    wire = b"".join(out for _, out in passed)
    if case.override is not None:
        splicer.drop()
        splicer.begin(case.holds, everything=False, counted=False)
        wire += b"".join(splicer.feed(frame) for frame in dialect.render(case.override))
    if not case.fault:
        wire += splicer.finish(case.keep)
    return Played(wire, tuple(replies), error, tuple(passed))


def check_laws(dialect: Dialect, case: Case, grammar: Grammar, cut: Cut = whole) -> None:
    """All six laws over one case, with the bytes cut in this way."""
    played = play(dialect, case, cut)
    cuts_change_nothing(dialect, case, played, cut)
    folds_are_the_json(dialect, case, played)
    the_wire_is_one_message(case, played, grammar)
    owned_tools_never_show(case, played, grammar)
    untouched_bytes_stay(dialect, case, grammar, cut)
    usage_is_the_sum(case, played, grammar)


def cuts_change_nothing(dialect: Dialect, case: Case, played: Played, cut: Cut) -> None:
    """Law 1: however the input is cut, the same comes out."""
    assert played == play(dialect, case, whole)
    for stream in case.streams:
        assert frames_of(stream, cut) == frames_of(stream)


def folds_are_the_json(dialect: Dialect, case: Case, played: Played) -> None:
    """Law 2: a folded stream is the JSON that the same upstream would have sent, and reads like it."""
    for number, (wanted, reply) in enumerate(zip(case.replies, played.replies, strict=True)):
        assert json.loads(reply.raw) == wanted, f"reply {number}"
        parsed = dialect.reply(json.dumps(wanted).encode())
        faulty = case.fault and number == len(case.replies) - 1
        assert (reply.fault is not None) == faulty, reply.fault
        for name in ("calls", "ending", "usage", "model", "id"):
            if name == "calls":
                assert [_call(call) for call in reply.calls] == [_call(call) for call in parsed.calls]
            else:
                assert getattr(reply, name) == getattr(parsed, name), name
        if not faulty:
            retold = [(case.holds, frame) for frame in dialect.render(wanted)]
            splicer = dialect.splicer(usage="sum", include_usage=True)
            splicer.begin(case.holds)
            for _, frame in retold:
                splicer.feed(frame)
            again = splicer.reply()
            assert (again.fault, json.loads(again.raw)) == (None, wanted)


def _call(call: Any) -> tuple[Any, ...]:
    return (call.id, call.name, call.arguments, call.valid)


def the_wire_is_one_message(case: Case, played: Played, grammar: Grammar) -> None:
    """Law 3: what the client gets is one valid message, and the one that is wanted."""
    frames = frames_of(played.wire)
    assert grammar.breaches(frames, ended=not case.fault) == []
    if case.final is not None:
        assert grammar.fold(frames) == case.final
    if case.sent is not None:
        assert grammar.text(frames) == case.sent


def owned_tools_never_show(case: Case, played: Played, grammar: Grammar) -> None:
    """Law 4: no call to a tool that the client must not see is on its wire."""
    shown = grammar.calls(grammar.fold(frames_of(played.wire)))
    assert [name for name in shown if not case.keep(name)] == []


def untouched_bytes_stay(dialect: Dialect, case: Case, grammar: Grammar, cut: Cut) -> None:
    """Law 5: without a watcher output bytes are input bytes; with one that holds nothing, all but the ending."""
    for stream in case.streams:
        reader = Reader()
        frames = [frame for piece in cut(stream) for frame in reader.feed(piece)]
        told = b"".join(frame.raw for frame in frames) + reader.rest()
        assert told == stream.removeprefix(b"\xef\xbb\xbf")
    if not case.untouched:
        return
    splicer = dialect.splicer(usage="sum", include_usage=True)
    splicer.begin(lambda _: False)
    for frame in frames_of(case.streams[0], cut):
        out = splicer.feed(frame)
        if splicer.error is not None:
            break
        if not grammar.ending(frame):
            assert out == frame.raw


def usage_is_the_sum(case: Case, played: Played, grammar: Grammar) -> None:
    """Law 6: every number in the usages that came in is in the one that goes out."""
    if case.fault:
        return
    wanted: dict[str, float] = {}
    counted = played.replies if case.usage == "sum" else played.replies[-1:]
    for reply in counted:
        for name, number in _numbers(reply.usage):
            wanted[name] = wanted.get(name, 0) + number
    told = dict(_numbers(grammar.fold(frames_of(played.wire)).get("usage") or {}))
    if wanted:
        assert told == wanted


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for name, member in value.items():
            yield from _numbers(member, f"{path}.{name}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


# --- the grammar of Messages ---------------------------------------------------

_BLOCK = ("content_block_start", "content_block_delta", "content_block_stop")
_KNOWN = frozenset(("message_start", *_BLOCK, "message_delta", "message_stop"))


def _told(frames: Sequence[Frame]) -> Iterator[tuple[dict[str, Any], str]]:
    """The data and the name of each event that a client looks at."""
    for frame in frames:
        event = frame.event.decode()
        if frame.data is not None and event in {*_KNOWN, "ping", "error", ""}:
            yield json.loads(frame.data), event


class MessagesGrammar:
    """See https://docs.anthropic.com/en/docs/build-with-claude/streaming."""

    def breaches(self, frames: Sequence[Frame], *, ended: bool) -> list[str]:
        bad: list[str] = []
        seen: list[str] = []
        state: dict[int, str] = {}
        for told, event in _told(frames):
            kind = told.get("type")
            if event != kind:
                bad.append(f"event {event!r} carries type {kind!r}")
            if kind not in _KNOWN:
                continue
            if "message_stop" in seen:
                bad.append(f"{kind} behind message_stop")
            if (kind == "message_start") == bool(seen):
                bad.append(f"{kind} as number {len(seen)}")
            if kind == "message_start":
                bad += _start(told["message"])
            elif kind.startswith("content_block_"):
                bad += _block(kind, told.get("index"), state)
                if "message_delta" in seen:
                    bad.append(f"{kind} behind message_delta")
            elif kind == "message_delta":
                bad += _delta(told, state, seen)
            elif "message_delta" not in seen:
                bad.append("message_stop without message_delta")
            seen.append(kind)
        if ended and "message_stop" not in seen:
            bad.append("no message_stop")
        return bad

    def fold(self, frames: Sequence[Frame]) -> dict[str, Any]:
        message: dict[str, Any] = {"content": []}
        given: dict[int, str] = {}
        for told, _ in _told(frames):
            match told.get("type"):
                case "message_start":
                    message = told["message"]
                case "content_block_start":
                    message["content"].append(told["content_block"])
                case "content_block_delta":
                    self._grow(message["content"][told["index"]], told["delta"], told["index"], given)
                case "message_delta":
                    message.update(told["delta"])
                    message["usage"] = {**message.get("usage", {}), **told["usage"]}
                    message |= {name: told[name] for name in told if name not in ("type", "delta", "usage")}
        for index, text in given.items():
            if text.strip():
                message["content"][index]["input"] = _read(text)
        return cast("dict[str, Any]", json.loads(_paired(json.dumps(message, ensure_ascii=False))))

    def _grow(self, block: dict[str, Any], delta: dict[str, Any], index: int, given: dict[int, str]) -> None:
        match delta["type"]:
            case "input_json_delta":
                given[index] = given.get(index, "") + delta["partial_json"]
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]
            case "signature_delta":
                block["signature"] = delta["signature"]
            case _:
                for name, piece in delta.items():
                    if name != "type":
                        joins = isinstance(piece, (str, list)) and block.get(name) is not None
                        block[name] = block[name] + piece if joins else piece

    def calls(self, message: Mapping[str, Any]) -> list[str]:
        return [block["name"] for block in message["content"] if block["type"] == "tool_use"]

    def text(self, frames: Sequence[Frame]) -> str:
        return "".join((told.get("delta") or {}).get("text") or "" for told, _ in _told(frames))

    def ending(self, frame: Frame) -> bool:
        return b'"message_delta"' in (frame.data or b"") or b'"message_stop"' in (frame.data or b"")


def _start(message: dict[str, Any]) -> list[str]:
    good = message.get("content") == [] and message.get("role") == "assistant" and message.get("id")
    return [] if good else ["message_start holds no empty assistant message with an id"]


def _block(kind: str, index: Any, state: dict[int, str]) -> list[str]:
    if kind == "content_block_start":
        wanted = len(state)
        state[index] = "open"
        return [] if index == wanted else [f"content_block_start has index {index}, not {wanted}"]
    found = state.get(index)
    if kind == "content_block_stop":
        state[index] = "stopped"
    return [] if found == "open" else [f"{kind} for block {index}, which is {found or 'not started'}"]


def _delta(told: dict[str, Any], state: dict[int, str], seen: list[str]) -> list[str]:
    bad = []
    if "message_delta" in seen:
        bad.append("a second message_delta")
    if not told["delta"].get("stop_reason"):
        bad.append("message_delta without stop_reason")
    if "open" in state.values():
        bad.append("message_delta while a block is open")
    if not isinstance(told.get("usage", {}).get("output_tokens"), int):
        bad.append("message_delta without output_tokens")
    return bad


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _paired(text: str) -> str:
    """Surrogate pairs whose halves came apart are one character again."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


MESSAGES_GRAMMAR = MessagesGrammar()
