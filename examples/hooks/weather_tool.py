"""A tool that the server answers: the client offers `get_weather`, and never has to run it.

Use it as the pattern for any tool whose answer lives on the server: a database, a search, a price list. One class
serves both dialects: a gate finds the calls, a plan answers them and lets the model go on.

    hooks: [weather_tool.weather_tool]
"""

from __future__ import annotations

import json
from typing import Any

from loopway import AgenticLoopHook, AgenticLoopPlan, AgenticLoopRequestPatch

Json = dict[str, Any]

TOOL = "get_weather"
REPORTS = {"oslo": "6 °C, rain", "lisbon": "19 °C, clear"}


async def weather(city: str) -> tuple[str, bool]:
    """The report, and whether there is one. A real tool would await a service here."""
    report = REPORTS.get(city.strip().lower())
    return (report, True) if report else (f"no station in {city!r}; ask for another city", False)


class WeatherTool(AgenticLoopHook):
    """Answers all calls of `get_weather` in one reply with one rerun."""

    server_fulfilled_tool_names = frozenset({TOOL})

    async def async_should_run_agentic_loop(
        self,
        response: Any,
        model: str,
        messages: list[Json],
        tools: list[Json] | None,
        stream: bool,
        custom_llm_provider: str,
        kwargs: Json,
    ) -> tuple[bool, Any]:
        """Messages: claim a reply that calls the tool."""
        calls = [block for block in response.content if block.type == "tool_use" and block.name == TOOL]
        return bool(calls), {"calls": calls}

    async def async_build_agentic_loop_plan(
        self,
        tools: Any,
        model: str,
        messages: list[Json],
        response: Any,
        anthropic_messages_provider_config: Any,
        anthropic_messages_optional_request_params: Json,
        logging_obj: Any,
        stream: bool,
        kwargs: Json,
    ) -> AgenticLoopPlan:
        """Messages: the model's turn as it was (thinking too) but for other calls, then one result per call."""
        turn = [block for block in response.content if block.type != "tool_use" or block.name == TOOL]
        results = []
        for call in tools["calls"]:
            text, found = await weather(str(call.input.get("city", "")))
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": not found})
        turns = [{"role": "assistant", "content": turn}, {"role": "user", "content": results}]
        return AgenticLoopPlan(
            run_agentic_loop=True, request_patch=AgenticLoopRequestPatch(messages=[*messages, *turns])
        )

    async def async_should_run_chat_completion_agentic_loop(
        self,
        response: Any,
        model: str,
        messages: list[Json],
        tools: list[Json] | None,
        stream: bool,
        custom_llm_provider: str,
        kwargs: Json,
    ) -> tuple[bool, Any]:
        """Chat Completions: claim a reply that calls the tool."""
        calls = [call for call in response.choices[0].message.tool_calls or [] if call.function.name == TOOL]
        return bool(calls), {"calls": calls}

    async def async_build_chat_completion_agentic_loop_plan(
        self,
        tools: Any,
        model: str,
        messages: list[Json],
        response: Any,
        optional_params: Json,
        logging_obj: Any,
        stream: bool,
        kwargs: Json,
    ) -> AgenticLoopPlan:
        """Chat Completions: the model's turn with its calls, then one `tool` message per call."""
        turn = {"role": "assistant", "content": response.choices[0].message.content, "tool_calls": tools["calls"]}
        results = []
        for call in tools["calls"]:
            text, _ = await weather(str(json.loads(call.function.arguments).get("city", "")))
            results.append({"role": "tool", "tool_call_id": call.id, "content": text})
        return AgenticLoopPlan(
            run_agentic_loop=True, request_patch=AgenticLoopRequestPatch(messages=[*messages, turn, *results])
        )


weather_tool = WeatherTool()
