"""LiteLLM's file shape in ours: what has an equal is translated, the rest warned of or refused.

This file must not know how settings are checked: values go over as they are, and a wrong one is told by `settings`,
under LiteLLM's own key path.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from loopway.compat.litellm import keys
from loopway.errors import Problem
from loopway.settings import REFUSED, Settings, Translation

_PARAMS = "litellm_params"
_OURS = frozenset(field.encode_name for field in msgspec.structs.fields(Settings))
_DEFAULT_REQUEST_SECONDS = 600
_MEBIBYTE = 1_048_576
_REASON = "so it cannot be honoured, and ignoring it could change answers"


def is_litellm_shape(data: Mapping[str, Any]) -> bool:
    """Whether a file has a top-level key of LiteLLM's."""
    return any(key in keys.SECTIONS for key in data)


def translate(data: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Translation | None:
    """The file in our shape; None if it is not of LiteLLM's. A `settings.Translator`.

    Args:
        data: The file's data, its texts already read from the environment.
        environ: Where keys and addresses are looked for that the file leaves to LiteLLM's own variables.
    """
    if not is_litellm_shape(data):
        return None
    ours = [key for key in data if key in _OURS]
    if ours and "model_list" not in data:
        theirs = [key for key in data if key in keys.SECTIONS]
        return Translation(
            data={key: value for key, value in data.items() if key not in theirs},
            problems=[Problem(key, _mixed(f"LiteLLM's file shape, {ours[0]}", "Loopway's")) for key in theirs],
        )
    return _Translator(data, environ or {}).run(ours)


def _mixed(one: str, other: str) -> str:
    return f"this key is of {one} of {other}; use one shape in a file"


class _Translator:
    """One file on its way."""

    def __init__(self, data: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self._data = data
        self._environ = environ
        self._problems: list[Problem] = []
        self._warnings: list[Problem] = []
        self._paths: dict[str, str] = {"models": "model_list", "upstreams": "model_list"}
        self._upstreams: dict[str, dict[str, Any]] = {}
        self._known: dict[str, str] = {}  # what makes an upstream distinct, to its name
        self._models: Any = []

    def run(self, ours: Iterable[str]) -> Translation:
        """Translate everything."""
        for key in ours:
            self._refuse(key, _mixed("Loopway's file shape, model_list", "LiteLLM's"))
        rest = {key: value for key, value in self._data.items() if key not in keys.SECTIONS and key not in _OURS}
        rest.update({key: self._data[key] for key in ("environment_variables",) if key in self._data})
        self._sort(rest, "", frozenset(), keys.TOP_IGNORED, keys.TOP_REFUSED)
        general = self._section("general_settings", keys.GENERAL, keys.GENERAL_IGNORED, keys.GENERAL_REFUSED)
        litellm = self._section("litellm_settings", keys.LITELLM, keys.LITELLM_IGNORED, keys.LITELLM_REFUSED)
        router = self._section("router_settings", keys.ROUTER, keys.ROUTER_IGNORED, keys.ROUTER_REFUSED)
        self._deployments(litellm, router)
        self._fallbacks(router, "router_settings.fallbacks")
        self._fallbacks(litellm, "litellm_settings.fallbacks")
        made: dict[str, Any] = {
            "server": self._server(general, litellm, router),
            "auth": self._auth(general),
            "upstreams": self._upstreams or REFUSED,
            "models": self._models,
            "hooks": self._hooks(litellm),
            "rules": self._rules(litellm),
        }
        if litellm.get("json_logs") is True:
            made["telemetry"] = {"log_format": "json"}
        elif litellm.get("json_logs") not in (None, False, REFUSED):
            self._refuse("litellm_settings.json_logs", "is no boolean; write true or false")
        return Translation(data=made, warnings=self._warnings, problems=self._problems, paths=self._paths)

    # Keys.

    def _refuse(self, path: str, text: str) -> Any:
        self._problems.append(Problem(path, text))
        return REFUSED

    def _warn(self, path: str, text: str) -> None:
        self._warnings.append(Problem(path, text))

    def _section(
        self, name: str, used: frozenset[str], ignored: Mapping[str, str], refused: Mapping[str, str]
    ) -> dict[str, Any]:
        value = self._data.get(name)
        if value is None or value is REFUSED:
            return {}
        if not isinstance(value, Mapping):
            self._refuse(name, f"is {_kind(value)}; write a mapping")
            return {}
        self._sort(value, name + ".", used, ignored, refused)
        return {key: item for key, item in value.items() if key in used and item is not None}

    def _sort(
        self,
        value: Mapping[Any, Any],
        prefix: str,
        used: frozenset[str],
        ignored: Mapping[str, str],
        refused: Mapping[str, str],
    ) -> None:
        """Warn of what changes no answer, refuse what could; a key that is switched off is neither."""
        for key, item in value.items():
            path = f"{prefix}{key}"
            if key in used or item is None or item is REFUSED:
                continue
            if key in ignored:
                self._warn(path, f"this is not used: {ignored[key]}")
            elif key in refused:
                if item not in (False, 0, "", [], {}):
                    self._refuse(path, f"there is no equal of this in Loopway, {_REASON}; {refused[key]}")
            else:
                close = difflib.get_close_matches(str(key), [*used, *ignored, *refused], 1)
                advice = f"did you mean {close[0]}?" if close else "take it away"
                self._refuse(path, f"this key (unknown) has no equal in Loopway, {_REASON}; {advice}")

    # Models and upstreams.

    def _deployments(self, litellm: Mapping[str, Any], router: Mapping[str, Any]) -> None:
        listed = self._data.get("model_list")
        if listed is REFUSED:
            self._models = REFUSED
        elif listed is None:
            self._models = self._refuse("model_list", "is missing; write a list of models")
        elif not isinstance(listed, list):
            self._models = self._refuse("model_list", f"is {_kind(listed)}; write a list of models")
        else:
            defaults = _defaults(litellm, router)
            names: dict[str, int] = {}
            for index, entry in enumerate(listed):
                self._models.append(self._deployment(entry, index, names, defaults))

    def _deployment(
        self, entry: Any, index: int, names: dict[str, int], defaults: Mapping[str, tuple[Any, str]]
    ) -> Any:
        spot = f"model_list[{index}]"
        if entry is REFUSED:
            return REFUSED
        if not isinstance(entry, Mapping):
            return self._refuse(spot, f"is {_kind(entry)}; write a mapping with model_name and {_PARAMS}")
        used = frozenset(("model_name", _PARAMS))
        self._sort(entry, spot + ".", used, {"model_info": "Loopway knows no prices and windows of models"}, {})
        self._model_paths(index, spot)
        made: dict[str, Any] = {}
        if "model_name" in entry:
            made["name"] = self._name(entry["model_name"], index, names)
        params = entry.get(_PARAMS)
        if params is REFUSED:
            return {**made, "upstream": REFUSED}
        if not isinstance(params, Mapping):
            path = f"{spot}.{_PARAMS}"
            return {**made, "upstream": self._refuse(path, f"is {_kind(params)}; write a mapping with model")}
        self._sort(params, f"{spot}.{_PARAMS}.", keys.PARAMS, keys.PARAMS_IGNORED, keys.PARAMS_REFUSED)
        made["upstream"], made["model"] = self._upstream(params, f"{spot}.{_PARAMS}", defaults)
        if params.get("max_agentic_loops") is not None:
            made["max_agentic_loops"] = params["max_agentic_loops"]
        return made

    def _name(self, name: Any, index: int, names: dict[str, int]) -> Any:
        path = f"model_list[{index}].model_name"
        if not isinstance(name, str):
            return name
        if "*" in name:
            return self._refuse(path, f"{name!r} is a wildcard; write each model's own name")
        if names.setdefault(name, index) != index:
            return self._refuse(
                path,
                f"is duplicate: model_list[{names[name]}] has the name {name!r}, too, and Loopway does not "
                "balance between deployments; give it a name of its own, and use it in fallbacks",
            )
        return name

    def _model_paths(self, index: int, spot: str) -> None:
        self._paths[f"models[{index}]"] = spot
        self._paths[f"models[{index}].name"] = f"{spot}.model_name"
        self._paths[f"models[{index}].upstream"] = f"{spot}.{_PARAMS}"
        self._paths[f"models[{index}].model"] = f"{spot}.{_PARAMS}.model"
        self._paths[f"models[{index}].max_agentic_loops"] = f"{spot}.{_PARAMS}.max_agentic_loops"

    def _upstream(
        self, params: Mapping[str, Any], spot: str, defaults: Mapping[str, tuple[Any, str]]
    ) -> tuple[Any, Any]:
        """The name of the upstream that a deployment calls, made if need be, and the model's name there."""
        name, model = self._provider(params, spot)
        if name is None:
            return REFUSED, REFUSED
        provider = keys.PROVIDERS[name]
        made: dict[str, Any] = {"dialects": [provider.dialect]}
        paths: dict[str, str] = {}
        for ours, (value, path) in (
            ("base_url", self._base(params, spot, provider, name)),
            ("api_key", self._key(params, spot, provider)),
            ("headers", self._headers(params, spot)),
            ("read_timeout_seconds", _first(params, spot, ("timeout", "request_timeout"), defaults)),
            ("max_retries", _first(params, spot, ("num_retries", "max_retries"), defaults)),
            ("ca_file", self._ca_file(params, spot, defaults)),
        ):
            if value is not None:
                made[ours] = value
                paths[ours] = path
        known = repr((name, sorted(made.items(), key=lambda item: item[0])))
        if known not in self._known:
            number = sum(1 for other in self._known.values() if other.rpartition("-")[0] == name or other == name)
            label = f"{name}-{number + 1}" if number else name
            self._known[known] = label
            self._upstreams[label] = made
            self._paths[f"upstreams.{label}"] = spot
            self._paths.update({f"upstreams.{label}.{ours}": path for ours, path in paths.items()})
        return self._known[known], model

    def _provider(self, params: Mapping[str, Any], spot: str) -> tuple[str | None, str]:
        """The provider's name, or None if it is not served, and the model's name without it."""
        path = f"{spot}.model"
        value = params.get("model")
        kinds = ", ".join(f"{name}/…" for name in keys.PROVIDERS)
        if value is REFUSED:
            return None, ""
        if not isinstance(value, str) or not value:
            self._refuse(path, f"is {_kind(value)}; write one of {kinds}")
            return None, ""
        name, slash, model = value.partition("/")
        stated = params.get("custom_llm_provider")
        if not slash and isinstance(stated, str):
            name, slash, model = stated, "/", value
        if not slash:
            self._refuse(path, f"{value!r} names no provider; write one of {kinds}")
        elif name not in keys.PROVIDERS:
            self._refuse(path, f"the provider {name!r} is not served here; write one of {kinds}")
        elif stated not in (None, REFUSED, name):
            self._refuse(f"{spot}.custom_llm_provider", f"is not {name!r}, as model says; leave it out")
        elif "*" in model:
            self._refuse(path, f"{value!r} is a wildcard; write each model's own name")
        elif not model:
            self._refuse(path, f"{value!r} names no model behind the provider")
        elif model.startswith("responses/"):
            self._refuse(path, f"{value!r} asks for the Responses API, which is not spoken here")
        else:
            return name, model
        return None, ""

    def _base(self, params: Mapping[str, Any], spot: str, provider: keys.Provider, name: str) -> tuple[Any, str]:
        key = "base_url" if params.get("api_base") is None and params.get("base_url") is not None else "api_base"
        path = f"{spot}.{key}"
        value = params.get(key)
        if value is None:
            value = _variable(self._environ, provider.base_variables) or provider.base_url
        if value is None:
            text = f"is missing; {name} has no public address, write the server's, as http://host:8000/v1"
            return self._refuse(path, text), path
        if not isinstance(value, str):
            return value, path
        base = value.rstrip("/").removesuffix(provider.endpoint)
        if base.endswith("/v1"):
            return base.removesuffix("/v1") or base, path
        if provider.dialect == "chat_completions" and params.get(key) is not None:
            self._warn(path, "does not end in /v1; Loopway asks for /v1/… behind it all the same")
        return base, path

    def _key(self, params: Mapping[str, Any], spot: str, provider: keys.Provider) -> tuple[Any, str]:
        path = f"{spot}.api_key"
        value = params.get("api_key")
        if value is not None:
            return value, path
        found = _variable(self._environ, provider.key_variables)
        if found is None and provider.base_url is not None and params.get("api_base", params.get("base_url")) is None:
            variable = provider.key_variables[0]
            return self._refuse(path, f"is missing; write os.environ/{variable}, and set it"), path
        return found, path

    def _headers(self, params: Mapping[str, Any], spot: str) -> tuple[Any, str]:
        key = (
            "headers" if params.get("extra_headers") is None and params.get("headers") is not None else "extra_headers"
        )
        path = f"{spot}.{key}"
        value = params.get(key)
        organization = params.get("organization")
        if organization is None:
            return value, path
        if value is None:
            return {"OpenAI-Organization": organization}, path
        if not isinstance(value, Mapping):
            return value, path
        return {**value, "OpenAI-Organization": organization}, path

    def _ca_file(
        self, params: Mapping[str, Any], spot: str, defaults: Mapping[str, tuple[Any, str]]
    ) -> tuple[Any, str]:
        value, path = _first(params, spot, ("ssl_verify",), defaults)
        if value is True:
            return None, path
        if value is False:
            return self._refuse(path, "certificates are always verified; write a file with the authority's"), path
        return value, path

    def _fallbacks(self, settings: Mapping[str, Any], path: str) -> None:
        """`[{name: [other]}]`; the same name in a later section wins, as it does in LiteLLM's own order."""
        listed = settings.get("fallbacks")
        if listed is None or listed is REFUSED:
            return
        if not isinstance(listed, list):
            self._refuse(path, f"is {_kind(listed)}; write a list, as [{{a: [b]}}]")
            return
        for index, entry in enumerate(listed):
            if not isinstance(entry, Mapping):
                if entry is not REFUSED:
                    self._refuse(f"{path}[{index}]", f"is {_kind(entry)}; write a mapping, as {{a: [b]}}")
                continue
            for name, others in entry.items():
                self._fallback(name, others, f"{path}[{index}].{name}")

    def _fallback(self, name: Any, others: Any, spot: str) -> None:
        if others is REFUSED or self._models is REFUSED or (isinstance(others, list) and REFUSED in others):
            return
        if not isinstance(others, list) or len(others) != 1 or not isinstance(others[0], str):
            self._refuse(spot, "a model has one fallback in Loopway; write a list with one name")
            return
        names = [REFUSED if model is REFUSED else model.get("name", REFUSED) for model in self._models]
        if name in names:
            index = names.index(name)
            self._models[index]["fallback"] = others[0]
            self._paths[f"models[{index}].fallback"] = spot
        elif REFUSED not in names:
            self._refuse(spot, f"there is no model {name!r} in model_list")

    # The rest.

    def _server(
        self, general: Mapping[str, Any], litellm: Mapping[str, Any], router: Mapping[str, Any]
    ) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if "global_max_parallel_requests" in general:
            made["max_concurrent_requests"] = general["global_max_parallel_requests"]
            self._paths["server.max_concurrent_requests"] = "general_settings.global_max_parallel_requests"
        if "max_request_size_mb" in general:
            size = general["max_request_size_mb"]
            path = self._paths["server.max_body_bytes"] = "general_settings.max_request_size_mb"
            if isinstance(size, (int, float)) and not isinstance(size, bool) and size > 0:
                made["max_body_bytes"] = int(size * _MEBIBYTE)
            elif size is not REFUSED:
                self._refuse(path, f"is {_kind(size)}; write a number of megabytes above 0")
        seconds, path = _defaults(litellm, router).get("timeout", (None, ""))
        if isinstance(seconds, (int, float)) and seconds > _DEFAULT_REQUEST_SECONDS:
            made["request_timeout_seconds"] = seconds
            self._paths["server.request_timeout_seconds"] = path
        return made

    def _auth(self, general: Mapping[str, Any]) -> dict[str, Any]:
        path = "general_settings.master_key"
        self._paths["auth"] = path
        self._paths["auth.keys[0].key"] = path
        value = general.get("master_key", _variable(self._environ, ("LITELLM_MASTER_KEY",)))
        if value is None:
            self._warn(path, "there is none, so everybody may call (auth.mode: open), as in LiteLLM; write one")
            return {"mode": "open"}
        return {"keys": [{"name": "master_key", "key": value}]}

    def _hooks(self, litellm: Mapping[str, Any]) -> Any:
        path = "litellm_settings.callbacks"
        listed = litellm.get("callbacks")
        if listed is None or listed is REFUSED:
            return []
        single = isinstance(listed, str)
        if not single and not isinstance(listed, list):
            return self._refuse(path, f"is {_kind(listed)}; write a list of dotted paths")
        made: list[Any] = []
        for index, callback in enumerate([listed] if single else listed):
            spot = path if single else f"{path}[{index}]"
            if callback is REFUSED:
                continue
            if not isinstance(callback, str) or not callback:
                self._refuse(spot, f"is {_kind(callback)}; write the dotted path of an instance")
            elif "." in callback:
                self._paths[f"hooks[{len(made)}]"] = spot
                made.append(callback)
            elif callback in keys.OBSERVERS:
                self._warn(spot, f"{callback!r} only watches; it is not used (Loopway has OTEL_* and /metrics)")
            else:
                self._refuse(
                    spot, f"{callback!r} is a callback inside LiteLLM, {_REASON}; write a hook with a dotted path"
                )
        return made

    def _rules(self, litellm: Mapping[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for kind in ("pre_call", "post_call"):
            path = f"litellm_settings.{kind}_rules"
            listed = litellm.get(f"{kind}_rules")
            if listed is None or listed is REFUSED:
                continue
            if isinstance(listed, str):
                listed = [listed]
            elif not isinstance(listed, list):
                self._refuse(path, f"is {_kind(listed)}; write a list of dotted paths")
                continue
            self._paths[f"rules.{kind}"] = path
            made[kind] = listed
        return made


def _defaults(litellm: Mapping[str, Any], router: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """What holds for every deployment that does not say otherwise, with where it stands."""
    made: dict[str, tuple[Any, str]] = {}
    for section, prefix in ((litellm, "litellm_settings"), (router, "router_settings")):
        for key, name in (
            ("request_timeout", "timeout"),
            ("timeout", "timeout"),
            ("num_retries", "num_retries"),
            ("ssl_verify", "ssl_verify"),
        ):
            if section.get(key) is not None:
                made[name] = (section[key], f"{prefix}.{key}")
    return made


def _first(
    params: Mapping[str, Any], spot: str, names: tuple[str, ...], defaults: Mapping[str, tuple[Any, str]]
) -> tuple[Any, str]:
    """The first of these keys that a deployment has, else the default of the first; with where it stands."""
    for name in names:
        if params.get(name) is not None:
            return params[name], f"{spot}.{name}"
    return defaults.get(names[0], (None, f"{spot}.{names[0]}"))


def _variable(environ: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _kind(value: object) -> str:
    """What a value is, never what it says."""
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "a boolean"
    named = {str: "a text", int: "a whole number", float: "a number", list: "a list", dict: "a mapping"}
    return next((name for kind, name in named.items() if isinstance(value, kind)), f"a {type(value).__name__}")
