"""Configurations that look nearly right, in both shapes, as data and as text: settings, or lines of what is wrong.

Any value at any one key is in `tests/test_settings.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from loopway import settings
from loopway.compat import litellm
from loopway.compat.litellm import keys
from loopway.errors import ConfigError
from loopway.settings.shape import Settings

TEXTS = ("", "x", "m", "http://h", "https://h/v1", "\ud800", "${V}", "${V:-1}", "${", "os.environ/V", "\n", "*", "a.b",
         "anthropic/x", "openai/", "hosted_vllm/m")  # fmt: skip
NUMBERS = (None, True, False, 0, 1, -1, 10**400, 0.5, float("nan"), float("inf"))
OURS = """keys name key models mode base_url api_key dialects headers upstream model fallback max_agentic_loops
web_search provider mcp port on_limit no_such_key"""
THEIRS = """model_name litellm_params model api_base api_key max_agentic_loops timeout extra_headers callbacks fallbacks
master_key num_retries ssl_verify set_verbose mock_response custom_llm_provider organization
pre_call_rules no_such_key"""
OUR_NAMES = st.sampled_from([*Settings.__struct_fields__, *OURS.split()])
THEIR_NAMES = st.sampled_from([*sorted(keys.SECTIONS), *THEIRS.split()])
SCALARS = st.sampled_from([*TEXTS, *NUMBERS])
ODD_NAMES = SCALARS.filter(lambda one: one != "\n")


def trees(names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Plain data with these keys, and with some that are none."""
    return st.recursive(
        SCALARS | st.builds(dict) | st.builds(list),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | ODD_NAMES, inner, max_size=4),
        max_leaves=20,
    )


def files(names: st.SearchStrategy[str], good: dict[str, Any]) -> st.SearchStrategy[dict[Any, Any]]:
    """A file of which some sections are good, and some are anything."""
    return st.dictionaries(names, trees(names), max_size=5).map(lambda changes: {**good, **changes})


GOOD = {
    "auth": {"mode": "open"},
    "upstreams": {"u": {"base_url": "http://h"}},
    "models": [{"name": "m", "upstream": "u"}],
}
THEIR_MODEL = {"model_name": "m", "litellm_params": {"model": "anthropic/x", "api_key": "k"}}
THEIR_GOOD = {"model_list": [THEIR_MODEL], "general_settings": {"master_key": "k"}}


def checked(draft: settings.Draft) -> None:
    """The law: settings or problems, each of one line with a key path that can be found."""
    assert (draft.settings is None) == bool(draft.problems)
    for problem in (*draft.problems, *draft.warnings):
        assert problem.text
        assert len(f"{problem.path}{problem.text}".splitlines()) == 1
        assert len(problem.text) < 1000


@limits(max_examples=150, deadline=None)
@given(files(OUR_NAMES, GOOD) | files(THEIR_NAMES, THEIR_GOOD) | trees(OUR_NAMES | THEIR_NAMES))
@example({**THEIR_GOOD, "model_list": [{**THEIR_MODEL, "litellm_params": [{}]}]})
def test_any_data(data: Any) -> None:
    """In either shape, and in a mixture of both."""
    try:
        draft = settings.read_mapping(data, environ={"V": "v"}, translators=[litellm.translate])
    except ConfigError:
        draft = None
    assert (draft is None) == (not isinstance(data, dict) and data is not None)
    if draft is not None:
        checked(draft)


GOOD_LINES = yaml.safe_dump(GOOD).splitlines() + yaml.safe_dump(THEIR_GOOD).splitlines()
ODD_LINES = ("server: {port: 1}", "hooks: [a.b]", "\t", "---", "...", "&a [*a]", "a: &a {b: *a}", "<<: *a", "!!set {a}",
             "!!python/object/apply:os.abort []", "? [a]", "a: b: c", "'", '"', "|", "%TAG", "2024-01-01: 1", "~: 1",
             "1: 1", ".inf: .nan", "- - - -", "{", "[", "\0", "\ufeff", "\x85", "# x", "")  # fmt: skip
LINES = st.sampled_from([*GOOD_LINES, *ODD_LINES])


@limits(max_examples=100, deadline=None)
@given(st.lists(LINES, max_size=9).map("\n".join) | st.binary(max_size=30).map(lambda one: one.decode("latin-1")))
@example("a: &a [*a]\n")
@example("[" * 1500)
@example(yaml.safe_dump(GOOD) + "server: &a {b: *a}\n")
def test_any_text(tmp_path_factory: Any, text: str) -> None:
    """A file is settings, a list of problems, or one error that names the file; nothing in it is ever run."""
    path: Path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        draft = settings.read(path, {}, translators=[litellm.translate])
    except ConfigError as wrong:
        told = str(wrong)
    else:
        checked(draft)
        told = draft.source
    assert "any.yaml" in told
