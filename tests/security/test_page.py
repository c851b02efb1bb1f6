"""`docs/security.md` and `docs/faults.md` name tests that are there, and every test of this folder is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


def names_of(path: Path) -> set[str]:
    found = ast.walk(ast.parse(path.read_text()))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {one.name for one in found if isinstance(one, kinds) and one.name.startswith("test_")}


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_what_is_named_is_there(file: str, name: str) -> None:
    """Each line of the threat model is held by a test that exists."""
    assert name in names_of(TESTS / file)


def test_every_line_names_a_test() -> None:
    """A threat without a test is no line of a table."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") == 4]
    threats = [row for row in rows if "threat" not in row and "::" not in row]
    tables = PAGE.split("## Who is trusted")[1].split("## Keys")[0]
    assert [row for row in threats if row not in tables] == []


def test_every_test_here_is_named() -> None:
    """A test of this folder stands for a line of the threat model."""
    here = {(f"security/{path.name}", name) for path in TESTS.glob("security/test_*.py") for name in names_of(path)}
    own = {(f"security/{Path(__file__).name}", name) for name in names_of(Path(__file__))}
    assert here - own <= set(NAMED)


def test_the_page_of_faults_names_files_that_are_there() -> None:
    """Each section of the page for operators says which file to look into."""
    page = (TESTS.parent / "docs" / "faults.md").read_text()
    for name in re.findall(r"`((?:tests|benchmarks)/[\w/]+(?:\.py)?/?)`", page):
        assert (TESTS.parent / name).exists(), name
