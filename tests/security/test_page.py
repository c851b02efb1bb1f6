"""`docs/security.md` and `docs/faults.md` name tests that are there, and every test of this folder is named."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
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


def tables() -> Iterator[tuple[str, list[list[str]]]]:
    """The tables of the page: the heading above, and the rows without the first two."""
    for section in PAGE.split("\n## ")[1:]:
        for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
            rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
            yield section.splitlines()[0], rows[2:]


def test_every_line_names_a_test() -> None:
    """A threat, or a bound, without a test is no line of a table; who is trusted is what the lines are about."""
    found = {heading: rows for heading, rows in tables() if heading != "Who is trusted"}
    assert len(found) == len(PAGE.split("\n## ")) - 2
    rows = [row for heading, rows in tables() if heading != "Who is trusted" for row in rows]
    assert [row for row in rows if len(row) != 3 or not re.fullmatch(r"(`[\w/]+\.py::\w+`(, )?)+", row[2])] == []


ITEMS = {
    "key handling": "a key is found by timing",
    "header smuggling and injection": "hop-by-hop",
    "request smuggling": "a request in a request",
    "SSRF": "a field chooses a host",
    "JSON bombs": "JSON bombs",
    "deep nesting": "nested deeply",
    "decompression bombs": "a compression bomb from an upstream",
    "log injection": "a text forges a line of the log",
    "tool results that look like frames": "a tool result looks like frames",
    "cross-key reads": "another key's half of a mixed reply",
    "the admin port": "the admin port",
    "audit": "a dependency with a known hole",
    "SBOM": "nobody knows what is in an image",
}


@pytest.mark.parametrize("item", ITEMS)
def test_nothing_is_forgotten(item: str) -> None:
    """What every gateway is attacked by has its line."""
    assert any(ITEMS[item] in row[0] for _, rows in tables() for row in rows)


@pytest.mark.parametrize("who", ["operator", "hook author", "upstream", "client", "tool result"])
def test_everybody_is_in_the_model(who: str) -> None:
    """Each of them is trusted with something, or with nothing."""
    assert any(heading == "Who is trusted" and row[0].startswith(who) for heading, rows in tables() for row in rows)


def test_targets_of_the_supply_chain() -> None:
    """`make audit` and `make sbom` run the tools of the page, over the file that the image installs from."""
    if shutil.which("make") is None:
        pytest.skip("there is no make on this machine")
    for target, tool in (("audit", "pip_audit"), ("sbom", "cyclonedx-py")):
        done = subprocess.run(["make", "-n", target], cwd=TESTS.parent, capture_output=True, text=True, check=True)
        (line,) = [line for line in done.stdout.splitlines() if tool in line]
        assert "requirements/lock.txt" in line
    assert "requirements/lock.txt" in (TESTS.parent / "Dockerfile").read_text()


def test_every_test_here_is_named() -> None:
    """A test of this folder stands for a line of the threat model."""
    here = {(f"security/{path.name}", name) for path in TESTS.glob("security/test_*.py") for name in names_of(path)}
    own = {(f"security/{Path(__file__).name}", name) for name in names_of(Path(__file__))}
    assert here - own - set(NAMED) == set()


def test_the_page_of_faults_names_files_that_are_there() -> None:
    """Each section of the page for operators says which file to look into."""
    page = (TESTS.parent / "docs" / "faults.md").read_text()
    for name in re.findall(r"`((?:tests|benchmarks)/[\w/]+(?:\.py)?/?)`", page):
        assert (TESTS.parent / name).exists(), name
