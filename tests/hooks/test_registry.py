"""`loopway.hooks.registry`: from a dotted path to a hook instance, and every refusal on the way."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from loopway.errors import Problem
from loopway.hooks import registry
from loopway.hooks.base import AgenticLoopHook
from loopway.hooks.registry import Unusable, checked, load

HOOK = """
from loopway import AgenticLoopHook

Base = AgenticLoopHook

class Hook(Base):
    async def async_should_run_agentic_loop(self, **given):
        return False, {}

hook = Hook()
"""

Write = Callable[[dict[str, str]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Writes modules (`write({"a": "…", "b/c": "…"})`); what is imported is forgotten afterwards."""
    before, path = set(sys.modules), list(sys.path)

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            file = tmp_path / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    yield write
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refusal(dotted: str, folder: Path) -> str:
    with pytest.raises(Unusable) as caught:
        load(dotted, folder)
    return str(caught.value)


# --- what is found ---


@pytest.mark.parametrize(
    ("files", "dotted"),
    [
        ({"one": HOOK}, "one.hook"),
        ({"two/inner": HOOK, "two/__init__": ""}, "two.inner.hook"),
        ({"three/inner": HOOK}, "three.inner.hook"),
        ({"four/__init__": HOOK}, "four.hook"),
        ({"five": HOOK + "class Box:\n    kept = hook\n"}, "five.Box.kept"),
        ({"pack_six/deep/er": HOOK, "pack_six/__init__": "", "pack_six/deep/__init__": ""}, "pack_six.deep.er.hook"),
    ],
    ids=[
        "module",
        "package",
        "package without __init__",
        "in __init__",
        "attribute of a class",
        "package in a package",
    ],
)
def test_a_dotted_path_reaches_the_instance(write: Write, files: dict[str, str], dotted: str) -> None:
    """Modules, packages, packages in packages and attributes of attributes are followed to the instance."""
    found = load(dotted, write(files))
    assert type(found).__name__ == "Hook"


def test_the_folder_of_the_configuration_is_on_the_path_once(write: Write) -> None:
    """A hook may import its neighbours, and a second hook of the folder adds no second entry."""
    main = HOOK.replace("hook = Hook()", "import neighbour\nhook = Hook()\nother = Hook()")
    folder = write({"neighbour": "WORD = 'here'\n", "main_hooks": main})
    load("main_hooks.hook", folder)
    load("main_hooks.other", folder)
    assert sys.path.count(str(folder)) == 1


def test_a_module_is_imported_once_for_two_of_its_hooks(write: Write) -> None:
    """Two paths into one module name two instances of one import, so that they can share what the module holds."""
    folder = write({"pair": HOOK + "second = Hook()\n"})
    assert type(load("pair.hook", folder)) is type(load("pair.second", folder))


def test_adapt_sees_the_instance_before_it_is_checked(write: Write) -> None:
    """A foreign instance may be turned into a hook first."""

    class Mine(AgenticLoopHook):
        async def async_pre_call_hook(self, *given: Any, **named: Any) -> Any:
            return None

    mine = Mine()
    assert load("foreign.thing", write({"foreign": "thing = object()\n"}), lambda _thing: mine) is mine


# --- refusals of a path ---

BROKEN = [
    ({}, "no such.hook", "is no dotted path; write module.instance"),
    ({}, "a..b", "is no dotted path"),
    ({}, "module:hook", "is no dotted path"),
    ({"alone": HOOK}, "alone", "'alone' names no instance; write alone.NAME_OF_THE_INSTANCE"),
    ({}, "absent_module.hook", "there is no module 'absent_module' (for 'absent_module.hook')"),
    ({"has": HOOK}, "has.hok", "the module 'has' has no 'hok' (for 'has.hok'); did you mean 'hook'?"),
    ({"has2": HOOK}, "has2.zzz", "the module 'has2' has no 'zzz' (for 'has2.zzz')"),
    ({"box/__init__": ""}, "box.inside.hook", "the module 'box' has no 'inside' (for 'box.inside.hook')"),
    ({"plain": HOOK}, "plain.hook.deeper", "Hook has no 'deeper' (for 'plain.hook.deeper')"),
    ({"wants": "import not_installed_here\n"}, "wants.hook", "imports 'not_installed_here', which is not installed"),
    (
        {"pkg/__init__": "", "pkg/part": "import pkg.gone\n"},
        "pkg.part.hook",
        "the module 'pkg.part' (for 'pkg.part.hook') imports 'pkg.gone', which is not installed",
    ),
    ({"bad": "hook = ][\n"}, "bad.hook", "the module 'bad' (for 'bad.hook') cannot be imported: SyntaxError"),
    ({"raises": "raise RuntimeError('first\\nsecond')\n"}, "raises.hook", "cannot be imported: RuntimeError: first"),
    ({"exits": "raise SystemExit(3)\n"}, "exits.hook", "cannot be imported: SystemExit: 3"),
    ({"wrong": "from os import nothing_such\n"}, "wrong.hook", "cannot be imported: ImportError"),
]


