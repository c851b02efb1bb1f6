"""LiteLLM's file shape, import names and callback classes.

LiteLLM itself is not installed here: a small package of that name stands for it where one is needed.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from loopway import settings
from loopway.compat import litellm
from loopway.engine.plan import AgenticLoopPlan, AgenticLoopRequestPatch, Rerun, decide
from loopway.hooks.base import HOOK_METHODS, AgenticLoopHook, overrides

KEYS = {"ANTHROPIC_API_KEY": "a-key", "OPENAI_API_KEY": "o-key"}


def model(name: str = "m", to: str = "anthropic/x", **params: Any) -> dict[str, Any]:
    return {"model_name": name, "litellm_params": {"model": to, "api_key": "k", **params}}


def file(*models: Any, **sections: Any) -> dict[str, Any]:
    return {"model_list": list(models) or [model()], **sections}


def read(data: Any, environ: dict[str, str] | None = None) -> settings.Draft:
    return settings.read_mapping(data, environ=environ or {}, translators=[litellm.translate])


def litellm_module() -> Any:
    return importlib.import_module("litellm")


def good(data: Any, environ: dict[str, str] | None = None) -> settings.Settings:
    return read(data, environ).checked()


# Its file shape.


@pytest.mark.parametrize("key", ["model_list", "litellm_settings", "general_settings", "router_settings"])
def test_shape(key: str) -> None:
    """A file is of LiteLLM's shape if it has one of its sections."""
    assert litellm.is_litellm_shape({key: None})
    assert not litellm.is_litellm_shape({"models": []})
    assert litellm.translate({"models": []}) is None


def test_whole_file() -> None:
    """The keys of the contract come over, `os.environ/NAME` among them."""
    made = good(
        file(
            model("claude", "anthropic/claude-x", api_key="os.environ/ANTHROPIC_API_KEY", max_agentic_loops=0),
            model("vllm", "hosted_vllm/org/name", api_base="http://h:8000/v1"),
            litellm_settings={"callbacks": ["my_module.instance"]},
            general_settings={"master_key": "sk-1234"},
        ),
        KEYS,
    )
    claude, vllm = made.models
    assert (claude.name, claude.sent_as, claude.max_agentic_loops) == ("claude", "claude-x", 0)
    assert (vllm.name, vllm.sent_as, vllm.max_agentic_loops) == ("vllm", "org/name", None)
    anthropic = made.upstreams[claude.upstream]
    assert (anthropic.base_url, anthropic.dialects) == ("https://api.anthropic.com", ["messages"])
    assert anthropic.api_key == settings.Secret("a-key")
    other = made.upstreams[vllm.upstream]
    assert (other.base_url, other.dialects) == ("http://h:8000", ["chat_completions"])
    assert [hook.path for hook in made.hooks] == ["my_module.instance"]
    assert [(key.name, key.key, key.models) for key in made.auth.keys] == [
        ("master_key", settings.Secret("sk-1234"), ["*"])
    ]


@pytest.mark.parametrize(
    ("to", "params", "url"),
    [
        ("anthropic/x", {}, "https://api.anthropic.com"),
        ("openai/x", {}, "https://api.openai.com"),
        ("openai/x", {"api_base": "http://h/v1"}, "http://h"),
        ("openai/x", {"api_base": "http://h/v1/"}, "http://h"),
        ("openai/x", {"api_base": "http://h/p/v1/chat/completions"}, "http://h/p"),
        ("openai/x", {"base_url": "http://h/v1"}, "http://h"),
        ("openai/x", {"api_base": "http://h"}, "http://h"),
        ("anthropic/x", {"api_base": "http://h"}, "http://h"),
        ("anthropic/x", {"api_base": "http://h/v1/messages"}, "http://h"),
        ("hosted_vllm/x", {"api_base": "http://h:1/v1"}, "http://h:1"),
    ],
)
def test_base_url(to: str, params: dict[str, Any], url: str) -> None:
    """`api_base` is cut to what stands before /v1; two providers have a public host."""
    (upstream,) = good(file(model(to=to, **params))).upstreams.values()
    assert upstream.base_url == url


