"""Imports go one way: DESIGN's arrows as data, held against what every module imports.

Must not know what a module does.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

ARROWS: dict[str, set[str]] = {
    # The command line starts things. `supervisor`, `serving` and `demo` are programs over `app`, so they stand above
    # it: nothing but the command line may know them.
    "__main__": {"cli"},
    "cli": {"app", "demo", "supervisor", "errors", "_version"},
    "demo": {"", "app", "serving", "settings", "telemetry", "testing"},
    "supervisor": {"app", "serving", "settings", "telemetry"},
    "serving": {"app"},
    # The composition root imports everything below it.
    "app": {
        "compat", "dialects", "engine", "errors", "exchange", "hooks", "server", "settings", "state", "telemetry",
        "upstream",
    },
    # The public names for hook authors. `app` stands here for `create_app`, which is imported when it is asked for.
    "": {"app", "engine.plan", "errors", "hooks.base", "hooks.server_tools", "hooks.tools", "_version"},
    # DESIGN's arrows. `server` and `exchange` emit and carry notes, so they name them; `telemetry` only reads them.
    "server": {"exchange", "dialects", "engine.notes", "errors", "ids", "_version"},
    "exchange": {"engine", "dialects", "hooks", "upstream", "errors"},
    "hooks": {"engine", "state", "errors", "ids", "_version"},
    "dialects": {"engine", "errors"},
    "upstream": {"errors", "_version"},
    "state": {"errors"},
    "telemetry": {"engine.notes", "_version"},
    "settings": {"engine.limits", "errors"},
    # A callback class of LiteLLM's is taken as a hook: `errors` for what a file or a class gets wrong.
    "compat": {"settings", "hooks.base", "engine.plan", "errors"},
    "engine": {"errors"},
    # These import nothing of ours. `testing` is for everybody, so it must stay below all.
    "errors": set(),
    "ids": set(),
    "testing": set(),
    "_version": set(),
}  # fmt: skip
"""What may import what, by the first part of a module's name below `loopway`; `""` is `loopway` itself."""

OUTSIDE: dict[str, set[str]] = {
    "httpx": {"upstream", "hooks"},
    "httpx2": {"hooks"},
    "aiohttp": {"upstream", "hooks"},
    "httpx_aiohttp": {"upstream", "hooks"},
    "litestar": {"server", "app"},
    "uvicorn": {"serving"},
    "yaml": {"settings"},
    "opentelemetry": {"telemetry"},
    "mcp": {"hooks"},
    "structlog": {"telemetry", "supervisor", "state", "hooks"},
}
"""Libraries that only these may import, so that each is known in one place.

`supervisor` and `state` write log lines themselves: what they have to say belongs to no exchange, so there is no note.
The hook `compression` does, since no note tells what a hook made of a request.
"""

PURE = {"engine", "dialects"}
PURE_MAY_IMPORT = {"msgspec"}
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc"}
LONGEST_PURE_FILE = 400

