"""Hooks that do what a test tells them. This file must not know what a test checks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from loopway import AgenticLoopHook, AgenticLoopPlan, AgenticLoopRequestPatch

Planner = Callable[[dict[str, Any]], AgenticLoopPlan | Awaitable[AgenticLoopPlan] | Any]


def text_of(dialect: str, words: str, model: str = "m") -> dict[str, Any]:
    """A whole reply of one text, in a dialect."""
    if dialect == "messages":
        return {
            "id": "msg_made",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [{"type": "text", "text": words}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    return {
        "id": "chatcmpl-made",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": words}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


class Puppet(AgenticLoopHook):
    """Claims every call of one tool, in both dialects, and answers it with `result N`.

    Args:
        tool: The tool's name.
        owned: Whether only the server runs it.
        plan: Gives another plan than the rerun; is called with what the plan method got, and `surface`,
            `calls` (id, name, input) and `rerun` (the plan that answers the calls) beside it.
        gate: Gives another answer than the claim; is called with what the gate got.
    """

    def __init__(
        self,
        tool: str = "mine",
        *,
        owned: bool = True,
        plan: Planner | None = None,
        gate: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self.tool = tool
        if owned:
            self.server_fulfilled_tool_names = frozenset({tool})
        self._plan = plan
        self._gate = gate
        self.gates: list[dict[str, Any]] = []
        self.plans: list[dict[str, Any]] = []
        self.cleaned: list[AgenticLoopPlan] = []
        self.cancelled = 0

    async def async_should_run_agentic_loop(self, **given: Any) -> Any:  # type: ignore[override]
        self.gates.append(given)
        if self._gate is not None:
            answer = self._gate(given)
            if isinstance(answer, Awaitable):
                answer = await answer
            if answer is not None:
                return answer
        calls = self._calls(given["response"])
        return bool(calls), {"calls": calls}

    def _calls(self, response: Any) -> list[dict[str, Any]]:
        if "content" in response:
            blocks = [one for one in response.content if one["type"] == "tool_use"]
            found = [{"id": one["id"], "name": one["name"], "input": one["input"]} for one in blocks]
        else:
            found = [
                {"id": one.id, "name": one.function.name, "input": json.loads(one.function.arguments or "{}")}
                for one in response.choices[0].message.get("tool_calls") or []
            ]
        return [one for one in found if one["name"] == self.tool]

    async def async_build_agentic_loop_plan(self, **given: Any) -> Any:  # type: ignore[override]
        self.plans.append(given)
        surface = given["kwargs"]["_agentic_loop_api_surface"]
        calls = given["tools"]["calls"]
        turns = self._messages(calls) if surface == "messages" else self._chat(calls)
        patch = AgenticLoopRequestPatch(messages=[*given["messages"], *turns])
        plan: Any = AgenticLoopPlan(run_agentic_loop=True, request_patch=patch)
        if self._plan is not None:
            try:
                plan = self._plan({**given, "surface": surface, "calls": calls, "rerun": plan})
                if isinstance(plan, Awaitable):
                    plan = await plan
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return plan

    @staticmethod
    def _messages(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {"role": "assistant", "content": [{"type": "tool_use", **one} for one in calls]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": one["id"], "content": f"result {one['input'].get('n')}"}
                    for one in calls
                ],
            },
        ]

    @staticmethod
    def _chat(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        made = [
            {
                "id": one["id"],
                "type": "function",
                "function": {"name": one["name"], "arguments": json.dumps(one["input"])},
            }
            for one in calls
        ]
        results = [
            {"role": "tool", "tool_call_id": one["id"], "content": f"result {one['input'].get('n')}"} for one in calls
        ]
        return [{"role": "assistant", "content": None, "tool_calls": made}, *results]

    async def async_agentic_loop_cleanup_hook(self, plan: AgenticLoopPlan, kwargs: dict[str, Any]) -> None:
        self.cleaned.append(plan)