@pytest.mark.parametrize(
    ("to", "environ", "url", "key"),
    [
        ("anthropic/x", {"ANTHROPIC_API_KEY": "v", "ANTHROPIC_BASE_URL": "http://e"}, "http://e", "v"),
        ("openai/x", {"OPENAI_API_KEY": "v", "OPENAI_BASE_URL": "http://e/v1"}, "http://e", "v"),
        ("hosted_vllm/x", {"HOSTED_VLLM_API_BASE": "http://e/v1"}, "http://e", None),
    ],
)
def test_variables_of_its_own(to: str, environ: dict[str, str], url: str, key: str | None) -> None:
    """What the file leaves out is read from the variables that LiteLLM reads."""
    (upstream,) = good(
        {"model_list": [{"model_name": "m", "litellm_params": {"model": to}}]}, environ
    ).upstreams.values()
    assert upstream.base_url == url
    assert upstream.api_key == (settings.Secret(key) if key else None)


def test_one_upstream_per_server_and_key() -> None:
    """Deployments share an upstream where provider, address and key are the same."""
    made = good(
        file(
            model("a"),
            model("b"),
            model("c", api_key="other"),
            model("d", api_base="http://h"),
            model("e", "openai/x"),
            model("f", timeout=3),
        )
    )
    assert [one.upstream for one in made.models] == [
        "anthropic",
        "anthropic",
        "anthropic-2",
        "anthropic-3",
        "openai",
        "anthropic-4",
    ]


def test_settings_with_an_equal() -> None:
    """Time-outs, retries, headers, limits, fallbacks and log format come over."""
    made = good(
        file(
            model("a", extra_headers={"x-a": "1"}, organization="org", num_retries=4, timeout=7),
            model("b"),
            litellm_settings={
                "request_timeout": 900,
                "num_retries": 1,
                "json_logs": True,
                "fallbacks": [{"a": ["b"]}],
            },
            general_settings={"global_max_parallel_requests": 9, "max_request_size_mb": 0.5, "master_key": "k"},
        )
    )
    a, b = (made.upstreams[one.upstream] for one in made.models)
    assert (a.read_timeout_seconds, a.max_retries) == (7, 4)
    assert (b.read_timeout_seconds, b.max_retries) == (900, 1)
    assert {name: value.reveal() for name, value in a.headers.items()} == {"x-a": "1", "OpenAI-Organization": "org"}
    assert made.server.request_timeout_seconds == 900
    assert (made.server.max_concurrent_requests, made.server.max_body_bytes) == (9, 524_288)
    assert made.telemetry.log_format == "json"
    assert [one.fallback for one in made.models] == ["b", None]


def test_router_settings_win() -> None:
    """Retries and time-outs of the router come over, too."""
    made = good(file(litellm_settings={"num_retries": 1}, router_settings={"num_retries": 3, "timeout": 20}))
    assert (made.upstreams["anthropic"].max_retries, made.upstreams["anthropic"].read_timeout_seconds) == (3, 20)


def test_master_key() -> None:
    """Without a master key everybody may call, with a warning; LiteLLM's variable counts."""
    draft = read(file())
    assert draft.checked().auth.mode == "open"
    assert [warning.path for warning in draft.warnings] == ["general_settings.master_key"]
    (key,) = good(file(), {"LITELLM_MASTER_KEY": "sk"}).auth.keys
    assert key.key == settings.Secret("sk")


def test_one_callback_as_a_text() -> None:
    """`callbacks` may be a text, and its hook is told under that path."""
    assert [path for path, _ in read(file(litellm_settings={"callbacks": "a.b"})).hooks] == [
        "litellm_settings.callbacks"
    ]


