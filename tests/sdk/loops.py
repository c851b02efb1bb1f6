"""Three gateways on a thread of their own, one per `interim_text`, and what their answers must be.

This file must not know an SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from inprocess import gateway_over, request_body
from loopway.testing import Hold, Recorded, Reply, call, cut, raw, text, thinking
from puppets import Puppet
from streams import chunk, event, said

INTERIM = ("stream", "always", "never")
ITERATIONS = {"one": 1, "two": 2, "four": 4}
"""Models, by how many iterations an exchange with them has."""
USAGE = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2}
THEIRS = {"type": "tool_use", "id": "theirs_1", "name": "theirs", "input": {"n": 9}}
PINGED_SECONDS = 0.05
"""The keepalive interval; the model `silent` is silent for several of them."""
ERROR = {
    "messages": b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"No room"}}\n\n',
    "chat_completions": b'data: {"error":{"message":"No room","type":"server_error","param":null,"code":null}}\n\n',
}
BROKEN = {
    "reported": "No room",
    "cut": "broke off",
    "hook": "puppets.Puppet",
    "open": "No room",
    "open call": "No room",
}
"""Models whose exchange fails in mid-stream, and what the error says; the text `Seen.` was there before."""

HALF = {"messages": b'event: content_block_delta\ndata: {"type": "content_bl', "chat_completions": b'data: {"id": "ch'}
"""What the model `half` says last: half an event."""


def depth(request: Recorded) -> int:
    """How many tool results the history of a request has."""
    turns: list[dict[str, Any]] = request.body["messages"]
    blocks = [block for turn in turns if isinstance(turn["content"], list) for block in turn["content"]]
    return len(
        [one for one in turns if one["role"] == "tool"] + [one for one in blocks if one["type"] == "tool_result"]
    )


def loop(request: Recorded) -> Reply:
    """A reply of a model that calls the server's tool until its last iteration; the fourth calls the client's."""
    done = depth(request)
    if done < ITERATIONS[request.model] - 1:
        blocks: list[Any] = [thinking(f"Hm {done}.", f"sig{done}"), text(f"Part {done}."), call("mine", {"n": done})]
        return Reply(*blocks, usage=USAGE)
    blocks = [thinking("Well.", "sig"), text("The end \u2603.")]
    if request.model == "four":
        blocks.append(call("theirs", {"n": 9}, id="theirs_1"))
    return Reply(*blocks, usage=USAGE)


def broken(request: Recorded) -> Reply:
    """A reply that fails behind a text."""
    match request.model:
        case "reported":
            return Reply(text("Seen."), raw(ERROR[request.dialect]), cut())
        case "cut":
            return Reply(text("Seen."), cut())
        case "open":  # the error comes inside the block of text
            return Reply(*said(request.dialect, "Seen.", raw(ERROR[request.dialect]), cut()))
        case "open call":  # and inside a call of the client's own, which is live
            return Reply(text("Seen."), raw(half_a_call(request.dialect)), raw(ERROR[request.dialect]), cut())
        case "half":
            return Reply(text("Seen."), raw(HALF[request.dialect]), cut())
    return Reply(text("Seen."), call("mine", {"n": -1}))


def half_a_call(dialect: str) -> bytes:
    """The beginning of a call to the client's own tool."""
    if dialect == "messages":
        block = {"type": "tool_use", "id": "theirs_1", "name": "theirs", "input": {}}
        piece = {"type": "input_json_delta", "partial_json": '{"n"'}
        start = event("content_block_start", index=1, content_block=block)
        return start + event("content_block_delta", index=1, delta=piece)
    named = {"index": 0, "id": "theirs_1", "type": "function", "function": {"name": "theirs", "arguments": '{"n"'}}
    return chunk(tool_calls=[named])


def silent(request: Recorded) -> Reply:
    """A model with silences before the head and in the reply."""

    async def quiet() -> None:
        await asyncio.sleep(4 * PINGED_SECONDS)

    blocks: list[Any] = [thinking("Well.", "sig"), Hold(quiet), text("The end \u2603.")]
    return Reply(*blocks, gate=quiet, usage=USAGE)


def plan(given: dict[str, Any]) -> Any:
    """The rerun; a call with -1 fails."""
    if given["calls"][0]["input"]["n"] < 0:
        raise RuntimeError("no such thing")
    return given["rerun"]