@pytest.mark.parametrize(("files", "dotted", "said"), BROKEN, ids=[dotted for _, dotted, _ in BROKEN])
def test_a_path_that_leads_nowhere_says_why(write: Write, files: dict[str, str], dotted: str, said: str) -> None:
    """Each way in which a path can be wrong has its own sentence, on one line."""
    text = refusal(dotted, write(files))
    assert said in text
    assert "\n" not in text


# --- refusals of what was found ---

KINDS = [
    ("thing = Hook", "is a class; name an instance: add `hook = Hook()` to the module and write found.hook"),
    ("import json as thing", "is a module; name a hook instance inside it: found.thing.NAME_OF_THE_INSTANCE"),
    ("thing = object()", "is an instance of object, which has none of the hook methods; derive from"),
    ("thing = None", "is an instance of NoneType, which has none of the hook methods"),
    ("thing = AgenticLoopHook()", "is an instance of AgenticLoopHook, which has none of the hook methods"),
    ("def thing(): ...", "is an instance of function, which has none of the hook methods"),
    (
        "class Sync(Base):\n    def async_should_run_agentic_loop(self, **k): return False, {}\nthing = Sync()",
        "async_should_run_agentic_loop of Sync is not `async def`; write async def",
    ),
    (
        "class Gen(Base):\n    async def async_pre_call_hook(self, **k):\n        yield 1\nthing = Gen()",
        "async_pre_call_hook of Gen is not `async def`",
    ),
    (
        "class NotCallable(Base):\n    async_pre_call_hook = 'text'\nthing = NotCallable()",
        "async_pre_call_hook of NotCallable is not `async def`",
    ),
    (
        "class Planless(Base):\n    async def async_build_agentic_loop_plan(self, **k): ...\nthing = Planless()",
        "Planless has async_build_agentic_loop_plan but no gate, so it would never be asked",
    ),
    (
        "class Late(Base):\n    async def async_agentic_loop_cleanup_hook(self, **k): ...\nthing = Late()",
        "Late has async_agentic_loop_cleanup_hook but no gate, so it would never be asked",
    ),
    ("thing = Hook()\nthing.server_fulfilled_tool_names = ['a']", "server_fulfilled_tool_names of Hook is a list"),
    ("thing = Hook()\nthing.server_fulfilled_tool_names = 'a'", "server_fulfilled_tool_names of Hook is a str"),
    (
        "thing = Hook()\nthing.server_fulfilled_tool_names = frozenset({1})",
        "server_fulfilled_tool_names of Hook is a frozenset; write a frozenset of tool names",
    ),
]


@pytest.mark.parametrize(("code", "said"), KINDS, ids=[said[:50] for _, said in KINDS])
def test_what_is_no_hook_is_refused_with_what_to_write(write: Write, code: str, said: str) -> None:
    """Each kind of wrong object has its own sentence that says what was found and what to write."""
    text = refusal("found.thing", write({"found": f"{HOOK}\n{code}\n"}))
    assert text.startswith("'found.thing'")
    assert said in text


def test_a_module_in_a_package_is_a_module(write: Write) -> None:
    """A path that ends at a module of a package, which nothing has imported yet, is told as a module."""
    text = refusal("shelf.inside", write({"shelf/__init__": "", "shelf/inside": HOOK}))
    assert text == "'shelf.inside' is a module; name a hook instance inside it: shelf.inside.NAME_OF_THE_INSTANCE"


def test_the_refusals_differ_from_each_other(write: Write) -> None:
    """No two kinds of wrong object share a message."""
    texts = []
    for number, (code, _) in enumerate(KINDS[:3]):
        name = f"kind{number}"
        texts.append(refusal(f"{name}.thing", write({name: f"{HOOK}\n{code}\n"})).replace(name, ""))
    assert len(set(texts)) == len(texts)


# --- what counts as a method ---