def test_hooks_keep_their_places() -> None:
    """A hook's path is its place in LiteLLM's list, loggers counted."""
    draft = read(file(litellm_settings={"callbacks": ["otel", "a.b"]}))
    assert [(path, hook.path) for path, hook in draft.hooks] == [("litellm_settings.callbacks[1]", "a.b")]


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (file(litellm_settings={"set_verbose": True}), "litellm_settings.set_verbose"),
        (file(litellm_settings={"success_callback": ["langfuse"]}), "litellm_settings.success_callback"),
        (file(litellm_settings={"callbacks": ["prometheus"]}), "litellm_settings.callbacks[0]"),
        (file(general_settings={"alerting": ["slack"]}), "general_settings.alerting"),
        (file(router_settings={"routing_strategy": "simple-shuffle"}), "router_settings.routing_strategy"),
        (file(model(rpm=5)), "model_list[0].litellm_params.rpm"),
        (file({**model(), "model_info": {"id": "1"}}), "model_list[0].model_info"),
        (file(model(to="openai/x", api_base="http://h")), "model_list[0].litellm_params.api_base"),
        (file(callback_settings={"otel": {}}), "callback_settings"),
    ],
)
def test_warned(data: dict[str, Any], path: str) -> None:
    """What changes no answer is warned of, under its own path."""
    draft = read(data, {"LITELLM_MASTER_KEY": "k"})
    assert draft.problems == ()
    assert [warning.path for warning in draft.warnings] == [path]


@pytest.mark.parametrize(
    "sections",
    [
        {"litellm_settings": {"drop_params": False, "cache": False, "guardrails": [], "callbacks": None}},
        {"litellm_settings": None, "router_settings": None, "environment_variables": {}},
        {"general_settings": {"master_key": None, "database_url": None}},
        {"litellm_settings": {"json_logs": False, "ssl_verify": True}},
    ],
)
def test_switched_off(sections: dict[str, Any]) -> None:
    """A key that is off is neither refused nor warned of."""
    draft = read(file(**sections), {"LITELLM_MASTER_KEY": "k"})
    assert (draft.problems, draft.warnings) == ((), ())


