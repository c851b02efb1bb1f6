"""The configuration: what is read, and every refusal with its key path.

Must not know the CLI or any hook.
"""

from __future__ import annotations

import copy
import hashlib
import re
from pathlib import Path
from typing import Any

import certifi
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopway import settings
from loopway.errors import ConfigError, Problem
from loopway.settings import REFUSED, EnvText, HookSetting, Secret

DIGEST = hashlib.sha256(b"other-key").hexdigest()


def base(**changes: Any) -> dict[str, Any]:
    """A good configuration with these top-level keys changed."""
    made: dict[str, Any] = {
        "server": {"port": 4000, "admin_port": 9464},
        "auth": {"keys": [{"name": "a", "key": "key-of-a", "models": ["*"]}]},
        "upstreams": {
            "up": {"base_url": "http://127.0.0.1:9", "api_key": "u", "dialects": ["messages"]},
            "chat": {"base_url": "http://127.0.0.1:9", "dialects": ["chat_completions"]},
        },
        "models": [{"name": "claude", "upstream": "up"}, {"name": "gpt", "upstream": "chat"}],
        "loop": {"max_agentic_loops": 1},
        "hooks": ["my_hooks.good"],
    }
    made.update(changes)
    return {key: value for key, value in made.items() if value is not ...}


def altered(path: str, value: Any) -> dict[str, Any]:
    """A good configuration with one value changed; `...` takes the key away."""
    made = copy.deepcopy(base())
    *above, last = [int(name) if name.isdigit() else name for name in re.findall(r"[\w-]+", path)]
    spot: Any = made
    for name in above:
        spot = spot.setdefault(name, {}) if isinstance(spot, dict) else spot[name]
    if value is ...:
        del spot[last]
    else:
        spot[last] = value
    return made


def problems(data: Any, environ: dict[str, str] | None = None, **more: Any) -> dict[str, str]:
    """What is wrong, by path."""
    draft = settings.read_mapping(data, environ=environ or {}, **more)
    assert draft.settings is None or not draft.problems
    return {problem.path: problem.text for problem in draft.problems}


def good(data: Any, environ: dict[str, str] | None = None, **more: Any) -> settings.Settings:
    return settings.from_mapping(data, environ=environ or {}, **more)


# What is read.


def test_defaults() -> None:
    """Sections that are left out have the contract's defaults."""
    made = good(base(server=..., loop=..., hooks=...))
    assert (made.server.host, made.server.port, made.server.admin_port) == ("127.0.0.1", 4000, 9464)
    assert (made.server.max_body_bytes, made.server.max_concurrent_requests) == (33_554_432, 1000)
    assert (made.server.request_timeout_seconds, made.server.drain_seconds) == (600, 30)
    assert (made.loop.max_agentic_loops, made.loop.max_agentic_loops_ceiling) == (3, 10)
    assert (made.loop.max_seconds, made.loop.max_tool_calls) == (300, 32)
    assert (made.loop.on_limit, made.loop.on_repeat, made.loop.stream) == ("stop", "abort", "merged")
    assert (made.loop.interim_text, made.loop.usage) == ("stream", "sum")
    assert (made.loop.keepalive_seconds, made.loop.hook_timeout_seconds) == (15, 60)
    assert (made.hooks, made.telemetry.service_name, made.auth.mode) == ([], "loopway", "keys")
    up = made.upstreams["up"]
    assert (up.connect_timeout_seconds, up.read_timeout_seconds, up.max_retries) == (5, 300, 2)
    assert (up.forward_client_auth, up.headers, up.ca_file, up.proxy) == (False, {}, None, None)


@pytest.mark.parametrize("section", ["server", "loop", "hooks", "telemetry"])
def test_null_section(section: str) -> None:
    """A section without a value has its defaults."""
    assert getattr(good(base(**{section: None})), section) == getattr(good(base(**{section: ...})), section)


