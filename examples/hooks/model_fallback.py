"""Another model where one refuses or says nothing: a patch with nothing but `model`.

Use it where a small model serves most requests and a larger one should take over the rest, unseen by the client. The
other model must be one of the configured `models`; it may live on another upstream that speaks the same dialect. In a
stream, what the first model said has been shown already; set `loop.interim_text: never` to hold it back.

    hooks: [model_fallback.model_fallback]
"""

from __future__ import annotations

from typing import Any

from loopway import AgenticLoopHook, AgenticLoopPlan, AgenticLoopRequestPatch

Json = dict[str, Any]


def is_no_answer(response: Any, surface: str) -> bool:
    """Whether a reply is a refusal, or has neither text nor a call."""
    if surface == "messages":
        said = any(block.type == "tool_use" or str(block.get("text", "")).strip() for block in response.content)
        return response.stop_reason == "refusal" or not said
    choice = response.choices[0]
    refused = choice.finish_reason == "content_filter" or bool(choice.message.get("refusal"))
    return refused or not (choice.message.tool_calls or str(choice.message.content or "").strip())


class ModelFallback(AgenticLoopHook):
    """Asks another model when a reply is none.

    Args:
        instead: The model to ask, by the model that failed; both by their configured names. A chain ends with a model
            that is no key.
    """

    def __init__(self, instead: dict[str, str]) -> None:
        self.instead = instead

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
        """Claim what is no answer. The context names the model, so that a second fallback is no repetition."""
        failed = model in self.instead and is_no_answer(response, kwargs["_agentic_loop_api_surface"])
        return failed, {"instead_of": model}

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
        """The same request, another model."""
        patch = AgenticLoopRequestPatch(model=self.instead[model])
        return AgenticLoopPlan(run_agentic_loop=True, request_patch=patch)


model_fallback = ModelFallback({"claude-small": "claude"})