P = "model_list[0].litellm_params"
REFUSED = [
    (file(model(to="azure/x")), f"{P}.model", "azure"),
    (file(model(to="bedrock/x")), f"{P}.model", "bedrock"),
    (file(model(to="gpt-4o")), f"{P}.model", "names no provider"),
    (file(model(to="openai/")), f"{P}.model", "names no model"),
    (file(model(to="openai/responses/x")), f"{P}.model", "Responses API"),
    (file(model(to="anthropic/*")), f"{P}.model", "wildcard"),
    (file(model(to=3)), f"{P}.model", "a whole number"),  # type: ignore[arg-type]
    (file({"model_name": "m", "litellm_params": {}}), f"{P}.model", "missing"),
    (file(model("cl*")), "model_list[0].model_name", "wildcard"),
    (file(model("a"), model("a", "openai/y")), "model_list[1].model_name", "duplicate"),
    (file(model(4)), "model_list[0].model_name", "put it in quotes"),  # type: ignore[arg-type]
    (file({"litellm_params": {"model": "openai/x", "api_key": "k"}}), "model_list[0].model_name", "is missing"),
    (file({"model_name": "m"}), P, "is missing"),
    (file({"model_name": "m", "litellm_params": ["secret"]}), P, "is a list"),
    (file("secret"), "model_list[0]", "is a text"),
    (file(model(), model_list="secret"), "model_list", "is a text"),
    ({"model_list": []}, "model_list", "there is none"),
    ({"litellm_settings": {}}, "model_list", "is missing"),
    (file(model(to="hosted_vllm/x")), f"{P}.api_base", "is missing"),
    (file(model(api_base="ftp://h")), f"{P}.api_base", "no http://"),
    (file(model(api_base=3)), f"{P}.api_base", "is 3"),
    (file(model(api_key=None)), f"{P}.api_key", "ANTHROPIC_API_KEY"),
    (file(model(api_key="os.environ/NOPE")), f"{P}.api_key", "NOPE"),
    (file(model(api_key=1)), f"{P}.api_key", "put it in quotes"),
    (file(model(max_agentic_loops=True)), f"{P}.max_agentic_loops", "is true"),
    (file(model(max_agentic_loops=-1)), f"{P}.max_agentic_loops", "is -1"),
    (file(model("cl-1", max_agentic_loops="three")), f"{P}.max_agentic_loops", "three"),
    (file(model(timeout="x")), f"{P}.timeout", 'is "x"'),
    (file(model(extra_headers={"Host": "x"})), f"{P}.extra_headers.Host", "sets itself"),
    (file(model(extra_headers=3)), f"{P}.extra_headers", "a whole number"),
    (file(model(ssl_verify=False)), f"{P}.ssl_verify", "always verified"),
    (file(model(ssl_verify="/absent.pem")), f"{P}.ssl_verify", "cannot be read"),
    (file(model(temperature=0)), f"{P}.temperature", "could change answers"),
    (file(model(drop_params=True)), f"{P}.drop_params", "could change answers"),
    (file(model(custom_llm_provider="azure")), f"{P}.custom_llm_provider", "anthropic"),
    (file({**model(), "model_nam": 1}), "model_list[0].model_nam", "did you mean model_name?"),
    (file(litellm_settings={"drop_params": True}), "litellm_settings.drop_params", "could change answers"),
    (file(litellm_settings={"cache": True}), "litellm_settings.cache", "could change answers"),
    (file(litellm_settings={"guardrails": [1]}), "litellm_settings.guardrails", "as a hook"),
    (file(litellm_settings={"callback": ["a.b"]}), "litellm_settings.callback", "did you mean callbacks?"),
    (file(litellm_settings={"callbacks": ["lakera"]}), "litellm_settings.callbacks[0]", "inside LiteLLM"),
    (file(litellm_settings={"callbacks": [3]}), "litellm_settings.callbacks[0]", "dotted path"),
    (file(litellm_settings={"callbacks": {"a": 1}}), "litellm_settings.callbacks", "is a mapping"),
    (file(litellm_settings={"num_retries": -1}), "litellm_settings.num_retries", "is -1"),
    (file(litellm_settings={"request_timeout": 0}), "litellm_settings.request_timeout", "above 0"),
    (file(litellm_settings={"json_logs": 3}), "litellm_settings.json_logs", "no boolean"),
    (file(litellm_settings={"fallbacks": [{"m": ["a", "b"]}]}), "litellm_settings.fallbacks[0].m", "one fallback"),
    (file(litellm_settings={"fallbacks": [{"m": ["zz"]}]}), "litellm_settings.fallbacks[0].m", "no model 'zz'"),
    (file(litellm_settings={"fallbacks": [{"zz": ["m"]}]}), "litellm_settings.fallbacks[0].zz", "no model 'zz'"),
    (file(litellm_settings={"fallbacks": {"m": "a"}}), "litellm_settings.fallbacks", "is a mapping"),
    (file(litellm_settings={"fallbacks": [3]}), "litellm_settings.fallbacks[0]", "a whole number"),
    (file(litellm_settings=[1]), "litellm_settings", "is a list"),
    (file(router_settings={"model_group_alias": {"a": "m"}}), "router_settings.model_group_alias", "one more entry"),
    (file(general_settings={"master_key": ""}), "general_settings.master_key", "empty"),
    (file(general_settings={"master_key": 1234}), "general_settings.master_key", "put it in quotes"),
    (file(general_settings={"database_url": "secret"}), "general_settings.database_url", "no database"),
    (file(general_settings={"custom_auth": "a.b"}), "general_settings.custom_auth", "auth.keys"),
    (file(general_settings={"max_request_size_mb": "big"}), "general_settings.max_request_size_mb", "megabytes"),
    (
        file(general_settings={"global_max_parallel_requests": 0}),
        "general_settings.global_max_parallel_requests",
        "at least 1",
    ),
    (file(guardrails=[{"guardrail_name": "x"}]), "guardrails", "as a hook"),
    (file(environment_variables={"A": "secret"}), "environment_variables", "environment of the process"),
    (file(loop={}), "loop", "one shape"),
    (file(hooks=["a.b"]), "hooks", "one shape"),
    (file(zzz=1), "zzz", "unknown"),
]


