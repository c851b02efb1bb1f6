"""docs/observability.md has every span attribute, metric and label of the code, and nothing else.

Must not know what they mean.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from loopway.engine.notes import Breach, GonePhase, Outcome, Phase, ToolResult
from loopway.telemetry import metrics as metrics_module
from loopway.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "observability.md").read_text()
SOURCES = [ROOT / "src" / "loopway" / "telemetry" / name for name in ("tracing.py", "attributes.py", "content.py")]
NAMED = re.compile(r"(gen_ai|openai|http|url|network|server|client|user_agent|error|loopway)(\.[a-z_]+)*\.[a-z_{}]+")
EVENTS = {"loopway.hook.{phase}", "loopway.upstream.try_failed", "loopway.first_content"}


def table(first: str) -> dict[str, list[str]]:
    """The rows of the table whose first column has this head, by that column's code words."""
    lines = PAGE.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows: dict[str, list[str]] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        assert name not in rows
        rows[name.strip("`")] = cells
    return rows


def names_in_code() -> Iterator[str]:
    """Every attribute and event name that the sources write, f-strings as templates."""
    for source in SOURCES:
        tree = ast.parse(source.read_text())
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(_shown(part) for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                text = node.value
            else:
                continue
            if NAMED.fullmatch(text):
                yield text


def _shown(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else part
    return f"{{{value.attr if isinstance(value, ast.Attribute) else ast.unparse(value)}}}"


def test_attributes() -> None:
    """The table of attributes has what the code writes, no more and no less."""
    assert set(table("attribute")) == set(names_in_code()) - EVENTS


def test_events() -> None:
    """The table of events has what the code writes."""
    assert set(table("event")) == EVENTS
    assert set(names_in_code()) >= EVENTS


METRICS = Metrics(models=["m"], hooks=["h"], upstreams=["u"], tools=["t"], provider=str)
FAMILIES: dict[str, Any] = {
    f"{family._name}{'_total' if family._type == 'counter' else ''}": family
    for family in cast("Any", METRICS.registry._collector_to_names)
}


def test_metrics() -> None:
    """The table of metrics has every family of the registry."""
    assert set(table("metric")) == set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_metric(name: str) -> None:
    """A metric's row has its type and its labels in their order."""
    kind, labels, meaning, series = table("metric")[name]
    family = FAMILIES[name]
    assert kind == family._type
    assert re.findall(r"`(\w+)`", labels) == list(family._labelnames)
    assert meaning
    assert series


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("loopway_loop_iterations_total", get_args(Outcome)),
        ("loopway_loop_aborts_total", get_args(Breach)),
        ("loopway_hook_duration_seconds", get_args(Phase)),
        ("loopway_tool_calls_total", get_args(ToolResult)),
        ("loopway_client_disconnects_total", get_args(GonePhase)),
        ("loopway_rejected_requests_total", metrics_module.REJECTIONS),
        ("loopway_tokens_total", metrics_module.TOKENS),
    ],
)
def test_closed_lists(name: str, words: tuple[str, ...]) -> None:
    """A metric's row names every value of its closed label."""
    assert set(words) <= set(re.findall(r"`(\w+)`", table("metric")[name][2]))


def test_errors() -> None:
    """Every kind of error that an exchange can end in is a known value."""
    import loopway.errors

    kinds = {one.kind for one in vars(loopway.errors).values() if hasattr(one, "kind")}
    assert kinds <= metrics_module.ERRORS
    turned_away = {one.kind for one in vars(loopway.errors).values() if getattr(one, "family", "") == "yours"}
    assert turned_away <= set(metrics_module.REJECTIONS)