def test_model_name_of_the_upstream() -> None:
    """The upstream gets `model`, or the name where that is left out."""
    made = good(base(models=[{"name": "a", "upstream": "up"}, {"name": "b", "upstream": "up", "model": "c"}]))
    assert [model.sent_as for model in made.models] == ["a", "c"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("loop.max_agentic_loops", 0),
        ("loop.max_agentic_loops_ceiling", 0),
        ("loop.max_tool_calls", 0),
        ("loop.keepalive_seconds", 0.05),
        ("models[0].max_agentic_loops", 0),
        ("models[0].max_agentic_loops", None),
        ("models[0].name", "org/model:8b"),
        ("server.port", 0),
        ("server.port", 65535),
        ("server.admin_port", None),
        ("server.drain_seconds", 0),
        ("server.max_body_bytes", 1),
        ("upstreams.up.max_retries", 0),
        ("upstreams.up.api_key", None),
        ("upstreams.up.base_url", "https://host/some/path"),
        ("upstreams.up.base_url", "http://[::1]:8000"),
        ("upstreams.up.headers", {"X-Team": "a b"}),
        ("upstreams.up.proxy", "http://user:pass@proxy:3128"),
        ("upstreams.up.dialects", ["messages", "chat_completions"]),
        ("auth.keys[0].models", ["gpt"]),
        ("auth.keys[0]", {"name": "a", "sha256": DIGEST.upper()}),
        ("models[0].fallback", None),
    ],
)
def test_allowed(path: str, value: Any) -> None:
    """Edge values that make sense are taken."""
    assert problems(altered(path, value)) == {}


def test_both_ports_free() -> None:
    """Port 0 twice is two free ports, no clash."""
    assert problems(base(server={"port": 0, "admin_port": 0})) == {}


def test_slash_at_the_end() -> None:
    """A slash at the end of base_url is cut off."""
    assert good(altered("upstreams.up.base_url", "http://h/p/")).upstreams["up"].base_url == "http://h/p"


def test_fallback_of_the_same_dialect() -> None:
    """A fallback that shares a dialect is taken."""
    models = [{"name": "a", "upstream": "up", "fallback": "b"}, {"name": "b", "upstream": "up"}]
    assert good(base(models=models, auth={"mode": "open"})).models[0].fallback == "b"


def test_hook_entries() -> None:
    """A hook is a dotted path, or a built-in's name with its settings or none."""
    made = good(base(hooks=["a.b", {"web_search": {"provider": "local"}}, {"mcp": None}]))
    assert made.hooks == [
        HookSetting(path="a.b"),
        HookSetting(builtin="web_search", settings={"provider": "local"}),
        HookSetting(builtin="mcp"),
    ]


def test_key_digest() -> None:
    """A key is known by its SHA-256, whichever way it is written."""
    made = good(base(auth={"keys": [{"name": "a", "key": "other"}, {"name": "b", "sha256": DIGEST.upper()}]}))
    assert [key.digest for key in made.auth.keys] == [hashlib.sha256(b"other").hexdigest(), DIGEST]


def test_key_models() -> None:
    """A key allows the models that it lists, or all."""
    made = good(altered("auth.keys[0].models", ["gpt"])).auth.keys[0]
    assert (made.allows("gpt"), made.allows("claude")) == (True, False)
    assert good(base()).auth.keys[0].allows("claude")


def test_ca_file(tmp_path: Path) -> None:
    """A relative ca_file starts at the configuration's folder, and is absolute afterwards."""
    (tmp_path / "ca.pem").write_bytes(Path(certifi.where()).read_bytes())
    made = good(altered("upstreams.up.ca_file", "ca.pem"), folder=tmp_path)
    assert made.upstreams["up"].ca_file == str(tmp_path / "ca.pem")


# Refusals.