@pytest.mark.parametrize(("data", "path", "part"), REFUSED, ids=[path for _, path, _ in REFUSED])
def test_refused(data: dict[str, Any], path: str, part: str) -> None:
    """What cannot be honoured is refused once, under LiteLLM's own key path."""
    draft = read(data)
    assert [problem.path for problem in draft.problems] == [path]
    assert part in draft.problems[0].text
    assert "secret" not in draft.problems[0].text


def test_all_at_once() -> None:
    """A refused deployment hides no other problem, its own among them."""
    draft = read(
        file(
            model("a*", max_agentic_loops=True),
            model("b", "azure/x", temperature=1),
            3,
            litellm_settings={"cache": True, "num_retries": "x"},
            router_settings=3,
        )
    )
    assert {problem.path for problem in draft.problems} == {
        "model_list[0].model_name",
        f"{P}.max_agentic_loops",
        "model_list[1].litellm_params.model",
        "model_list[1].litellm_params.temperature",
        "model_list[2]",
        "litellm_settings.cache",
        "litellm_settings.num_retries",
        "router_settings",
    }


def test_foreign_section_in_ours() -> None:
    """A section of LiteLLM's in a file of ours is refused, and the rest is checked as ours."""
    data = {
        "auth": {"mode": "open"},
        "upstreams": {"up": {"base_url": "http://h"}},
        "models": [{"name": "m", "upstream": "up", "zz": 1}],
        "litellm_settings": {"callbacks": ["a.b"]},
    }
    assert [problem.path for problem in read(data).problems] == ["litellm_settings", "models[0].zz"]


def test_missing_variables_are_told_once() -> None:
    """Where a variable is missing nothing else is said of its place."""
    nope = "os.environ/NOPE"
    draft = read(
        {
            "model_list": [nope, model(), {"model_name": nope, "litellm_params": nope}, model(nope, nope)],
            "litellm_settings": {"callbacks": [nope], "fallbacks": [nope, {"m": nope}, {"m": [nope]}]},
            "router_settings": nope,
            "general_settings": {"master_key": nope, "max_request_size_mb": nope},
        }
    )
    assert {problem.text.split(";")[0] for problem in draft.problems} == {"the environment variable NOPE is not set"}
    for section in ({"model_list": nope}, file(litellm_settings={"callbacks": nope, "json_logs": nope})):
        assert {problem.text.split(";")[0] for problem in read(section).problems} == {
            "the environment variable NOPE is not set"
        }


# Its import names.


@pytest.fixture
def _clean() -> Iterator[None]:
    """Leave `sys.modules` and the finders as they were."""
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.partition(".")[0] == "litellm"]:
        del sys.modules[name]


clean = pytest.mark.usefixtures("_clean")


@clean
def test_import_names() -> None:
    """The specification's imports give our classes."""
    litellm.install_import_names()
    logger = importlib.import_module("litellm.integrations.custom_logger")
    plans = importlib.import_module("litellm.types.integrations.custom_logger")
    assert logger.CustomLogger is AgenticLoopHook
    assert plans.AgenticLoopPlan is AgenticLoopPlan
    assert plans.AgenticLoopRequestPatch is AgenticLoopRequestPatch
    names: dict[str, Any] = {}
    exec("import litellm.types.integrations.custom_logger as a, litellm; b = litellm.integrations", names)
    assert names["a"] is plans
    assert names["b"].custom_logger is logger


@clean
def test_callbacks_in_code() -> None:
    """What code assigns or appends is found, also after a second call."""
    assert litellm.callbacks_in_code() == []
    litellm.install_import_names()
    module = litellm_module()
    assert litellm.callbacks_in_code() == []
    module.callbacks.append("text")
    litellm.install_import_names()
    assert litellm_module() is module
    assert litellm.callbacks_in_code() == ["text"]
    hook = AgenticLoopHook()
    module.callbacks = [hook]
    assert litellm.callbacks_in_code() == [hook]
    module.callbacks = hook
    assert litellm.callbacks_in_code() == [hook]
    module.callbacks = None
    assert litellm.callbacks_in_code() == []
    assert sum(getattr(finder, "__module__", "") == litellm.names.__name__ for finder in sys.meta_path) == 1


