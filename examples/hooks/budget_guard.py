"""A budget for each exchange: the loop ends when its model calls have used so many tokens.

Use it beside hooks that run tools, **before** them in the list, so that it is asked first. What it has counted lives
in `kwargs`: a plan that skips may add to them, and the next iteration has it. Nothing is kept on `self`, so one
instance serves all exchanges at once.

    hooks: [budget_guard.budget_guard, weather_tool.weather_tool]
"""

from __future__ import annotations

from typing import Any

from loopway import AgenticLoopHook, AgenticLoopPlan, AgenticLoopRequestPatch

Json = dict[str, Any]

SPENT = "budget_guard_spent"


def tokens_of(usage: Json) -> int:
    """All tokens of one model call, as either dialect counts them."""
    if "total_tokens" in usage:
        return int(usage["total_tokens"])
    counts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    return sum(usage.get(name) or 0 for name in counts)


class BudgetGuard(AgenticLoopHook):
    """Ends the loop once an exchange has used its budget; the client gets the reply as far as it goes.

    Args:
        tokens: Most tokens of all model calls of one exchange; the call that goes over is the last one.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

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
        """Claim every reply that calls tools: only such a reply can lead to another model call."""
        if kwargs["_agentic_loop_api_surface"] == "messages":
            calls = any(block.type == "tool_use" for block in response.content)
        else:
            calls = bool(response.choices[0].message.tool_calls)
        return calls, {"spent": kwargs.get(SPENT, 0) + tokens_of(response.get("usage") or {})}

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
        """Over the budget: terminate. Within it: remember the count, and let the next hook decide."""
        if tools["spent"] >= self.tokens:
            return AgenticLoopPlan(terminate=True, stop_reason=f"{tools['spent']} tokens used")
        return AgenticLoopPlan(request_patch=AgenticLoopRequestPatch(kwargs={SPENT: tools["spent"]}))


budget_guard = BudgetGuard(tokens=50_000)
