"""The hook: every extension point, on one screen.

Method names and parameters are those of LiteLLM's agentic loop hook, called with keywords, so that a callback written
for it runs here. This file must not know who calls a hook.
"""

from __future__ import annotations

from typing import Any

from loopway.engine.plan import AgenticLoopPlan


class AgenticLoopHook:
    """Override what you need; what is not overridden is never called.

    One instance serves all exchanges at once: keep what belongs to one exchange in `kwargs` (a plan's
    `request_patch.kwargs` is there in the next iteration), never on `self`.

    `response` reads as attributes and as a mapping, at every level; its blocks are `dict`s. `messages`, `tools`,
    `response` and `kwargs` are copies: change them as you like, nothing of it reaches the wire.
    """

    server_fulfilled_tool_names: frozenset[str] = frozenset()
    """Tools that only the server runs. With it the hook is asked only when a request offers one of them, other tools
    stream live, and a call to one of these never reaches the client."""

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> Any:
        """Before the first iteration.

        Args:
            user_api_key_dict: The caller: `key_alias`, `models`, `metadata`. Never the key.
            cache: `await cache.async_get_cache(key)`, `await cache.async_set_cache(key, value, ttl=seconds)`.
            data: The request body.
            call_type: `anthropic_messages` or `acompletion`.

        Returns:
            The changed request; None takes `data` as it is now; a text rejects it with a 400 that says so.

        Raises:
            loopway.Rejected: Rejects with its text. So does an exception with a 4xx `status_code` and a `detail`.
        """
        return data

    async def async_should_run_agentic_loop(
        self,
        response: Any,
        model: str,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        stream: bool,
        custom_llm_provider: str,
        kwargs: dict[str, Any],
    ) -> tuple[bool, Any]:
        """The gate, after each reply: `(True, context)` claims it, `(False, {})` passes."""
        return False, {}

    async def async_should_run_chat_completion_agentic_loop(
        self,
        response: Any,
        model: str,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        stream: bool,
        custom_llm_provider: str,
        kwargs: dict[str, Any],
    ) -> tuple[bool, Any]:
        """The gate for Chat Completions; if not overridden, the one above is asked."""
        return False, {}

    async def async_build_agentic_loop_plan(
        self,
        tools: Any,
        model: str,
        messages: list[dict[str, Any]],
        response: Any,
        anthropic_messages_provider_config: Any,
        anthropic_messages_optional_request_params: dict[str, Any],
        logging_obj: Any,
        stream: bool,
        kwargs: dict[str, Any],
    ) -> AgenticLoopPlan:
        """The plan for a reply that the gate claimed; `tools` is the gate's context."""
        return AgenticLoopPlan()

    async def async_build_chat_completion_agentic_loop_plan(
        self,
        tools: Any,
        model: str,
        messages: list[dict[str, Any]],
        response: Any,
        optional_params: dict[str, Any],
        logging_obj: Any,
        stream: bool,
        kwargs: dict[str, Any],
    ) -> AgenticLoopPlan:
        """The plan for Chat Completions; if not overridden, the one above is asked."""
        return AgenticLoopPlan()

    async def async_post_agentic_loop_response_hook(
        self, response: Any, plan: AgenticLoopPlan, kwargs: dict[str, Any]
    ) -> Any:
        """May replace the reply of the rerun that this hook planned; None takes `response` as it is now.

        In a stream that reply is held back until this has answered.
        """
        return response

    async def async_agentic_loop_cleanup_hook(self, plan: AgenticLoopPlan, kwargs: dict[str, Any]) -> None:
        """Once per plan, when the exchange is over, on every exit: answered, failed, cancelled."""


HOOK_METHODS = tuple(name for name in vars(AgenticLoopHook) if name.startswith("async_"))


def overrides(hook: object, method: str) -> bool:
    """Whether a hook has this method of its own."""
    own = getattr(hook, "__dict__", {}).get(method) or getattr(type(hook), method, None)
    return own is not None and own is not getattr(AgenticLoopHook, method)
