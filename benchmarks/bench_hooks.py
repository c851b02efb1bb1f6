"""The hooks of the benchmark: a classic one that answers a tool, the same as a server tool, and one that only looks."""

from __future__ import annotations

import json
from typing import Any

from loopway import AgenticLoopHook, AgenticLoopPlan, AgenticLoopRequestPatch, server_tool

TOOL = "bench_tool"


class Answer(AgenticLoopHook):
    """Answers every call of the tool with a short text."""

    server_fulfilled_tool_names = frozenset({TOOL})

    async def async_should_run_agentic_loop(self, response: Any, **_more: Any) -> tuple[bool, Any]:
        """Claim the calls."""
        if "choices" in response:
            calls = [
                {"id": call.id, "name": call.function.name, "input": json.loads(call.function.arguments)}
                for call in response.choices[0].message.tool_calls or []
            ]
        else:
            calls = [block for block in response.content if block["type"] == "tool_use"]
        return bool(calls), {"tool_calls": calls}

    async def async_build_agentic_loop_plan(
        self, tools: Any, messages: Any, kwargs: Any, response: Any, **_more: Any
    ) -> AgenticLoopPlan:
        """Answer them."""
        calls = tools["tool_calls"]
        if kwargs["_agentic_loop_api_surface"] == "messages":
            results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "42"} for call in calls]
            turns = [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
        else:
            turns = [response.choices[0].message]
            turns += [{"role": "tool", "tool_call_id": call["id"], "content": "42"} for call in calls]
        patch = AgenticLoopRequestPatch(messages=[*messages, *turns])
        return AgenticLoopPlan(run_agentic_loop=True, request_patch=patch)


class Look(AgenticLoopHook):
    """Looks at every reply of the models named `…watched` and claims none."""

    server_fulfilled_tool_names = frozenset({"looked_for"})

    async def async_should_run_agentic_loop(self, **_more: Any) -> tuple[bool, Any]:
        """Claim nothing."""
        return False, {}


@server_tool(name="served_tool", models=["four"])
async def served_for_four(n: int) -> str:
    """Answers with a number."""
    return str(n)


answer = Answer()
look = Look()