FILES = sorted((SRC / "loopway").rglob("*.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def imports(module: str, tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every module that a module names in an import, wherever that stands, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = node.module or ""
            if node.level:
                parts = module.split(".")
                inside = parts if MODULES[module].name == "__init__.py" else parts[:-1]
                above = ".".join([*inside[: len(inside) - node.level + 1], *above.split(".")]).rstrip(".")
            for alias in node.names:
                full = f"{above}.{alias.name}"
                yield (full if full in MODULES else above), node.lineno


TREES = {module: ast.parse(path.read_text(), str(path)) for module, path in MODULES.items()}
IMPORTS = {module: list(imports(module, tree)) for module, tree in TREES.items()}


def below(module: str) -> str:
    """A module's name below `loopway`."""
    return module.removeprefix("loopway").removeprefix(".")


def part(module: str) -> str:
    return below(module).partition(".")[0]


def allowed(importer: str, imported: str) -> bool:
    name = below(imported)
    own = part(importer)
    if own and own == part(imported):
        return True
    return any(name == arrow or (arrow and name.startswith(f"{arrow}.")) for arrow in ARROWS[own])


@pytest.mark.parametrize("module", MODULES)
def test_arrows(module: str) -> None:
    """A module imports only what its arrow allows; an import for types counts."""
    assert part(module) in ARROWS, f"{module}: there is no arrow from {part(module)!r}"
    wrong = [
        f"{MODULES[module]}:{line} imports {imported}"
        for imported, line in IMPORTS[module]
        if imported.partition(".")[0] == "loopway" and not allowed(module, imported)
    ]
    assert not wrong, "\n".join(wrong)


def test_arrows_name_what_is_there() -> None:
    """Each arrow starts and ends at something that exists, and every package has its row."""
    there = {part(module) for module in MODULES}
    assert set(ARROWS) == there
    wanted = {below(module) for module in MODULES}
    assert {end for arrows in ARROWS.values() for end in arrows} <= wanted


def test_no_cycle() -> None:
    """No module imports itself over others, not for types and not inside a function."""
    graph = {
        module: {imported for imported, _ in found if imported in MODULES and imported != module}
        for module, found in IMPORTS.items()
    }
    done: set[str] = set()

    def walk(module: str, road: tuple[str, ...]) -> None:
        assert module not in road, " -> ".join([*road[road.index(module) :], module])
        if module not in done:
            for imported in sorted(graph[module]):
                walk(imported, (*road, module))
            done.add(module)

    for module in graph:
        walk(module, ())


@pytest.mark.parametrize("module", [module for module in MODULES if part(module) in PURE])
def test_pure(module: str) -> None:
    """engine/ and dialects/ import the standard library, msgspec, each other and the errors, and stay short."""
    outside = {imported.partition(".")[0] for imported, _ in IMPORTS[module]} - {"loopway"}
    assert outside <= PURE_MAY_IMPORT | sys.stdlib_module_names
    inside = {part(imported) for imported, _ in IMPORTS[module] if imported.startswith("loopway")}
    assert inside <= PURE | {"errors"}
    assert len(MODULES[module].read_text().splitlines()) <= LONGEST_PURE_FILE


PURE_BUT_IO = {"asyncio", "socket", "ssl", "subprocess", "threading", "urllib", "logging", "os", "pathlib", "time"}


@pytest.mark.parametrize("module", [module for module in MODULES if part(module) in PURE])
def test_pure_has_no_clock_and_no_files(module: str) -> None:
    """engine/ and dialects/ wait for nothing, read nothing and know no time: that comes in as an argument."""
    assert not {imported.partition(".")[0] for imported, _ in IMPORTS[module]} & PURE_BUT_IO


@pytest.mark.parametrize("library", OUTSIDE)
def test_libraries(library: str) -> None:
    """A library is imported only where its row says."""
    users = {part(module) for module, found in IMPORTS.items() for name, _ in found if name.split(".")[0] == library}
    assert users <= OUTSIDE[library]


@pytest.mark.parametrize("module", MODULES)
def test_docstrings(module: str) -> None:
    """Each module says in its docstring what it owns."""
    assert (ast.get_docstring(TREES[module]) or "").strip()


@pytest.mark.parametrize(
    "path", [SRC, *(SRC.parent / name for name in ("tests", "examples", "benchmarks"))], ids=lambda path: path.name
)
def test_names(path: Path) -> None:
    """No file or folder has a name that says nothing."""
    ours = [found for found in path.rglob("*") if "node_modules" not in found.parts]
    assert not [found for found in ours if found.stem.lower() in NAMES_THAT_SAY_NOTHING]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import loopway.errors", ["loopway.errors"]),
        ("from loopway import errors", ["loopway.errors"]),
        ("from loopway.errors import Refused", ["loopway.errors"]),
        ("from . import limits", ["loopway.engine.limits"]),
        ("from .limits import Limits", ["loopway.engine.limits"]),
        ("from ..errors import Refused", ["loopway.errors"]),
        ("if TYPE_CHECKING:\n    import loopway.app", ["loopway.app"]),
        ("def f():\n    from loopway.app import build", ["loopway.app"]),
    ],
)
def test_imports_are_found(source: str, found: list[str]) -> None:
    """Every way to write an import is read."""
    assert [name for name, _ in imports("loopway.engine.loop", ast.parse(source))] == found


@pytest.mark.parametrize(
    ("importer", "imported", "good"),
    [
        ("loopway.engine.loop", "loopway.engine.plan", True),
        ("loopway.engine.loop", "loopway.dialects.base", False),
        ("loopway.telemetry.logs", "loopway.engine.notes", True),
        ("loopway.telemetry.logs", "loopway.engine.loop", False),
        ("loopway.upstream.client", "loopway.settings", False),
        ("loopway.settings", "loopway", False),
        ("loopway", "loopway.server.routes", False),
    ],
)
def test_arrows_refuse(importer: str, imported: str, *, good: bool) -> None:
    """An arrow to a module is not one to its package, and no package may import back."""
    assert allowed(importer, imported) is good
