"""The dashboards are what `dashboards/build.py` writes, and Grafana can load them.

Must not know a metric.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "dashboards"
_spec = importlib.util.spec_from_file_location("loopway_dashboards", FOLDER / "build.py")
assert _spec is not None
assert _spec.loader is not None
build: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build)
FILES = sorted(path.name for path in FOLDER.glob("*.json"))


def dashboard(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return loaded


@pytest.mark.parametrize("name", FILES)
def test_file_is_what_is_built(name: str) -> None:
    """A committed file is exactly what its source writes."""
    assert (FOLDER / name).read_text() == build.text(build.DASHBOARDS[name])


def test_table_in_the_readme() -> None:
    """README.md has every panel's question."""
    assert (FOLDER / "README.md").read_text().endswith(f"<!-- panels -->\n\n{build.questions()}")


def test_uids_are_unique() -> None:
    """No two dashboards have one uid, and none has a database's number."""
    loaded = [dashboard(name) for name in FILES]
    assert len({one["uid"] for one in loaded}) == len(FILES) == 3
    assert not any("id" in one for one in loaded)


@pytest.mark.parametrize("name", FILES)
def test_panels(name: str) -> None:
    """Panels have ids of their own, a question, the variable as their source, and do not overlap."""
    seen: set[tuple[int, int]] = set()
    panels = dashboard(name)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & seen, panel["title"]
        assert place["x"] + place["w"] <= 24
        seen |= cells
        if panel["type"] != "row":
            assert panel["description"].endswith((".", "?"))
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert all(source["uid"] == "${datasource}" for source in sources)


@pytest.mark.parametrize("name", FILES)
def test_schema(name: str) -> None:
    """The file has the schema of a current Grafana and a data source to choose."""
    loaded = dashboard(name)
    assert loaded["schemaVersion"] >= 41
    assert loaded["templating"]["list"][0]["type"] == "datasource"