MISSING = "is missing"
REFUSALS = [
    # unknown keys
    ("hoooks", 1, "did you mean hooks"),
    ("server.prot", 1, "did you mean port"),
    ("loop.max_loops", 1, "unknown"),
    ("loop.zzz", 1, "the keys here are: max_agentic_loops"),
    ("upstreams.up.api_kee", 1, "did you mean api_key"),
    ("models[0].modell", 1, "did you mean model"),
    ("auth.kees", 1, "did you mean keys"),
    ("auth.keys[0].nmae", 1, "did you mean name"),
    ("telemetry.traces", 1, "unknown"),
    # containers of the wrong kind
    ("server", 3, "is a whole number; write a mapping"),
    ("server", ["port"], "is a list; write a mapping"),
    ("auth", "open", "is a text; write a mapping"),
    ("auth.keys", {"name": "a"}, "is a mapping; write a list"),
    ("auth.keys", "secret-text", "is a text; write a list"),
    ("auth.keys[0]", "secret-text", "is a text; write a mapping"),
    ("auth.keys[0].models", "*", "is a text; write a list"),
    ("upstreams", [], "is a list; write a mapping"),
    ("upstreams.up", "http://h", "is a text; write a mapping"),
    ("upstreams.up.dialects", "messages", "is a text; write a list"),
    ("upstreams.up.dialects[0]", ["messages"], "is a list; write messages or chat_completions"),
    ("upstreams.up.headers", ["a: b"], "is a list; write a mapping"),
    ("models", {"a": 1}, "is a mapping; write a list"),
    ("models", "claude", "is a text; write a list"),
    ("models[0]", "claude", "is a text; write a mapping"),
    ("models[0].name", {"a": 1}, "is a mapping; write a text"),
    ("hooks", "a.b", "is a text; write a list"),
    ("hooks", {"web_search": {}}, "is a mapping; write a list"),
    ("loop", True, "is true; write a mapping"),
    ("telemetry", "loopway", "is a text; write a mapping"),
    # null where a value is needed
    ("upstreams", None, "is null; write a mapping"),
    ("models", None, "is null; write a list"),
    ("upstreams.up.base_url", None, "is null; write a text"),
    ("models[0].name", None, "is null; write a text"),
    ("server.port", None, "is null; write a whole number from 0 to 65535"),
    ("loop.max_agentic_loops", None, "is null; write a whole number"),
    ("loop.stream", None, "is null; write merged or appended"),
    ("upstreams.up.forward_client_auth", None, "is null; write true or false"),
    ("hooks[0]", None, "is null; write the dotted path"),
    # missing
    ("upstreams", ..., MISSING),
    ("models", ..., MISSING),
    ("upstreams.up.base_url", ..., MISSING),
    ("models[0].name", ..., MISSING),
    ("models[0].upstream", ..., MISSING),
    ("auth.keys[0].name", ..., MISSING),
    # leaves
    ("server.port", "often", 'is "often"; write a whole number'),
    ("server.port", "4000", 'is "4000"; write a whole number'),
    ("server.port", True, "is true; write"),
    ("server.port", 1.5, "is 1.5; write"),
    ("server.port", 65536, "from 0 to 65535"),
    ("server.port", -1, "from 0 to 65535"),
    ("server.host", 7, "put it in quotes"),
    ("server.host", "", "is an empty text"),
    ("server.max_body_bytes", 0, "a whole number of bytes, at least 1"),
    ("server.max_concurrent_requests", 0, "at least 1"),
    ("server.request_timeout_seconds", 0, "a number of seconds, above 0"),
    ("server.request_timeout_seconds", float("inf"), "is inf"),
    ("server.request_timeout_seconds", float("nan"), "is nan"),
    ("server.drain_seconds", -1, "at least 0"),
    ("server.drain_seconds", 10**5000, "a very long number"),
    ("loop.keepalive_seconds", "soon", 'is "soon"; write a number of seconds'),
    ("loop.keepalive_seconds", True, "is true"),
    ("loop.max_seconds", 0, "above 0"),
    ("loop.hook_timeout_seconds", -2, "above 0"),
    ("loop.max_tool_calls", "many", "a whole number"),
    ("loop.max_tool_calls", -1, "at least 0"),
    ("loop.stream", "mergedd", "did you mean merged?"),
    ("loop.stream", True, "is true; write merged or appended"),
    ("loop.on_limit", "explode", "write stop or final_answer"),
    ("loop.on_repeat", "tell_mode", "did you mean tell_model?"),
    ("loop.usage", "all", "write sum or last"),
    ("loop.interim_text", "sometimes", "write stream or always or never"),
    ("auth.mode", "closed", "write keys or open"),
    ("upstreams.up.forward_client_auth", "yes", "write true or false"),
    ("upstreams.up.forward_client_auth", 1, "write true or false"),
    ("upstreams.up.connect_timeout_seconds", 0, "above 0"),
    ("upstreams.up.read_timeout_seconds", -3, "above 0"),
    ("upstreams.up.max_retries", -1, "at least 0"),
    ("upstreams.up.dialects[0]", "message", "did you mean messages?"),
    ("upstreams.up.api_key", "", "is an empty text"),
    ("upstreams.up.api_key", 12345, "put it in quotes"),
    ("upstreams.up.api_key", "k\n", "a line break at its beginning or end"),
    ("upstreams.up.api_key", "kläy", "no HTTP header can carry"),
    ("telemetry.log_level", "loud", "write debug or info or warning or error"),
    ("models[0].name", 4.5, "put it in quotes"),
    ("models[0].name", " claude", "spaces around it"),
    # max_agentic_loops
    *(
        (path, value, "write a whole number of reruns, at least 0")
        for path in ("loop.max_agentic_loops", "loop.max_agentic_loops_ceiling", "models[1].max_agentic_loops")
        for value in (True, False, -1, "three", "3", 1.5, 2.0, [3])
    ),
    # what goes together
    ("server.admin_port", 4000, "as server.port is"),
    ("upstreams", {}, "there is none"),
    ("models", [], "there is none"),
    ("models[0].upstream", "nowhere", "there is no upstream 'nowhere'"),
    ("models[0].upstream", "cha", "did you mean 'chat'?"),
    ("models[1].name", "claude", "duplicate"),
    ("models[0].name", "*", "a name stands for one model"),
    ("models[0].fallback", "nobody", "there is no model 'nobody'"),
    ("models[0].fallback", "claude", "in a circle (claude -> claude)"),
    ("models[0].fallback", "gpt", "speaks chat_completions and 'claude' messages"),
    ("upstreams.up.dialects", [], "is an empty list"),
    ("upstreams.up.dialects", ["messages", "messages"], "upstreams.up.dialects[1]: is duplicate"),
    ("upstreams.up.base_url", "127.0.0.1:9", "no http:// or https:// URL"),
    ("upstreams.up.base_url", "ftp://h", "no http:// or https:// URL"),
    ("upstreams.up.base_url", "http://", "names no host"),
    ("upstreams.up.base_url", "http://:80", "names no host"),
    ("upstreams.up.base_url", "http://h:99999", "is no URL"),
    ("upstreams.up.base_url", "http://h:x", "is no URL"),
    ("upstreams.up.base_url", "http://[::1", "is no URL"),
    ("upstreams.up.base_url", "http://h?a=b", "query"),
    ("upstreams.up.base_url", "http://h#", "fragment"),
    ("upstreams.up.base_url", "http://u:secret-text@h", "user name or password"),
    ("upstreams.up.base_url", "http://h/a b", "has a space"),
    ("upstreams.up.base_url", "http://h/v1/messages", "one endpoint"),
    ("upstreams.up.proxy", "proxy:3128", "no http:// or https:// URL"),
    ("upstreams.up.ca_file", "absent.pem", "cannot be read"),
    ("upstreams.up.ca_file", "/", "cannot be read"),
    ("upstreams.up.ca_file", __file__, "holds no certificate"),
    ("auth.keys", [], "there is no key"),
    ("auth", ..., "auth.keys"),
    ("auth", None, "auth.keys"),
    ("auth.keys[0]", {"name": "a"}, "neither key nor sha256"),
    ("auth.keys[0].key", "", "is an empty text"),
    ("auth.keys[0]", {"name": "a", "key": None}, "neither key nor sha256"),
    ("auth.keys[0]", {"name": "a", "key": "k", "sha256": DIGEST}, "both key and sha256"),
    ("auth.keys[0]", {"name": "a", "sha256": "secret-text"}, "auth.keys[0].sha256"),
    ("auth.keys[0]", {"name": "a", "sha256": DIGEST + "\n"}, "auth.keys[0].sha256"),
    ("auth.keys[0].models", [], "empty list"),
    ("auth.keys[0].models[0]", "claud", "did you mean 'claude'?"),
    ("auth.keys[0].models[0]", "cl*", "there is no model"),
    # headers
    *(
        (f"upstreams.up.headers.{name}", "v", "the gateway sets itself")
        for name in ("Host", "content-length", "Transfer-Encoding", "connection")
    ),
    ("upstreams.up.headers.x-a", "a\r\nb: c", "no HTTP header can carry"),
    ("upstreams.up.headers.x-a", 1, "put it in quotes"),
    # hooks
    ("hooks[0]", 3, "is 3; write the dotted path"),
    ("hooks[0]", "", "is an empty text; write the dotted path"),
    ("hooks[0]", ["a.b"], "is a list; write the dotted path"),
    ("hooks[0]", {}, "a mapping with 0 keys"),
    ("hooks[0]", {"a": {}, "b": {}}, "a mapping with 2 keys (a, b)"),
    ("hooks[0]", {"web_search": "secret-text"}, "hooks[0].web_search"),
    ("hooks[0]", {"web_search": [1]}, "hooks[0].web_search"),
    ("hooks[0]", {"web_search": {1: 2}}, 'hooks[0].web_search["1"]'),
    ("hooks[0]", {1: {}}, "as a built-in's name"),
]