@clean
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("import litellm; litellm.completion", AttributeError),
        ("from litellm import completion", ImportError),
        ("import litellm.proxy.proxy_server", ImportError),
        ("from litellm.proxy.proxy_server import UserAPIKeyAuth", ImportError),
        ("from litellm.integrations.custom_logger import Other", (ImportError, AttributeError)),
        ("import litellm; litellm.drop_params = True", AttributeError),
    ],
)
def test_anything_else(code: str, kind: type[Exception]) -> None:
    """Anything else of LiteLLM is an error that says that it is not installed."""
    litellm.install_import_names()
    with pytest.raises(kind) as caught:
        exec(code, {})
    if "custom_logger import" not in code:
        assert "LiteLLM is not installed; Loopway stands in for litellm.callbacks" in str(caught.value)


@clean
def test_stand_in_is_well_behaved() -> None:
    """Feature tests find a module with a spec, and no attribute that is not there."""
    litellm.install_import_names()
    module = litellm_module()
    assert importlib.util.find_spec("litellm") is module.__spec__
    assert not hasattr(module, "completion")
    assert not hasattr(module, "__file__")


# Its callback classes, where it is installed.

FAKE = {
    "__init__.py": "callbacks = ['langfuse']\n",
    "integrations/__init__.py": "",
    "integrations/custom_logger.py": """
        class CustomLogger:
            async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type): pass
            async def async_should_run_agentic_loop(
                self, response, model, messages, tools, stream, custom_llm_provider, kwargs
            ): return False, {}
            async def async_build_agentic_loop_plan(self, **given): raise NotImplementedError
            async def async_post_agentic_loop_response_hook(self, response, plan, kwargs): return response
            async def async_agentic_loop_cleanup_hook(self, plan, kwargs): pass
            async def async_log_success_event(self, kwargs, response_obj, start_time, end_time): pass
    """,
    "types/__init__.py": "",
    "types/integrations/__init__.py": "",
    "types/integrations/custom_logger.py": """
        class _Model:
            def __init__(self, **given):
                for name in self.__annotations__:
                    setattr(self, name, given.get(name, getattr(type(self), name, None)))

        class AgenticLoopRequestPatch(_Model):
            model: str = None
            messages: list = None
            tools: list = None
            max_tokens: int = None
            optional_params: dict = {}
            kwargs: dict = {}

        class AgenticLoopPlan(_Model):
            run_agentic_loop: bool = False
            request_patch: object = None
            response_override: object = None
            terminate: bool = False
            stop_reason: str = None
            metadata: dict = {}
    """,
}

HOOK = """
    import litellm
    from litellm.integrations.custom_logger import CustomLogger
    from litellm.types.integrations.custom_logger import AgenticLoopPlan, AgenticLoopRequestPatch

    class Mine(CustomLogger):
        server_fulfilled_tool_names = frozenset({"t"})
        seen = []
        async def async_should_run_agentic_loop(
            self, response, model, messages, tools, stream, custom_llm_provider, kwargs
        ):
            return True, {"calls": response}
        async def async_build_agentic_loop_plan(self, **given):
            self.made = AgenticLoopPlan(
                run_agentic_loop=True,
                request_patch=AgenticLoopRequestPatch(messages=[{"role": "user"}], max_tokens=5),
                metadata={"a": given["tools"]},
            )
            return self.made
        async def async_agentic_loop_cleanup_hook(self, plan, kwargs):
            self.seen.append(plan)

    class Sync(CustomLogger):
        def async_should_run_agentic_loop(self, **given):
            return False, {}

    mine = Mine()
    sync = Sync()
    litellm.callbacks.append(mine)
"""


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _clean: None) -> Iterator[Any]:
    """A module written for LiteLLM, with a package of its shape installed."""
    for name, text in FAKE.items():
        path = tmp_path / "litellm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    (tmp_path / "their_hook.py").write_text(dedent(HOOK))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("their_hook")
    del sys.modules["their_hook"]


