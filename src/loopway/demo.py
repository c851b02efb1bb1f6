"""`loopway demo`: the real gateway over an embedded scripted model, with an example hook. No key, no network.

It must not use anything that a program of yours could not use.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from typing import Any

from loopway import AgenticLoopHook, AgenticLoopPlan, AgenticLoopRequestPatch, serving
from loopway.app import build
from loopway.settings import at_address
from loopway.telemetry import logs
from loopway.testing import Recorded, Reply, ScriptedModel, call, text

HOST = "127.0.0.1"
MODEL = "demo"
TOOL = "get_weather"

_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_REPORTS = {"Oslo": "4 degrees and light rain", "Taipei": "27 degrees and sun", "Nairobi": "22 degrees and clouds"}
_CITY = re.compile(r"\bin (\w+)")
_QUESTION = "When does Loopway send a keepalive in a stream?"
_COMMON = re.compile(r"(a|an|and|are|can|do|does|how|in|is|it|loopway|of|on|or|the|to|what|when|why)")


def _name(tool: object) -> object:
    """A declared tool's name, of whatever shape the client sent."""
    body = tool.get("function", tool) if isinstance(tool, dict) else None
    return body.get("name") if isinstance(body, dict) else None


class Weather(AgenticLoopHook):
    """The example hook: it offers the model a tool that no client has to know, and answers its calls."""

    server_fulfilled_tool_names = frozenset({TOOL})

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,  # noqa: ARG002
        cache: Any,  # noqa: ARG002
        data: dict[str, Any],
        call_type: str,
    ) -> dict[str, Any]:
        """Offer the tool."""
        about = {"name": TOOL, "description": "Current weather in a city."}
        tool: dict[str, Any] = {**about, "input_schema": _PARAMETERS}
        if call_type == "acompletion":
            tool = {"type": "function", "function": {**about, "parameters": _PARAMETERS}}
        tools = data.get("tools") or []
        if not isinstance(tools, list):
            return data  # the upstream says what is wrong with them
        return {**data, "tools": [*(one for one in tools if _name(one) != TOOL), tool]}

    async def async_should_run_agentic_loop(self, response: Any, *_: Any, **_more: Any) -> tuple[bool, Any]:
        """Claim a Messages reply that calls the tool."""
        calls = [block for block in response.content if block["type"] == "tool_use" and block["name"] == TOOL]
        return bool(calls), {"tool_calls": calls}

    async def async_build_agentic_loop_plan(self, tools: Any, *_: Any, **given: Any) -> AgenticLoopPlan:
        """Answer the calls and run the model again."""
        results = [
            {"type": "tool_result", "tool_use_id": one["id"], "content": report(one["input"])}
            for one in tools["tool_calls"]
        ]
        reply = {"role": "assistant", "content": given["response"].content}
        messages = [*given["messages"], reply, {"role": "user", "content": results}]
        return AgenticLoopPlan(run_agentic_loop=True, request_patch=AgenticLoopRequestPatch(messages=messages))

    async def async_should_run_chat_completion_agentic_loop(
        self, response: Any, *_: Any, **_more: Any
    ) -> tuple[bool, Any]:
        """Claim a Chat Completions reply that calls the tool."""
        calls = response.choices[0].message.get("tool_calls") or []
        calls = [one for one in calls if one.function.name == TOOL]
        return bool(calls), {"tool_calls": calls}

    async def async_build_chat_completion_agentic_loop_plan(self, tools: Any, *_: Any, **given: Any) -> AgenticLoopPlan:
        """Answer the calls and run the model again."""
        results = [
            {"role": "tool", "tool_call_id": one.id, "content": report(json.loads(one.function.arguments))}
            for one in tools["tool_calls"]
        ]
        messages = [*given["messages"], given["response"].choices[0].message, *results]
        return AgenticLoopPlan(run_agentic_loop=True, request_patch=AgenticLoopRequestPatch(messages=messages))


def report(arguments: dict[str, Any]) -> str:
    """The tool itself."""
    city = str(arguments.get("city"))
    return f"{city}: {_REPORTS.get(city, '18 degrees and wind')}"


