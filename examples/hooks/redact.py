"""A tool whose results the client must not see in full: the post hook goes over the reply of the rerun.

Use it where the model needs a secret to reason with, and the client gets its answer without it. The reply of a rerun
that this hook planned is held back, in a stream too, until the post hook has answered; if that fails, the exchange
fails, so that nothing slips through.

    hooks: [redact.redact]
"""

from __future__ import annotations

import json
import re
from typing import Any

from loopway import AgenticLoopHook, AgenticLoopPlan, AgenticLoopRequestPatch

Json = dict[str, Any]

TOOL = "look_up_customer"
CUSTOMERS = {"c-17": {"name": "Ada", "card": "4111 1111 1111 1111"}}
CARD = re.compile(r"\b\d{4}(?:[ -]?\d{4}){3}\b")


def record(number: Any) -> str:
    """A customer's record, as the model gets it."""
    return json.dumps(CUSTOMERS.get(str(number), {"error": "no such customer"}))


class Redact(AgenticLoopHook):
    """Looks customers up, and keeps their card numbers out of the answer."""

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
        """Messages: claim a reply that looks a customer up."""
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
        """Messages: answer with the whole record."""
        turn = [block for block in response.content if block.type != "tool_use" or block.name == TOOL]
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": record(call.input.get("number"))}
            for call in tools["calls"]
        ]
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
        """Chat Completions: the same."""
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
        """Chat Completions: the same."""
        turn = {"role": "assistant", "content": response.choices[0].message.content, "tool_calls": tools["calls"]}
        results = [
            {
                "role": "tool",
                "tool_call_id": call.id,
                "content": record(json.loads(call.function.arguments).get("number")),
            }
            for call in tools["calls"]
        ]
        return AgenticLoopPlan(
            run_agentic_loop=True, request_patch=AgenticLoopRequestPatch(messages=[*messages, turn, *results])
        )

    async def async_post_agentic_loop_response_hook(self, response: Any, plan: AgenticLoopPlan, kwargs: Json) -> Any:
        """Both dialects: no card number in any text. `response` is a copy, so it can be changed and returned."""
        if "content" in response:
            for block in response.content:
                if block.type == "text":
                    block.text = CARD.sub("[card]", block.text)
        else:
            message = response.choices[0].message
            message.content = CARD.sub("[card]", message.content or "") or None
        return response


redact = Redact()