class Gate(AgenticLoopHook):
    async def async_should_run_agentic_loop(self, *given: Any, **named: Any) -> tuple[bool, Any]:
        return False, {}


class Inherits(Gate):
    pass


class Stranger:
    """Derives from nothing of ours."""

    async def async_should_run_agentic_loop(self, **_given: Any) -> tuple[bool, Any]:
        return False, {}


class Callable_:  # noqa: N801 - the word is taken
    async def __call__(self, **_given: Any) -> tuple[bool, Any]:
        return False, {}


def on_instance(method: object) -> AgenticLoopHook:
    hook = AgenticLoopHook()
    hook.async_should_run_agentic_loop = method  # type: ignore[assignment, method-assign]
    return hook


@pytest.mark.parametrize(
    "hook",
    [
        Gate(),
        Inherits(),
        Stranger(),
        on_instance(Gate().async_should_run_agentic_loop),
        on_instance(Callable_()),
        on_instance(functools.partial(Gate().async_should_run_agentic_loop, 1)),
        on_instance(functools.partial(Callable_(), more=1)),
        on_instance(AsyncMock(return_value=(False, {}))),
    ],
    ids=["own", "inherited", "duck", "bound", "callable object", "partial", "partial of an object", "AsyncMock"],
)
def test_any_asynchronous_callable_is_a_method(hook: object) -> None:
    """A method may be inherited, set on the instance, a partial, or an object with an asynchronous `__call__`."""
    assert checked(hook, "m.hook") is hook


def test_a_mock_is_refused_and_not_unwrapped_for_ever() -> None:
    """An object that has every attribute is no asynchronous method, and the check ends."""
    with pytest.raises(Unusable, match="is not `async def`"):
        checked(on_instance(MagicMock()), "m.hook")


def test_a_set_of_names_is_as_good_as_a_frozenset() -> None:
    """`server_fulfilled_tool_names` may be a set."""
    hook = Gate()
    hook.server_fulfilled_tool_names = {"a"}  # type: ignore[assignment]
    assert checked(hook, "m.hook") is hook


def test_names_of_all_hooks_are_united() -> None:
    """The tools that only the server runs are those of all hooks together, of strangers without names, too."""
    one, two = Gate(), Gate()
    one.server_fulfilled_tool_names = frozenset({"a", "b"})
    two.server_fulfilled_tool_names = frozenset({"b", "c"})
    assert registry.names_of([one, two, Stranger()]) == {"a", "b", "c"}
    assert registry.names_of([]) == frozenset()


# --- built-ins ---


def test_an_unknown_built_in_is_a_problem_that_names_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is no built-in is told with the names that are."""
    monkeypatch.setattr(
        registry, "BUILT_INS", {"mcp": lambda _settings: Gate(), "compression": lambda _settings: Gate()}
    )
    problems: list[Problem] = []
    assert registry.built_in("mpc", {}, "hooks[0]", problems) is None
    assert problems[0].path == "hooks[0]"
    assert "'mpc' is no built-in hook (there are: compression, mcp)" in problems[0].text


def test_a_built_in_is_made_from_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A built-in gets its settings, and is the hook."""
    made: list[dict[str, Any]] = []

    def make(settings: dict[str, Any]) -> AgenticLoopHook:
        made.append(settings)
        return Gate()

    monkeypatch.setattr(registry, "BUILT_INS", {"mcp": make})
    assert isinstance(registry.built_in("mcp", {"a": 1}, "hooks[0]", []), Gate)
    assert made == [{"a": 1}]


def test_wrong_settings_of_a_built_in_are_a_problem_under_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a built-in says of its settings is told under its key path."""

    def make(_settings: dict[str, Any]) -> AgenticLoopHook:
        raise ValueError("provider: it is missing")

    monkeypatch.setattr(registry, "BUILT_INS", {"web_search": make})
    problems: list[Problem] = []
    assert registry.built_in("web_search", {}, "hooks[2]", problems) is None
    assert problems == [Problem("hooks[2].web_search", "provider: it is missing")]


def test_a_gate_that_cannot_be_called_is_refused() -> None:
    """Hook methods get all their parameters by name; one that takes fewer would fail on the first reply."""

    class Narrow(AgenticLoopHook):
        async def async_should_run_agentic_loop(self, response: Any) -> Any:  # type: ignore[override]
            return False, {}

    with pytest.raises(registry.Unusable, match="cannot be called"):
        registry.checked(Narrow(), "my_hooks.narrow")