@pytest.mark.parametrize(
    ("path", "value", "part"), REFUSALS, ids=[f"{number}-{path}" for number, (path, _, _) in enumerate(REFUSALS)]
)
def test_refused(path: str, value: Any, part: str) -> None:
    """What cannot work is refused under its own key path, and nothing else is."""
    found = problems(altered(path, value))
    assert len(found) == 1, found
    ((where, text),) = found.items()
    assert where.startswith(path)
    assert part in f"{where}: {text}"
    assert "secret-text" not in text


def test_all_at_once() -> None:
    """One run tells every problem, those of meaning beside those of type."""
    found = problems(
        {
            "server": {"port": "x", "prot": 1},
            "auth": {"keys": [{"name": "a", "key": "k"}, {"name": "a", "key": "k"}, 5]},
            "upstreams": {"up": {"base_url": "${NOPE}", "dialects": 3}, "u2": None},
            "models": [{"name": "m", "upstream": "nowhere", "max_agentic_loops": True}, 3, {"name": "m"}],
            "loop": [1],
            "hooks": [1, "a.b"],
        }
    )
    assert set(found) == {
        "server.port",
        "server.prot",
        "auth.keys[1].name",
        "auth.keys[1]",
        "auth.keys[2]",
        "upstreams.up.base_url",
        "upstreams.up.dialects",
        "upstreams.u2.base_url",
        "models[0].upstream",
        "models[0].max_agentic_loops",
        "models[1]",
        "models[2].name",
        "models[2].upstream",
        "loop",
        "hooks[0]",
    }


