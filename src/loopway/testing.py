"""A model server that says what a script tells it: for tests of hooks, for the demo, and for this project's own tests.

This file must not know a hook, a gateway or a test framework. It is a real HTTP server on 127.0.0.1 that speaks
`POST /v1/messages` and `POST /v1/chat/completions`, JSON and streams, with a frame per event.

A test of a hook, from the request to the answer::

    from litestar.testing import TestClient

    from loopway import AgenticLoopHook, AgenticLoopPlan, AgenticLoopRequestPatch, create_app
    from loopway.testing import Reply, ScriptedModel, call, text


    class Weather(AgenticLoopHook):
        async def async_should_run_agentic_loop(
            self, response, model, messages, tools, stream, custom_llm_provider, kwargs
        ):
            calls = [block for block in response.content if block["type"] == "tool_use"]
            return bool(calls), {"tool_calls": calls}

        async def async_build_agentic_loop_plan(self, tools, model, messages, response, **more):
            results = [
                {"type": "tool_result", "tool_use_id": one["id"], "content": "rain"} for one in tools["tool_calls"]
            ]
            turns = [{"role": "assistant", "content": response.content}, {"role": "user", "content": results}]
            patch = AgenticLoopRequestPatch(messages=[*messages, *turns])
            return AgenticLoopPlan(run_agentic_loop=True, request_patch=patch)


    def test_weather():
        script = [Reply(call("get_weather", {"city": "Oslo"})), Reply(text("It rains."))]
        with ScriptedModel({"demo": script}) as model:
            config = {
                "auth": {"mode": "open"},
                "upstreams": {"here": {"base_url": model.url, "dialects": ["messages"]}},
                "models": [{"name": "demo", "upstream": "here"}],
            }
            with TestClient(create_app(config, hooks=[Weather()])) as client:
                question = {"role": "user", "content": "How is the weather in Oslo?"}
                tool = {"name": "get_weather", "input_schema": {"type": "object"}}
                request = {"model": "demo", "max_tokens": 100, "messages": [question], "tools": [tool]}
                answer = client.post("/v1/messages", json=request)
            assert answer.json()["content"] == [{"type": "text", "text": "It rains."}]
            assert model.requests[1].body["messages"][-1]["content"][0]["content"] == "rain"
            assert model.calls["demo"] == 2


    test_weather()
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

Gate = asyncio.Event | threading.Event | Callable[[], Awaitable[object]] | Awaitable[object]
"""What a reply can wait for, so that a test needs no sleep. With `with` (a thread) it is a `threading.Event`."""

_HIGHEST_HEAD = 1 << 20
_POLL_SECONDS = 0.005


class Text(msgspec.Struct, frozen=True):
    """Text, and the pieces that it is streamed in."""

    pieces: tuple[str, ...]


class Thinking(msgspec.Struct, frozen=True):
    """Thinking with its signature. Chat Completions shows it as `reasoning_content`."""

    pieces: tuple[str, ...]
    signature: str


class Call(msgspec.Struct, frozen=True):
    """A tool call; `id` None gets the next free one. `pieces` are those of its arguments' JSON."""

    name: str
    pieces: tuple[str, ...]
    id: str | None


class Hold(msgspec.Struct, frozen=True):
    """A place in the reply where it waits."""

    gate: Any


class Raw(msgspec.Struct, frozen=True):
    """Bytes in a stream that are sent as they are."""

    data: bytes


class Cut(msgspec.Struct, frozen=True):
    """A place in the reply where the connection breaks."""


Block = Text | Thinking | Call | Hold | Raw | Cut


def text(words: str, *, pieces: int | Sequence[str] = 3) -> Text:
    """Text of a reply; `pieces` is how many deltas a stream has, or the deltas themselves."""
    return Text(_split(words, pieces))


def thinking(words: str, signature: str = "c2lnbmF0dXJl", *, pieces: int | Sequence[str] = 2) -> Thinking:
    """Thinking of a reply, with a signature that has to come back unchanged."""
    return Thinking(_split(words, pieces), signature)