def model_says(request: Recorded) -> Reply:
    """The scripted model: it calls a tool, and answers with the tool's result once that is there."""
    last = request.body["messages"][-1]
    result = _result_of(last)
    if result is not None and result.startswith("Results of the search"):
        return Reply(text(_told(result), pieces=12), usage={"input_tokens": 900, "output_tokens": 80})
    if result is not None:
        city, _, weather = result.partition(": ")
        return Reply(text(f"In {city} it is {weather}.", pieces=6), usage={"input_tokens": 60, "output_tokens": 14})
    asked = _words_of(last)
    if "loopway" in asked.lower():
        query = " ".join(word for word in re.findall(r"\w+", asked.lower()) if not _COMMON.fullmatch(word))
        return Reply(text("Let me search the documentation.", pieces=4), call("web_search", {"query": query}))
    found = _CITY.search(json.dumps(last.get("content"), ensure_ascii=False))
    city = found[1] if found else "Oslo"
    return Reply(
        text("Let me look that up.", pieces=4),
        call(TOOL, {"city": city}),
        usage={"input_tokens": 30, "output_tokens": 20},
    )


def _words_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"text": content}]
    return " ".join(str(block.get("text") or "") for block in blocks)


def _told(result: str) -> str:
    """The first paragraph of the best result, and where it stands."""
    _, _, best = result.partition("[1] ")
    title, _, rest = best.partition("\n")
    address, _, passage = rest.partition("\n")
    paragraph = " ".join(passage.strip().partition("\n\n")[0].split())
    return f"{paragraph} ({title}, {address})" if paragraph else "The documentation does not say."


def _result_of(message: dict[str, Any]) -> str | None:
    """A tool's result, if this message brings one."""
    if message.get("role") == "tool":
        return str(message.get("content"))
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return next((str(one.get("content")) for one in blocks if one.get("type") == "tool_result"), None)


def run(port: int) -> int:
    """Serve the demo on 127.0.0.1 until a signal; gives the exit code.

    Args:
        port: 0 takes a free one.

    Raises:
        ConfigError: It is no port.
    """
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = HOST  # the scripted model is in this process, whatever proxy other hosts need
    logs.configure()
    try:
        serving.run(_serve(port))
    except serving.Unbound as wrong:
        print(f"loopway demo: {wrong}; take another port with --port", file=sys.stderr)
        return 1
    return 0


async def _serve(port: int) -> None:
    async with ScriptedModel({MODEL: model_says}) as model:
        config = {
            "server": {"host": HOST, "admin_port": None},
            "auth": {"mode": "open"},
            "upstreams": {"scripted": {"base_url": model.url, "dialects": ["messages", "chat_completions"]}},
            "models": [{"name": MODEL, "upstream": "scripted"}],
            "hooks": [{"web_search": {"provider": "local"}}],
        }
        gateway = build(config, hooks=[Weather()], adjust=lambda settings: at_address(settings, port=port))
        listening = serving.bind(HOST, port)
        await serving.serve(gateway, [listening], ready=lambda: _say(listening))


def _say(listening: socket.socket) -> None:
    url = "http://{}:{}".format(*listening.getsockname())
    print(_TEXT.format(url=url, json=_curl(url), stream=_curl(url, stream=True)), flush=True)


def _curl(url: str, *, stream: bool = False) -> str:
    """One line; `-i` shows the headers, `-N` each event as it comes."""
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 200}
    if stream:
        body["stream"] = True
    question = _QUESTION if stream else "How is the weather in Oslo?"
    body["messages"] = [{"role": "user", "content": question}]
    words = json.dumps(body, separators=(",", ":"))
    return f"curl -{'N' if stream else 'i'} {url}/v1/messages -H 'content-type: application/json' -d '{words}'"


_TEXT = """\
Loopway's demo: the gateway on {url}, over a scripted model in this process. No key, no network.
The model calls tools that the gateway answers: get_weather, a hook written by hand, and web_search, the built-in
search, here over Loopway's own documentation. Then the gateway runs the model again.

One answer, in JSON:

  {json}

Look for: `x-loopway-iterations: 2`, stop_reason `end_turn`, the weather in the text, no tool call.

A question about Loopway, answered from its own documentation, as a stream:

  {stream}

Look for: one message_start and one message_stop, the text of both model calls between them, no tool call.

POST /v1/chat/completions does the same. base_url for SDKs: {url} in Anthropic's, {url}/v1 in OpenAI's.
Stop it with Ctrl-C.
"""