def test_installed_is_left_alone(real: Any) -> None:
    """Where LiteLLM is installed its modules stay, and its own named callbacks are no hooks."""
    litellm.install_import_names()
    module = litellm_module()
    assert Path(module.__file__ or "").name == "__init__.py"
    assert litellm.callbacks_in_code() == [real.mine]


@clean
def test_installed_but_not_imported(real: Any) -> None:
    """A LiteLLM that nobody has imported yet is installed, too."""
    del real
    for name in [name for name in sys.modules if name.partition(".")[0] == "litellm"]:
        del sys.modules[name]
    litellm.install_import_names()
    assert "litellm" not in sys.modules


@clean
def test_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is called litellm is not LiteLLM."""
    (tmp_path / "litellm").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    litellm.install_import_names()
    assert litellm_module().callbacks == []


def test_adapted(real: Any) -> None:
    """An instance of the real CustomLogger becomes a hook with the methods that its class overrides."""
    hook: Any = litellm.adapted(real.mine)
    assert isinstance(hook, AgenticLoopHook)
    assert [name for name in HOOK_METHODS if overrides(hook, name)] == [
        "async_should_run_agentic_loop",
        "async_build_agentic_loop_plan",
        "async_agentic_loop_cleanup_hook",
    ]
    assert type(hook).__name__ == "Mine"
    assert type(hook).__module__ == "their_hook"
    assert hook.server_fulfilled_tool_names == frozenset({"t"})
    assert litellm.adapted(hook) is hook


def test_adapted_plan(real: Any) -> None:
    """Its plan is one of ours with the same fields; its author gets back the very plan that he made."""

    async def run() -> AgenticLoopPlan:
        hook: Any = litellm.adapted(real.mine)
        claimed, context = await hook.async_should_run_agentic_loop(
            response="r", model="m", messages=[], tools=[], stream=False, custom_llm_provider="x", kwargs={}
        )
        assert (claimed, context) == (True, {"calls": "r"})
        plan: AgenticLoopPlan = await hook.async_build_agentic_loop_plan(tools=context)
        await hook.async_agentic_loop_cleanup_hook(plan=plan, kwargs={})
        return plan

    plan = asyncio.run(run())
    assert plan.metadata == {"a": {"calls": "r"}}
    decision = decide(plan)
    assert isinstance(decision, Rerun)
    assert decision.patch == AgenticLoopRequestPatch(messages=[{"role": "user"}], max_tokens=5)
    assert real.Mine.seen == [real.mine.made]
    assert real.Mine.seen[0] is real.mine.made


def test_our_own_plan_passes(real: Any) -> None:
    """A plan of ours, or anything else that a method returns, is left as it is."""
    ours = AgenticLoopPlan(terminate=True)

    class Other(real.CustomLogger):  # type: ignore[misc]
        async def async_build_agentic_loop_plan(self, **given: Any) -> Any:
            return given["answer"]

    hook: Any = litellm.adapted(Other())
    for answer in (ours, None, {"run_agentic_loop": True}):
        assert asyncio.run(hook.async_build_agentic_loop_plan(answer=answer)) is answer


def test_adapted_sync_method(real: Any) -> None:
    """A method that is not async stays so, for the registry to refuse it."""
    hook: Any = litellm.adapted(real.sync)
    assert hook.async_should_run_agentic_loop() == (False, {})


@clean
def test_not_adapted() -> None:
    """Without LiteLLM, and for instances of other classes, nothing changes."""
    hook = AgenticLoopHook()
    assert litellm.adapted(hook) is hook
    litellm.install_import_names()
    assert litellm.adapted(hook) is hook
    thing = object()
    assert litellm.adapted(thing) is thing


def test_other_classes_stay(real: Any) -> None:
    """With LiteLLM installed, an instance of another class stays as it is."""
    del real
    thing = object()
    assert litellm.adapted(thing) is thing