def call(
    name: str,
    arguments: Mapping[str, Any] | str | None = None,
    id: str | None = None,  # noqa: A002 - the wire's own word
    *,
    pieces: int | Sequence[str] = 3,
) -> Call:
    """A tool call. `arguments` as a string is the JSON as the model writes it, so it may be none."""
    written = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
    return Call(name, _split(written, pieces), id)


def hold(gate: Gate) -> Hold:
    """Wait here. In JSON everything comes at once, so the whole answer waits."""
    return Hold(gate)


def raw(data: bytes) -> Raw:
    """Bytes between two events of a stream, as a ping or an event of an unknown type. JSON leaves them out."""
    return Raw(data)


def cut() -> Cut:
    """Break the connection here; in JSON in the middle of the body."""
    return Cut()


def _split(words: str, pieces: int | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(pieces, int):
        if "".join(pieces) != words:
            raise ValueError(f"the pieces {pieces!r} do not make {words!r}")
        return tuple(pieces)
    size = max(1, -(-len(words) // max(1, pieces)))
    return tuple(words[place : place + size] for place in range(0, len(words), size))


class Reply:
    """One reply of the model, for whichever dialect and mode it is asked in.

    Args:
        blocks: What it says, in this order.
        stop: Why it stops, as Messages says it (`max_tokens`, `refusal`, …); default: `tool_use` behind a call,
            else `end_turn`.
        usage: Token counts, as Messages names them or as Chat Completions does; each dialect gets its own.
        delay: Seconds before the head.
        gate: What to wait for before the head.
        error: A status and a body instead of a reply: a text (in the dialect's error shape), bytes, or JSON.
        headers: More response headers.
    """

    def __init__(
        self,
        *blocks: Block,
        stop: str | None = None,
        usage: Mapping[str, Any] | None = None,
        delay: float = 0.0,
        gate: Gate | None = None,
        error: tuple[int, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.blocks = blocks
        self.usage = dict(usage) if usage is not None else {"input_tokens": 10, "output_tokens": 5}
        self.delay = delay
        self.gate = gate
        self.error = error
        self.headers = dict(headers or {})
        called = any(isinstance(block, Call) for block in blocks)
        self.stop = stop or ("tool_use" if called else "end_turn")


Dialect = Literal["messages", "chat_completions", "other"]


class Recorded(msgspec.Struct):
    """One request as the model got it.

    Attributes:
        path: Without the query.
        query: Without the question mark.
        headers: Names in lower case.
        raw: The body's bytes.
        body: The body as JSON, or None if it is none.
        model: What the body says, or "".
        dialect: The wire format of the path.
        number: Which call for this model it is; the first is 1.
        state: "open" while it is answered, then "answered", "cut" if the script broke the connection, or "left" if the
            client went away before.
    """

    path: str
    query: str
    headers: dict[str, str]
    raw: bytes
    body: Any
    model: str
    dialect: Dialect
    number: int = 0
    state: Literal["open", "answered", "cut", "left"] = "open"

    @property
    def stream(self) -> bool:
        """Whether a stream was asked for."""
        return isinstance(self.body, dict) and self.body.get("stream") is True


Decide = Callable[[Recorded], Reply | Awaitable[Reply]]
Script = Sequence[Reply] | Decide


class ScriptedModel:
    """A model server that says what a script tells it. A context manager, with `async with` or `with`.

    With `async with` it runs in the test's own event loop, with `with` on a thread of its own, for synchronous SDKs.

    Args:
        scripts: By the model's name: replies for the first, second, … call, or a function of the request. A call
            behind the last reply is a 400 that says so, and an unknown model a 404.
        port: 0 for a free one.

    Attributes:
        url: The server's address, without a path. The `openai` SDK wants `url + "/v1"`.
        requests: Every request, in the order of their coming.
        calls: How many calls each model has had.
    """

    def __init__(self, scripts: Mapping[str, Script], *, port: int = 0) -> None:
        self.url = ""
        self.requests: list[Recorded] = []
        self.calls: Counter[str] = Counter()
        self._scripts = dict(scripts)
        self._port = port
        self._ids = 0
        self._news = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] = lambda: None

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Wait until the condition holds; it is asked again whenever a request comes or ends.

        Only with `async with`. Raises `TimeoutError` behind so many seconds.
        """
        async with asyncio.timeout(seconds):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._connection, "127.0.0.1", self._port, limit=_HIGHEST_HEAD, backlog=512
        )
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()

    def __enter__(self) -> Self:
        ready = threading.Event()
        problems: list[BaseException] = []

        async def serve() -> None:
            over = asyncio.Event()
            loop = asyncio.get_running_loop()
            self._stop = lambda: loop.call_soon_threadsafe(over.set)
            async with self:
                ready.set()
                await over.wait()

        def run() -> None:
            try:
                asyncio.run(serve())
            except BaseException as problem:  # noqa: BLE001 - raised again where `with` stands
                problems.append(problem)
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="scripted-model", daemon=True)
        self._thread.start()
        ready.wait()
        if problems:
            raise problems[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if self._thread is not None:
            self._thread.join()

    # --- one connection ---

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._tasks.add(task)
        try:
            ahead = b""
            while True:
                request = await _read(reader, ahead)
                ahead = await self._exchange(request, reader, writer)
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client went, or the model is being closed
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, request: Recorded, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Answer one request; gives what has come of the next one. Raises `EOFError` if the client went."""
        self.calls[request.model] += 1
        request.number = self.calls[request.model]
        self.requests.append(request)
        self._news.set()
        answer = asyncio.ensure_future(self._answer(request, writer))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                if _quiet(leaving):
                    raise EOFError
                await asyncio.wait({answer})
            problem = answer.exception()
            if problem is not None:
                request.state = "cut" if isinstance(problem, _Broken) else "left"
                raise problem
            request.state = "answered"
            return leaving.result() if leaving.done() else b""
        finally:
            if request.state == "open":
                request.state = "left"
            for task in (answer, leaving):
                task.cancel()
            await asyncio.gather(answer, leaving, return_exceptions=True)
            self._news.set()

    async def _answer(self, request: Recorded, writer: asyncio.StreamWriter) -> None:
        reply = await self._reply(request)
        await asyncio.sleep(reply.delay)
        await _pass(reply.gate)
        self._ids += 1
        headers = {"request-id": f"req_{self._ids:06d}", **reply.headers}
        if reply.error is not None:
            status, body = reply.error
            await _send_whole(writer, status, headers, _error_body(request.dialect, body))
            return
        writing = _WRITERS[request.dialect](reply, request, self._next_id)
        if request.stream:
            await _send_stream(writer, headers, writing.events())
        else:
            for block in reply.blocks:
                if isinstance(block, Hold):
                    await _pass(block.gate)
            broken = any(isinstance(block, Cut) for block in reply.blocks)
            await _send_whole(writer, 200, headers, writing.whole(), broken=broken)

    async def _reply(self, request: Recorded) -> Reply:
        script = self._scripts.get(request.model)
        if script is None:
            return Reply(error=(404, f"the scripted model knows no model {request.model!r}"))
        if callable(script):
            try:
                decided = script(request)
                reply = await decided if inspect.isawaitable(decided) else decided
            except Exception as error:  # noqa: BLE001 - a test sees it in the answer
                return Reply(error=(400, f"the script of {request.model!r} failed: {error!r}"))
        elif request.number > len(script):
            told = f"the script of {request.model!r} has {len(script)} replies, and this is call {request.number}"
            return Reply(error=(400, told))
        else:
            reply = script[request.number - 1]
        if request.dialect == "other" and reply.error is None:
            return Reply(error=(404, f"the scripted model has nothing at {request.path}"))
        return reply

    def _next_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}{self._ids:06d}"


class _Broken(ConnectionError):
    """The script wants the connection to break here."""


def _quiet(leaving: asyncio.Future[bytes]) -> bool:
    """Whether the end of the client's stream came, and not the beginning of a next request."""
    return leaving.exception() is not None or leaving.result() == b""


async def _pass(gate: Gate | None) -> None:
    if gate is None:
        return
    if isinstance(gate, threading.Event):
        while not gate.is_set():  # noqa: ASYNC110 - the event belongs to another thread
            await asyncio.sleep(_POLL_SECONDS)
    elif isinstance(gate, asyncio.Event):
        await gate.wait()
    else:
        await (gate() if callable(gate) else gate)


async def _read(reader: asyncio.StreamReader, ahead: bytes) -> Recorded:
    """One request. Raises `EOFError` when there is none."""
    head = ahead + await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    path, _, query = first.split(" ")[1].partition("?")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "chunked" in headers.get("transfer-encoding", ""):
        parts: list[bytes] = []
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
        await reader.readuntil(b"\r\n")
        data = b"".join(parts)
    else:
        data = await reader.readexactly(int(headers.get("content-length", "0")))
    body: Any = None
    with contextlib.suppress(ValueError):
        body = msgspec.json.decode(data)
    named = body.get("model") if isinstance(body, dict) else None
    dialect: Dialect = _PATHS.get(path, "other")
    return Recorded(path, query, headers, data, body, named if isinstance(named, str) else "", dialect)


_PATHS: dict[str, Dialect] = {"/v1/messages": "messages", "/v1/chat/completions": "chat_completions"}


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


async def _send_whole(
    writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str], body: bytes, *, broken: bool = False
) -> None:
    lines = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    writer.write(_head(status, lines) + (body[: len(body) // 2] if broken else body))
    await writer.drain()
    if broken:
        raise _Broken


async def _send_stream(
    writer: asyncio.StreamWriter, headers: Mapping[str, str], events: Sequence[bytes | Hold | Cut]
) -> None:
    writer.write(_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked", **headers}))
    for event in events:
        if isinstance(event, Hold):
            await _pass(event.gate)
        elif isinstance(event, Cut):
            raise _Broken
        else:
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(0)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _error_body(dialect: Dialect, body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    if not isinstance(body, str):
        return msgspec.json.encode(body)
    error: dict[str, Any]
    if dialect == "messages":
        error = {"type": "invalid_request_error", "message": body}
        return msgspec.json.encode({"type": "error", "error": error})
    error = {"message": body, "type": "invalid_request_error", "param": None, "code": None}
    return msgspec.json.encode({"error": error})


class _Messages:
    """A reply as Anthropic's Messages."""

    def __init__(self, reply: Reply, request: Recorded, next_id: Callable[[str], str]) -> None:
        self._reply, self._model, self._next_id = reply, request.model, next_id
        self._usage = _messages_usage(reply.usage)

    def _message(self, **changed: Any) -> dict[str, Any]:
        return {
            "id": self._next_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": self._reply.stop,
            "stop_sequence": None,
            "usage": self._usage,
            **changed,
        }

    def whole(self) -> bytes:
        content: list[dict[str, Any]] = []
        for block in self._reply.blocks:
            if isinstance(block, Text):
                content.append({"type": "text", "text": "".join(block.pieces)})
            elif isinstance(block, Thinking):
                words = "".join(block.pieces)
                content.append({"type": "thinking", "thinking": words, "signature": block.signature})
            elif isinstance(block, Call):
                given = msgspec.Raw("".join(block.pieces).encode())
                content.append({**self._call(block), "input": given})
        return msgspec.json.encode(self._message(content=content))

    def _call(self, block: Call) -> dict[str, Any]:
        return {"type": "tool_use", "id": block.id or self._next_id("toolu_"), "name": block.name, "input": {}}

    def events(self) -> list[bytes | Hold | Cut]:
        begun = {**self._usage, "output_tokens": min(1, self._usage.get("output_tokens", 0))}
        message = self._message(stop_reason=None, usage=begun)
        events: list[bytes | Hold | Cut] = [_event("message_start", message=message)]
        index = 0
        for block in self._reply.blocks:
            if isinstance(block, Hold | Cut):
                events.append(block)
            elif isinstance(block, Raw):
                events.append(block.data)
            else:
                events += self._block(index, block)
                index += 1
        delta = {"stop_reason": self._reply.stop, "stop_sequence": None}
        output = {"output_tokens": self._usage.get("output_tokens", 0)}
        return [*events, _event("message_delta", delta=delta, usage=output), _event("message_stop")]

    def _block(self, index: int, block: Text | Thinking | Call) -> list[bytes]:
        if isinstance(block, Text):
            start: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in block.pieces]
        elif isinstance(block, Thinking):
            start = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in block.pieces]
            deltas.append({"type": "signature_delta", "signature": block.signature})
        else:
            start = self._call(block)
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *block.pieces)]
        return [
            _event("content_block_start", index=index, content_block=start),
            *(_event("content_block_delta", index=index, delta=delta) for delta in deltas),
            _event("content_block_stop", index=index),
        ]


_FINISH = {
    "tool_use": "tool_calls",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "refusal": "content_filter",
}


class _Chat:
    """A reply as OpenAI's Chat Completions."""

    def __init__(self, reply: Reply, request: Recorded, next_id: Callable[[str], str]) -> None:
        self._reply, self._model, self._next_id = reply, request.model, next_id
        self._usage = _chat_usage(reply.usage)
        self._finish = _FINISH.get(reply.stop, reply.stop)
        options = request.body.get("stream_options") if isinstance(request.body, dict) else None
        self._include_usage = isinstance(options, dict) and options.get("include_usage") is True

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": self._next_id("chatcmpl-"), "object": kind, "created": 1_700_000_000, "model": self._model}

    def whole(self) -> bytes:
        words = "".join(piece for b in self._reply.blocks if isinstance(b, Text) for piece in b.pieces)
        thoughts = "".join(piece for b in self._reply.blocks if isinstance(b, Thinking) for piece in b.pieces)
        calls = [self._call(block, "".join(block.pieces)) for block in self._reply.blocks if isinstance(block, Call)]
        message: dict[str, Any] = {"role": "assistant", "content": words or None, "refusal": None}
        if thoughts:
            message["reasoning_content"] = thoughts
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish}
        return msgspec.json.encode({**self._frame("chat.completion"), "choices": [choice], "usage": self._usage})

    def _call(self, block: Call, arguments: str) -> dict[str, Any]:
        named = {"name": block.name, "arguments": arguments}
        return {"id": block.id or self._next_id("call_"), "type": "function", "function": named}

    def events(self) -> list[bytes | Hold | Cut]:
        frame = self._frame("chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return _data({**frame, "choices": [choice], **({"usage": None} if self._include_usage else {})})

        events: list[bytes | Hold | Cut] = [chunk({"role": "assistant", "content": ""})]
        index = 0
        for block in self._reply.blocks:
            if isinstance(block, Text):
                events += [chunk({"content": piece}) for piece in block.pieces]
            elif isinstance(block, Thinking):
                events += [chunk({"reasoning_content": piece}) for piece in block.pieces]
            elif isinstance(block, Call):
                events.append(chunk({"tool_calls": [{"index": index, **self._call(block, "")}]}))
                for piece in block.pieces:
                    events.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
                index += 1
            else:
                events.append(block.data if isinstance(block, Raw) else block)
        events.append(chunk({}, self._finish))
        if self._include_usage:
            events.append(_data({**frame, "choices": [], "usage": self._usage}))
        return [*events, b"data: [DONE]\n\n"]


_WRITERS: dict[str, Callable[[Reply, Recorded, Callable[[str], str]], _Messages | _Chat]] = {
    "messages": _Messages,
    "chat_completions": _Chat,
}


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


def _data(value: Any) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(value)


def _messages_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    if "prompt_tokens" not in usage:
        return dict(usage)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    counts = {"input_tokens": usage["prompt_tokens"] - cached, "output_tokens": usage.get("completion_tokens", 0)}
    return {**counts, "cache_read_input_tokens": cached} if cached else counts


def _chat_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    if "prompt_tokens" in usage:
        return dict(usage)
    cached = usage.get("cache_read_input_tokens") or 0
    prompt = usage.get("input_tokens", 0) + cached + (usage.get("cache_creation_input_tokens") or 0)
    output = usage.get("output_tokens", 0)
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return {**counts, "prompt_tokens_details": {"cached_tokens": cached}} if cached else counts
