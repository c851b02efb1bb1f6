"""One hook, written for LiteLLM, that both gateways run in `make bench-peers`: it answers a tool call of Messages."""

from __future__ import annotations

from typing import Any

from litellm.integrations.custom_logger import CustomLogger
from litellm.types.integrations.custom_logger import AgenticLoopPlan, AgenticLoopRequestPatch


class Answer(CustomLogger):
    """Answers every call with a short text."""

    async def async_should_run_agentic_loop(self, response: Any, *_: Any, **_more: Any) -> tuple[bool, dict[str, Any]]:
        """Claim the calls."""
        content = response["content"] if isinstance(response, dict) else response.content
        calls = [block for block in content if block["type"] == "tool_use"]
        return bool(calls), {"tool_calls": calls}

    async def async_build_agentic_loop_plan(
        self, tools: dict[str, Any], messages: list[Any], *_: Any, **_more: Any
    ) -> AgenticLoopPlan:
        """Answer them."""
        calls = tools["tool_calls"]
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "42"} for call in calls]
        turns = [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
        return AgenticLoopPlan(
            run_agentic_loop=True, request_patch=AgenticLoopRequestPatch(messages=[*messages, *turns])
        )


answer = Answer()