def test_circle_of_three() -> None:
    """Each model of a circle is told, one that only leads into it is not."""
    names = {"a": "b", "b": "c", "c": "b"}
    models = [{"name": name, "upstream": "up", "fallback": to} for name, to in names.items()]
    assert set(problems(base(models=models))) == {"models[1].fallback", "models[2].fallback"}


def test_unknown_names_are_not_guessed() -> None:
    """While a model's name is not known, no other name is called unknown."""
    data = base(models=[{"upstream": "up"}, {"name": "b", "upstream": "up", "fallback": "c"}])
    data["auth"] = {"keys": [{"name": "a", "key": "k", "models": ["c"]}]}
    assert set(problems(data)) == {"models[0].name"}


def test_odd_names_are_quoted() -> None:
    """A key that is no plain word is quoted in its path."""
    found = problems(base(upstreams={"my up": {"base_url": "x"}, "up": {"base_url": "http://h"}, "chat": 3}))
    assert 'upstreams["my up"].base_url' in found


@pytest.mark.parametrize("key", [1, True, None, 1.5])
def test_keys_that_are_no_text(key: Any) -> None:
    """A key that YAML reads as something else is refused, at the top and among names."""
    assert "put it in quotes" in problems(base() | {key: 1})[f'["{key}"]']
    upstreams = base()["upstreams"] | {key: {"base_url": "http://h"}}
    assert "put it in quotes" in problems(base(upstreams=upstreams))[f'upstreams["{key}"]']


def test_same_header_twice() -> None:
    """Header names are the same in any case."""
    assert "upstreams.up.headers.x-A" in problems(altered("upstreams.up.headers", {"X-a": "1", "x-A": "2"}))


@pytest.mark.parametrize("name", ["a b", "a:", "ä", "a\nb"])
def test_header_names(name: str) -> None:
    """A header's name is a token of RFC 9110."""
    (path,) = problems(altered("upstreams.up.headers", {name: "v"}))
    assert path.startswith("upstreams.up.headers[")


def test_same_key_twice() -> None:
    """A key is the same as its SHA-256."""
    keys = [{"name": "a", "key": "other-key"}, {"name": "b", "sha256": DIGEST}]
    assert "auth.keys[1]" in problems(base(auth={"keys": keys}))


