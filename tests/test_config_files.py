"""The files in config/ load, and docs/configuration.md says what the code says.

Must not know what a setting does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest
import yaml

from loopway import settings
from loopway.compat import litellm
from loopway.settings.decode import kind_of, wanted

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "config").glob("*.yaml"))
TABLE = ROOT / "docs" / "configuration.md"
NO_ROWS = {settings.HookSetting}  # one entry is a text or a mapping; the prose says it


def named(path: Path) -> list[str]:
    """The variables that the first lines of a file say it wants."""
    (line,) = re.findall(r"# Wants in the environment: (.*)\.$", path.read_text(), re.MULTILINE) or [""]
    return re.findall(r"[A-Z][A-Z0-9_]+", line)


def load(path: Path, environ: dict[str, str]) -> settings.Draft:
    return settings.read(path, environ, translators=[litellm.translate])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_loads(path: Path) -> None:
    """Each file is good, without a warning, with the variables that it names, and wants no others."""
    environ = {name: "a" * 64 if "SHA256" in name else f"key-of-{name}" for name in named(path)}
    draft = load(path, environ)
    assert draft.problems == ()
    assert draft.warnings == ()
    for name in environ:
        rest = {other: value for other, value in environ.items() if other != name}
        assert load(path, rest).problems, f"{name} is not used"


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("vllm", "http://127.0.0.1:8000"),
        ("llamacpp", "http://127.0.0.1:8080"),
        ("ollama", "http://127.0.0.1:11434"),
    ],
)
def test_local_servers(name: str, url: str) -> None:
    """A local server is found at its own default port, without a key; both can be set from outside."""
    path = ROOT / "config" / f"{name}.yaml"
    made = load(path, {}).checked().upstreams[name]
    assert (made.base_url, made.api_key, made.dialects) == (url, None, ["chat_completions"])
    upper = name.upper()
    environ = {f"{upper}_BASE_URL": "http://h", f"{upper}_API_KEY": "k", f"{upper}_MODEL": "m"}
    other = load(path, environ).checked()
    assert (other.upstreams[name].base_url, other.upstreams[name].api_key) == ("http://h", settings.Secret("k"))
    assert other.models[0].sent_as == "m"


def keys(kind: type[msgspec.Struct], above: str = "") -> Iterator[tuple[str, msgspec.structs.FieldInfo, type]]:
    """Every key of a Struct and of those in it, as `models[].name` and `upstreams.NAME.base_url`."""
    for field in msgspec.structs.fields(kind):
        path = f"{above}{field.encode_name}"
        yield path, field, kind
        inner = kind_of(field.type).type
        mark = "."
        if get_origin(inner) is list:
            (inner,), mark = get_args(inner), "[]."
        elif get_origin(inner) is dict:
            inner, mark = get_args(inner)[1], ".NAME."
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct) and inner not in NO_ROWS:
            yield from keys(inner, path + mark)


def meaning(kind: type, name: str) -> str:
    """What a Struct's docstring says of a field."""
    text = re.search(rf"^        {name}: (.*?)(?=^        \w+: |\Z)", kind.__doc__ or "", re.MULTILINE | re.DOTALL)
    assert text, f"{kind.__name__}.{name} is not in its docstring"
    return " ".join(text[1].split())


def row(path: str, field: Any, kind: type) -> str:
    """The table's line for a key."""
    taken = kind_of(field.type)
    default = field.default if field.default is not msgspec.NODEFAULT else None
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if isinstance(default, msgspec.Struct):
        shown = "its own"
    else:
        shown = "required" if field.required else f"`{json.dumps(default)}`"
    what = wanted(field.type)
    if taken.struct is not None:
        what = "mapping"
    elif get_origin(taken.type) is list:
        what = "list"
    elif get_origin(taken.type) is dict:
        what = "mapping by name"
    what = re.sub(r"^an? ", "", what).replace(f" of {taken.unit}", "").replace(" that is not empty", "")
    return f"| `{path}` | {what} | {shown} | {taken.unit} | {meaning(kind, field.name)} |"


def test_table() -> None:
    """docs/configuration.md has the line of every key, in order, and no other."""
    wanted_rows = [row(*key) for key in keys(settings.Settings)]
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| `") and line.count(" | ") == 4]
    assert rows == wanted_rows


def written(data: Any, above: str = "") -> set[str]:
    """The keys of plain data, in the notation of `keys`."""
    if isinstance(data, list):
        return set().union(*(written(item, above.removesuffix(".") + "[].") for item in data))
    if not isinstance(data, dict):
        return set()
    made = set()
    for key, value in data.items():
        name = "NAME" if above == "upstreams." else key
        made |= {f"{above}{name}"} | written(value, f"{above}{name}.")
    return made


def test_full_example_has_every_key() -> None:
    """config/loopway.yaml shows every key, each but the required ones and the example's own with its default."""
    data = yaml.safe_load((ROOT / "config" / "loopway.yaml").read_text())
    assert {path for path, _, _ in keys(settings.Settings)} == written(data) - {"upstreams.NAME"}
    made = load(ROOT / "config" / "loopway.yaml", dict.fromkeys(named(FILES[0]), "k") | ENVIRON).checked()
    for section in ("server", "loop", "telemetry", "hooks"):
        default = next(field for field in msgspec.structs.fields(settings.Settings) if field.name == section)
        assert getattr(made, section) == (
            default.default if default.default is not msgspec.NODEFAULT else default.default_factory()
        )


ENVIRON = {"TEAM_A_KEY": "a", "TEAM_B_SHA256": "b" * 64, "ANTHROPIC_API_KEY": "c"}


def test_full_example_comments_every_key() -> None:
    """Each key of config/loopway.yaml has its comment on the same line, but those that only hold others."""
    text = (ROOT / "config" / "loopway.yaml").read_text()
    bare = [
        line
        for line in text.splitlines()
        if re.match(r"\s*(- )?\w+: \S", line) and "#" not in line and not line.startswith("hooks")
    ]
    assert {line.strip() for line in bare} <= {
        "- name: team-b",
        "models: [claude-small]",
        "- name: claude-small",
        "upstream: anthropic",
        "model: claude-haiku-4-5",
    }


def test_readme_lists_every_file() -> None:
    """config/README.md has a line for each file."""
    assert sorted(re.findall(r"\]\(([\w.]+\.yaml)\)", (ROOT / "config" / "README.md").read_text())) == [
        path.name for path in FILES
    ]
