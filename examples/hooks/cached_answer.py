"""An answer that the client gets word for word: `response_override` ends the loop without a further model call.

Use it where a tool's result *is* the answer and must not be paraphrased (a legal text, a price, a finished report), or
where it is already there and a rerun would only cost time. The model picks the answer by calling `ready_answer`.

    hooks: [cached_answer.cached_answer]
"""

from __future__ import annotations

import json
from typing import Any

from loopway import AgenticLoopHook, AgenticLoopPlan, AgenticLoopRequestPatch

Json = dict[str, Any]

TOOL = "ready_answer"
ANSWERS = {
    "returns": "You may return any item within 30 days, unused and in its box.",
    "warranty": "Two years from the day of purchase, on parts and labour.",
}


def topic_of(response: Any, surface: str) -> str | None:
    """The topic that the model asks for, or None if it does not call the tool."""
    if surface == "messages":
        inputs = [block.input for block in response.content if block.type == "tool_use" and block.name == TOOL]
    else:
        calls = response.choices[0].message.tool_calls or []
        inputs = [json.loads(call.function.arguments) for call in calls if call.function.name == TOOL]
    return str(inputs[0].get("topic", "")) if inputs else None


def saying(text: str, response: Any, surface: str) -> Json:
    """The model's reply with this text instead of all that it said: a whole reply in the dialect's own shape."""
    if surface == "messages":
        return {**response, "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
    message = {"role": "assistant", "content": text}
    return {**response, "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]}


class CachedAnswer(AgenticLoopHook):
    """One gate and one plan for both dialects: what is not overridden for Chat Completions falls back to these."""

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
        """Claim a reply that asks for a ready answer."""
        topic = topic_of(response, kwargs["_agentic_loop_api_surface"])
        return topic is not None, {"topic": topic}

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
        """Give the answer that is there; where there is none, let the model answer without tools."""
        surface = kwargs["_agentic_loop_api_surface"]
        text = ANSWERS.get(tools["topic"])
        if text is not None:
            return AgenticLoopPlan(response_override=saying(text, response, surface))
        no_tools: Any = {"type": "none"} if surface == "messages" else "none"
        patch = AgenticLoopRequestPatch(optional_params={"tool_choice": no_tools})
        return AgenticLoopPlan(run_agentic_loop=True, request_patch=patch)


cached_answer = CachedAnswer()