def test_hooks_of_a_bad_file() -> None:
    """Well formed hooks are there although something else is wrong, with their places."""
    draft = settings.read_mapping(base(hooks=[3, "a.b"], loop=3), environ={})
    assert draft.hooks == (("hooks[1]", HookSetting(path="a.b")),)
    with pytest.raises(ConfigError) as caught:
        draft.checked([Problem("hooks[1]", "more")])
    assert [problem.path for problem in caught.value.problems] == ["loop", "hooks[0]", "hooks[1]"]


# The environment.


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("${A}", "one"),
        ("x-${A}-${B}", "x-one-two"),
        ("os.environ/A", "one"),
        ("x os.environ/A", "x os.environ/A"),
        ("${NOT_SET:-dflt}", "dflt"),
        ("${EMPTY:-dflt}", "dflt"),
        ("${A:-dflt}", "one"),
        ("${NOT_SET:-a:-b}", "a:-b"),
        ("$${A}", "${A}"),
        ("$A $$ {A}", "$A $$ {A}"),
        ("$${A}${B}", "${A}two"),
    ],
)
def test_environment(text: str, made: str) -> None:
    """Variables are read anywhere in a text."""
    environ = {"A": "one", "B": "two", "EMPTY": ""}
    assert good(altered("telemetry.service_name", text), environ).telemetry.service_name == made
    data = base(hooks=[{"mcp": {"deep": [text]}}])
    assert good(data, environ).hooks[0].settings == {"deep": [made]}


@pytest.mark.parametrize(
    ("path", "text", "made"),
    [
        ("server.port", "12", 12),
        ("server.port", " 12\n", 12),
        ("server.admin_port", "null", None),
        ("loop.max_seconds", "1.5", 1.5),
        ("upstreams.up.forward_client_auth", "true", True),
        ("upstreams.up.forward_client_auth", "0", False),
        ("loop.stream", "appended", "appended"),
    ],
)
@pytest.mark.parametrize("form", ["${V}", "os.environ/V", "${V:-9}"])
def test_lenient(path: str, text: str, made: Any, form: str) -> None:
    """Where a whole value comes from the environment, numbers and booleans are read from it."""
    value: Any = good(altered(path, form), {"V": text})
    for name in path.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    assert value == made
    assert type(value) is type(made)


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("${NOPE}", "variable NOPE is not set"),
        ("os.environ/NOPE", "variable NOPE is not set"),
        ("a${NOPE}b", "variable NOPE is not set"),
        ("${EMPTY}", "the value of ${EMPTY}, which is empty"),
        ("${A", "without its }"),
        ("${}", "names no variable"),
        ("${1A}", "names no variable"),
        ("${A-b}", "names no variable"),
        ("os.environ/", "names no variable"),
        ("os.environ/a b", "names no variable"),
        ("${A:-${B}}", "inside another"),
    ],
)
def test_environment_refused(value: str, part: str) -> None:
    """A variable that cannot be read is told once, with the key's path."""
    found = problems(altered("upstreams.up.api_key", value), {"EMPTY": "", "A": "1", "B": "2"})
    assert list(found) == ["upstreams.up.api_key"]
    assert part in found["upstreams.up.api_key"]


def test_two_missing_variables() -> None:
    """Each missing variable of one text is named."""
    draft = settings.read_mapping(altered("upstreams.up.api_key", "${N1}${N2}"), environ={})
    assert [problem.text.split()[3] for problem in draft.problems] == ["N1", "N2"]


def test_missing_in_a_list() -> None:
    """The path of a variable goes down into lists and settings of hooks."""
    assert list(problems(base(hooks=[{"mcp": {"a": ["${NOPE}"]}}]))) == ["hooks[0].mcp.a[0]"]


def test_empty_default_is_null() -> None:
    """`${NAME:-}` leaves out what may be left out."""
    assert good(altered("upstreams.up.api_key", "${NOPE:-}")).upstreams["up"].api_key is None


def test_part_of_a_text_is_not_lenient() -> None:
    """A number is not read from a text of which only a part comes from the environment."""
    assert "server.port" in problems(altered("server.port", "4${V}"), {"V": "2"})


