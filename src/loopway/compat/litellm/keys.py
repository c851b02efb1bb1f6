"""What each key of LiteLLM's file comes to here, as tables.

This file must not know how a value is translated. A key that is in no table is refused: ignoring it could change
answers. Source: LiteLLM's reference of all settings (docs/proxy/config_settings).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

SECTIONS: Final = frozenset(
    ("model_list", "litellm_settings", "general_settings", "router_settings", "environment_variables")
)
"""Top-level keys that show that a file is of LiteLLM's shape."""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """What stands before the slash of `litellm_params.model`.

    Attributes:
        dialect: The wire format of its servers.
        base_url: Its public API host; None if there is none.
        base_variables: Environment variables that LiteLLM reads where `api_base` is left out.
        key_variables: The same for `api_key`.
        endpoint: What LiteLLM lets `api_base` end in, behind what our `base_url` is.
    """

    dialect: str
    base_url: str | None
    base_variables: tuple[str, ...]
    key_variables: tuple[str, ...]
    endpoint: str


PROVIDERS: Final[Mapping[str, Provider]] = {
    "anthropic": Provider(
        dialect="messages",
        base_url="https://api.anthropic.com",
        base_variables=("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"),
        key_variables=("ANTHROPIC_API_KEY",),
        endpoint="/messages",
    ),
    "openai": Provider(
        dialect="chat_completions",
        base_url="https://api.openai.com",
        base_variables=("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        key_variables=("OPENAI_API_KEY",),
        endpoint="/chat/completions",
    ),
    "hosted_vllm": Provider(
        dialect="chat_completions",
        base_url=None,
        base_variables=("HOSTED_VLLM_API_BASE",),
        key_variables=("HOSTED_VLLM_API_KEY",),
        endpoint="/chat/completions",
    ),
}

OBSERVERS: Final = frozenset(
    ("arize", "arize_phoenix", "athina", "azure_storage", "braintrust", "cloudzero", "custom_callback_api", "datadog",
     "datadog_llm_observability", "deepeval", "dynamodb", "email", "galileo", "gcs_bucket", "gcs_pubsub",
     "generic_api", "greenscale", "helicone", "humanloop", "lago", "langfuse", "langfuse_otel", "langsmith",
     "langtrace", "literalai", "logfire", "logspend", "lunary", "mlflow", "openmeter", "opentelemetry", "opik", "otel",
     "posthog", "prometheus", "promptlayer", "resend_email", "s3", "s3_v2", "sentry", "smtp_email", "sqs", "supabase",
     "traceloop", "vector", "wandb", "weave_otel")
)  # fmt: skip
"""Named callbacks that only watch."""

_LOGGING = "it only concerns LiteLLM's own logs"
_ONE = "it only matters where LiteLLM chooses between several deployments"
_COST = "it only concerns what LiteLLM counts as cost"
_TEXT = "Loopway changes no request by itself"
_NOT_HERE = "Loopway has nothing like it"
_DATABASE = "Loopway has no database; write the keys into auth.keys of a file of Loopway's own shape"

PARAMS: Final = frozenset(
    ("model", "api_base", "base_url", "api_key", "max_agentic_loops", "timeout", "request_timeout", "num_retries",
     "max_retries", "extra_headers", "headers", "organization", "ssl_verify", "custom_llm_provider")
)  # fmt: skip
"""Keys of `litellm_params` that are translated."""

PARAMS_IGNORED: Final[Mapping[str, str]] = {
    "stream_timeout": "the one timeout holds for streams as well",
    "rpm": _ONE,
    "tpm": _ONE,
    "weight": _ONE,
    "order": _ONE,
    "tags": _ONE,
    "cooldown_time": _ONE,
    "input_cost_per_token": _COST,
    "output_cost_per_token": _COST,
    "input_cost_per_second": _COST,
    "output_cost_per_second": _COST,
    "cache_creation_input_token_cost": _COST,
    "cache_read_input_token_cost": _COST,
    "input_cost_per_token_batches": _COST,
    "output_cost_per_token_batches": _COST,
    "max_budget": _COST,
    "budget_duration": _COST,
    "use_in_pass_through": "pass-through endpoints need no mark here",
}

PARAMS_REFUSED: Final[Mapping[str, str]] = {
    "drop_params": _TEXT,
    "additional_drop_params": _TEXT,
    "modify_params": _TEXT,
    "allowed_openai_params": _TEXT,
    "extra_body": _TEXT,
    "max_parallel_requests": "the nearest is server.max_concurrent_requests, for the whole gateway",
    "guardrails": "write it as a hook",
    "cache_control_injection_points": "write it as a hook with async_pre_call_hook",
    "merge_reasoning_content_in_choices": _TEXT,
    "mock_response": _NOT_HERE,
}

LITELLM: Final = frozenset(
    (
        "callbacks",
        "request_timeout",
        "num_retries",
        "ssl_verify",
        "json_logs",
        "fallbacks",
        "pre_call_rules",
        "post_call_rules",
    )
)
"""Keys of `litellm_settings` that are translated."""

LITELLM_IGNORED: Final[Mapping[str, str]] = {
    "set_verbose": _LOGGING,
    "success_callback": _LOGGING,
    "failure_callback": _LOGGING,
    "service_callback": _LOGGING,
    "service_callbacks": _LOGGING,
    "audit_log_callbacks": _LOGGING,
    "store_audit_logs": _LOGGING,
    "turn_off_message_logging": _LOGGING,
    "redact_user_api_key_info": _LOGGING,
    "redact_messages_in_exceptions": _LOGGING,
    "langfuse_default_tags": _LOGGING,
    "log_raw_request_response": _LOGGING,
    "suppress_debug_info": _LOGGING,
    "prometheus_metrics_config": _LOGGING,
    "prometheus_initialize_budget_metrics": _LOGGING,
    "require_auth_for_metrics_endpoint": _LOGGING,
    "custom_prometheus_metadata_labels": _LOGGING,
    "custom_prometheus_tags": _LOGGING,
    "s3_callback_params": _LOGGING,
    "datadog_params": _LOGGING,
    "telemetry": "Loopway sends nothing anywhere by itself",
    "disable_end_user_cost_tracking": _COST,
    "disable_end_user_cost_tracking_prometheus_only": _COST,
    "key_generation_settings": "there is no key generation",
    "enable_key_alias_format_validation": "there is no key generation",
    "disable_hf_tokenizer_download": "there are no tokenizers",
    "allowed_fails": _ONE,
    "cooldown_time": _ONE,
    "cache_params": "it only matters with cache: true",
    "disable_copilot_system_to_assistant": "it only concerns another provider",
    "disable_add_transform_inline_image_block": "it only concerns another provider",
}

LITELLM_REFUSED: Final[Mapping[str, str]] = {
    "drop_params": _TEXT,
    "modify_params": _TEXT,
    "cache": _NOT_HERE,
    "guardrails": "write it as a hook",
    "default_fallbacks": "write fallbacks, model by model",
    "context_window_fallbacks": "only fallbacks are there, before the first byte",
    "content_policy_fallbacks": "only fallbacks are there, before the first byte",
    "max_budget": _NOT_HERE,
    "budget_duration": _NOT_HERE,
    "default_team_settings": _NOT_HERE,
    "default_internal_user_params": _NOT_HERE,
    "max_internal_user_budget": _NOT_HERE,
    "force_ipv4": _NOT_HERE,
    "enable_preview_features": _NOT_HERE,
    "enable_json_schema_validation": _NOT_HERE,
    "use_chat_completions_url_for_anthropic_messages": "Loopway does not turn one wire format into another",
    "mcp_aliases": "write an mcp hook",
}

GENERAL: Final = frozenset(("master_key", "global_max_parallel_requests", "max_request_size_mb"))
"""Keys of `general_settings` that are translated."""

GENERAL_IGNORED: Final[Mapping[str, str]] = dict.fromkeys(
    ("alerting", "alerting_threshold", "alert_types", "alert_to_webhook_url", "alerting_args",
     "store_prompts_in_spend_logs", "disable_spend_logs", "disable_spend_updates", "disable_reset_budget",
     "disable_error_logs", "proxy_batch_write_at", "proxy_budget_rescheduler_min_time",
     "proxy_budget_rescheduler_max_time", "maximum_spend_logs_retention_period",
     "maximum_spend_logs_retention_interval", "ui_access_mode", "disable_master_key_return",
     "disable_adding_master_key_hash_to_db", "database_connection_pool_limit", "database_connection_timeout",
     "allow_requests_on_db_unavailable", "background_health_checks", "health_check_interval",
     "health_check_details", "proxy_logging", "disable_admin_ui"),
    "it only concerns LiteLLM's own logs, alerts, health checks, database and pages",
)  # fmt: skip

GENERAL_REFUSED: Final[Mapping[str, str]] = {
    "database_url": _DATABASE,
    "store_model_in_db": _DATABASE,
    "custom_auth": "write the keys into auth.keys of a file of Loopway's own shape",
    "enable_jwt_auth": "clients are known by their keys only",
    "enable_oauth2_auth": "clients are known by their keys only",
    "key_management_system": "give keys by ${NAME}",
    "max_parallel_requests": "the nearest is global_max_parallel_requests",
    "completion_model": "a request names its model",
    "pass_through_endpoints": _NOT_HERE,
    "forward_client_headers_to_llm_api": "anthropic-* and openai-* headers travel; for others write extra_headers",
    "enforce_user_param": "write it as a hook with async_pre_call_hook",
    "infer_model_from_keys": "write the models into model_list",
    "allowed_routes": _NOT_HERE,
}

ROUTER: Final = frozenset(("num_retries", "timeout", "fallbacks"))
"""Keys of `router_settings` that are translated."""

ROUTER_IGNORED: Final[Mapping[str, str]] = dict.fromkeys(
    ("routing_strategy", "routing_strategy_args", "redis_host", "redis_port", "redis_password", "redis_url",
     "redis_db", "allowed_fails", "cooldown_time", "disable_cooldowns", "allowed_fails_policy", "set_verbose",
     "debug_level", "cache_responses", "retry_after", "stream_timeout", "enable_health_check_routing",
     "default_priority", "polling_interval", "assistants_config", "router_general_settings"),
    _ONE,
)  # fmt: skip

ROUTER_REFUSED: Final[Mapping[str, str]] = {
    "model_group_alias": "write the alias as one more entry of model_list",
    "default_fallbacks": "write fallbacks, model by model",
    "context_window_fallbacks": "only fallbacks are there, before the first byte",
    "content_policy_fallbacks": "only fallbacks are there, before the first byte",
    "retry_policy": "write num_retries",
    "model_group_retry_policy": "write num_retries in litellm_params",
    "enable_pre_call_checks": _NOT_HERE,
    "enable_tag_filtering": _NOT_HERE,
    "default_litellm_params": "write them into each litellm_params",
    "provider_budget_config": _NOT_HERE,
    "max_fallbacks": "a model has one fallback",
}

TOP_IGNORED: Final[Mapping[str, str]] = {"callback_settings": _LOGGING}

TOP_REFUSED: Final[Mapping[str, str]] = {
    "environment_variables": "set them in the environment of the process",
    "guardrails": "write it as a hook",
    "mcp_servers": "write an mcp hook, in a file of Loopway's own shape",
    "search_tools": "write a web_search hook, in a file of Loopway's own shape",
    "include": "write everything into one file",
    "vector_store_registry": _NOT_HERE,
    "files_settings": _NOT_HERE,
    "finetune_settings": _NOT_HERE,
    "prompts": _NOT_HERE,
    "credential_list": "write api_base and api_key into each litellm_params",
    "policies": "write it as a hook",
}