@contextlib.contextmanager
def gateways() -> Iterator[dict[str, str]]:
    """The three gateways' addresses, by their `interim_text`."""
    urls: dict[str, str] = {}
    ready, over = threading.Event(), threading.Event()
    problems: list[BaseException] = []
    scripts: dict[str, Any] = {
        **dict.fromkeys(ITERATIONS, loop),
        **dict.fromkeys((*BROKEN, "half"), broken),
        "silent": silent,
    }

    async def serve() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for interim in INTERIM:
                settings = {"interim_text": interim, "keepalive_seconds": PINGED_SECONDS, "max_agentic_loops": 5}
                run = await stack.enter_async_context(gateway_over(scripts, [Puppet(plan=plan)], loop=settings))
                urls[interim] = run.url
            ready.set()
            await asyncio.to_thread(over.wait)

    def thread() -> None:
        try:
            asyncio.run(serve())
        except BaseException as problem:
            problems.append(problem)
        finally:
            ready.set()

    running = threading.Thread(target=thread, name="gateways")
    running.start()
    ready.wait()
    try:
        if not problems:
            yield urls
    finally:
        over.set()
        running.join()
    if problems:
        raise problems[0]


def request(dialect: str, model: str) -> dict[str, Any]:
    """A request that offers a server tool and one of the client's own."""
    body = request_body(dialect, model)
    if dialect == "chat_completions":
        body["stream_options"] = {"include_usage": True}
        for tool in body["tools"]:  # the SDKs' stream helpers want it
            tool["function"]["strict"] = True
            tool["function"]["parameters"] |= {"additionalProperties": False, "required": ["n"]}
    return body


def unwatched(dialect: str, model: str) -> dict[str, Any]:
    """A request that offers only a tool of the client's own."""
    body = request(dialect, model)
    return {**body, "tools": body["tools"][1:]}


# --- what must come ------------------------------------------------------------


def shown(model: str, interim: str, *, streamed: bool) -> int:
    """How many iterations in front of the last one the answer shows."""
    return ITERATIONS[model] - 1 if interim == "always" or (streamed and interim == "stream") else 0


def message(model: str, interim: str, *, streamed: bool) -> dict[str, Any]:
    """The answer in Messages."""
    turns = [(f"Hm {n}.", f"sig{n}", f"Part {n}.") for n in range(shown(model, interim, streamed=streamed))]
    content: list[dict[str, Any]] = []
    for thought, signature, words in (*turns, ("Well.", "sig", "The end \u2603.")):
        content += [
            {"type": "thinking", "thinking": thought, "signature": signature},
            {"type": "text", "text": words},
        ]
    usage = {name: count * ITERATIONS[model] for name, count in USAGE.items()}
    if model == "four":
        return {"content": [*content, THEIRS], "stop_reason": "tool_use", "usage": usage}
    return {"content": content, "stop_reason": "end_turn", "usage": usage}


def completion(model: str, interim: str, *, streamed: bool) -> dict[str, Any]:
    """The answer in Chat Completions."""
    count = shown(model, interim, streamed=streamed)
    told: dict[str, Any] = {
        "content": "\n\n".join([*(f"Part {n}." for n in range(count)), "The end \u2603."]),
        "reasoning_content": "\n\n".join([*(f"Hm {n}." for n in range(count)), "Well."]),
        "finish_reason": "stop",
        "usage": [15 * ITERATIONS[model], 5 * ITERATIONS[model], 20 * ITERATIONS[model], 3 * ITERATIONS[model]],
    }
    if model == "four":
        told |= {"finish_reason": "tool_calls", "tool_calls": [["theirs_1", "theirs", '{"n":9}']]}
    return told


def read_message(got: dict[str, Any]) -> dict[str, Any]:
    """What an SDK's final message says, without what it adds of its own."""
    names = {"thinking": ("thinking", "signature"), "text": ("text",), "tool_use": ("id", "name", "input")}
    content = [{"type": one["type"], **{name: one[name] for name in names[one["type"]]}} for one in got["content"]]
    usage = {name: got["usage"].get(name) for name in USAGE}
    return {"content": content, "stop_reason": got["stop_reason"], "usage": usage}


def read_completion(got: dict[str, Any]) -> dict[str, Any]:
    """What an SDK's final completion says, without what it adds of its own."""
    (choice,) = got["choices"]
    said, usage = choice["message"], got["usage"]
    counts = [usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    told = {
        "content": said["content"],
        "reasoning_content": said.get("reasoning_content"),
        "finish_reason": choice["finish_reason"],
        "usage": [*counts, usage["prompt_tokens_details"]["cached_tokens"]],
    }
    if said.get("tool_calls"):
        calls = [(one["id"], one["function"]) for one in said["tool_calls"]]
        told["tool_calls"] = [[id_, function["name"], function["arguments"]] for id_, function in calls]
    return told


def joined(wanted: dict[str, Any]) -> dict[str, Any]:
    """What a plain loop over events sees of an answer: its text, its ending, its usage."""
    content = wanted["content"]
    if isinstance(content, list):
        content = "".join(one.get("text", "") for one in content)
        return {"text": content, "ending": wanted["stop_reason"], "usage": wanted["usage"]}
    return {"text": content, "ending": wanted["finish_reason"], "usage": wanted["usage"][:3]}