@pytest.mark.parametrize("path", ["server.port", "loop.stream", "upstreams.up.base_url", "upstreams.up.proxy"])
def test_no_value_of_the_environment(path: str) -> None:
    """No message shows what a variable holds."""
    draft = settings.read_mapping(altered(path, "${V}"), environ={"V": "hush-hush"})
    assert draft.problems
    assert "hush" not in str(draft.problems)


# The file.


def load(text: str | bytes, folder: Path, environ: dict[str, str] | None = None) -> settings.Settings:
    path = folder / "odd-name.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return settings.load(path, environ or {})


def lines(text: str | bytes, folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, folder)
    return [line.removeprefix(f"{folder}/") for line in caught.value.lines()]


GOOD = """
auth: {keys: [{name: a, key: "${K:-key}"}]}
upstreams: {up: {base_url: "http://h"}}
models: [{name: 2024-05-01, upstream: up}]
"""


def test_good_file(tmp_path: Path) -> None:
    """A good file is read; a date stays the text that it was."""
    assert load(GOOD, tmp_path).models[0].name == "2024-05-01"
    assert load(b"\xef\xbb\xbf" + GOOD.encode(), tmp_path).auth.keys[0].name == "a"


@pytest.mark.parametrize("text", ["", "{}", "# nothing\n", "---\n", "null"])
def test_empty_file(text: str, tmp_path: Path) -> None:
    """An empty file says what is missing."""
    assert [line.split(": ")[1] for line in lines(text, tmp_path)] == ["upstreams", "models", "auth.keys"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("server: {port: [1\nmodels: ]: {", "line 2, column "),
        ("a:\n\tb: 1", "line 2, column 1"),
        ("a: 'x", "no valid YAML"),
        ("a: *b", "undefined alias"),
        ("a: 1\n---\nb: 2", "line 2"),
        ("a: !thing 1", "line 1, column 4"),
        ("a: !!int x", "a tag has a value"),
        ("? [a]\n: 1", "no valid YAML"),
        ("? {a: 1}\n: 1", "no valid YAML"),
        ("a: \x01", "line 1, column 4"),
        ("a: &x [*x]", "an alias holds itself"),
        ("[" * 5000, "nested too deeply"),
        (b"a: \xff", "not UTF-8 (at byte 3)"),
        ("- 1", "is a list; write a mapping"),
        ("just text", "is a text; write a mapping"),
        ("7", "is a whole number; write a mapping"),
    ],
)
def test_no_data(text: str | bytes, part: str, tmp_path: Path) -> None:
    """What gives no data is one line that names the file and the place."""
    (line,) = lines(text, tmp_path)
    assert line.startswith("odd-name.yaml: ")
    assert part in line


def test_duplicate_keys(tmp_path: Path) -> None:
    """A key that stands twice is refused with both lines, at any depth, beside all other problems."""
    text = GOOD + "loop:\n  usage: sum\n  usage: last\n  stream: x\nloop: {}\nloop: {}\nzzz: [{a: 1, a: 2}]\n"
    found = lines(text, tmp_path)
    assert [line.split(": ")[1] for line in found] == ["loop.usage", "loop", "loop", "zzz[0].a", "zzz"]
    assert "duplicate: it stands in line 6 and in line 7" in found[0]


def test_merge_keys(tmp_path: Path) -> None:
    """A YAML merge may be overridden without being a duplicate."""
    text = GOOD.replace("{base_url", "&up {base_url") + "loop: {<<: {usage: last}, usage: sum}\n"
    assert load(text, tmp_path).loop.usage == "sum"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("absent.yaml", "no such file"),
        (".", "a folder"),
        ("odd-name.yaml/x", "cannot be read"),
        ("a\0b", "this is no path"),
    ],
)
def test_no_file(name: str, part: str, tmp_path: Path) -> None:
    """A file that cannot be read is refused by its name."""
    (tmp_path / "odd-name.yaml").touch()
    with pytest.raises(ConfigError) as caught:
        settings.load(tmp_path / name, {})
    (line,) = caught.value.lines()
    assert part in line
    assert line.startswith(str(tmp_path))


def test_process_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without another one the environment is that of the process."""
    monkeypatch.setenv("K", "from-the-process")
    path = tmp_path / "f.yaml"
    path.write_text(GOOD)
    key = settings.load(path).auth.keys[0].key
    assert key is not None
    assert key.reveal() == "from-the-process"


# Secrets.


def test_secret() -> None:
    """A secret shows itself only when asked to, and compares by value."""
    secret = Secret("hush")
    assert (repr(secret), str(secret), f"{secret}") == ("Secret(***)",) * 3
    assert secret.reveal() == "hush"
    assert (secret == Secret("hush"), secret == Secret("hus"), secret == Secret("ü"), secret == "hush") == (
        True,
        False,
        False,
        False,
    )
    assert len({secret, Secret("hush")}) == 1


def test_no_secret_in_repr() -> None:
    """No key, header value, proxy or setting of a hook is in the repr of settings."""
    data = base(auth={"keys": [{"name": "a", "key": "hush1"}]}, hooks=[{"mcp": {"token": "hush2"}}])
    data["upstreams"]["up"] |= {"api_key": "hush3", "headers": {"x-a": "hush4"}, "proxy": "http://u:hush5@p:1"}
    assert "hush" not in repr(good(data))


# Flags.


def test_address_of_flags() -> None:
    """Flags win over the file, and clash with the admin port as the file does."""
    made = settings.at_address(good(base()), host="0.0.0.0", port=5000)
    assert (made.server.host, made.server.port, made.server.admin_port) == ("0.0.0.0", 5000, 9464)
    assert settings.at_address(good(base())) == good(base())
    for port in (9464, -1, 65536):
        with pytest.raises(ConfigError, match="--port"):
            settings.at_address(good(base()), port=port)
    with pytest.raises(ConfigError, match="--host"):
        settings.at_address(good(base()), host="")


# Translators.


def test_translator() -> None:
    """A translated file's problems are told under the file's own paths."""

    def translate(data: Any, environ: Any) -> settings.Translation | None:
        if "theirs" not in data:
            return None
        return settings.Translation(
            data=base(server={"port": data["theirs"]}, hooks=["a.b"]),
            warnings=[Problem("theirs", f"{environ['V']}")],
            paths={"server": "wrong", "server.port": "theirs", "hooks[0]": "callbacks"},
        )

    draft = settings.read_mapping({"theirs": "x"}, environ={"V": "w"}, translators=[translate])
    assert [problem.path for problem in draft.problems] == ["theirs"]
    assert draft.warnings == (Problem("theirs", "w"),)
    assert draft.hooks[0][0] == "callbacks"
    assert settings.read_mapping(base(), environ={}, translators=[translate]).settings is not None


# Any input.

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("${X}")
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
PATHS = sorted({path for path, _, _ in REFUSALS if not path.startswith("auth.keys[0].models[")})


@given(path=st.sampled_from(PATHS), value=anything)
def test_anything_anywhere(path: str, value: Any) -> None:
    """Whatever stands at a key, the answer is settings or problems of one line each, never another error."""
    try:
        data = altered(path, value)
    except (IndexError, KeyError):
        return
    draft = settings.read_mapping(data, environ={})
    assert (draft.settings is None) == bool(draft.problems)
    assert all("\n" not in f"{problem.path}{problem.text}" for problem in draft.problems)
    assert draft.settings is None or "REFUSED" not in repr(draft.settings)


@given(st.text(max_size=20))
def test_environment_read_twice(text: str) -> None:
    """A text that came from the environment is not read again, and a plain one is left as it is."""
    made = settings.read_mapping(base(hooks=[{"mcp": {"a": "${V}"}}]), environ={"V": text})
    if text:
        assert made.hooks[0][1].settings["a"] == text
        assert isinstance(made.hooks[0][1].settings["a"], EnvText)


def test_refused_marker() -> None:
    """The marker survives a copy, so that it is still known."""
    assert copy.deepcopy(REFUSED) is REFUSED
    assert repr(REFUSED) == "REFUSED"


def test_a_problem_is_one_line_whatever_the_names_are() -> None:
    """Also where the names that could be meant are listed."""
    data = {
        "auth": {"mode": "open"},
        "upstreams": {"a\nb": {"base_url": "http://h"}},
        "models": [{"name": "m", "upstream": "u"}],
    }
    problems = settings.read_mapping(data, environ={}).problems
    assert problems
    assert [one for one in problems if len(f"{one.path}{one.text}".splitlines()) > 1] == []
