"""What is made from other files is current, and complete."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

HELM = Path(__file__).parents[2] / "helm"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", HELM / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_current(generate: ModuleType) -> None:
    """README.md and values.schema.json are what `python helm/generate.py` makes."""
    stale = [path.name for path, text in generate.files().items() if path.read_text() != text]
    assert stale == [], "run `python helm/generate.py`"


def leaves(values: Any, path: str = "") -> list[str]:
    """Every value without members, by its path."""
    if not isinstance(values, dict) or not values:
        return [path]
    return [leaf for name, value in values.items() for leaf in leaves(value, f"{path}.{name}".lstrip("."))]


def test_every_value_is_documented(generate: ModuleType) -> None:
    """Each value of values.yaml, or a mapping that holds it, has a comment, which the README shows."""
    text = (HELM / "loopway" / "values.yaml").read_text()
    told = {path for path, _, _ in generate.rows(text)}
    missing = [
        leaf
        for leaf in leaves(yaml.safe_load(text))
        if not any(leaf == path or leaf.startswith(f"{path}.") for path in told)
    ]
    assert missing == []
    assert told == set(generate.TYPES) | {"config"}


def test_schema_is_strict() -> None:
    """Every object of the schema that names members lets no other pass, and none is left without a rule."""

    def check(part: Any, path: str) -> None:
        if isinstance(part, list):
            for number, one in enumerate(part):
                check(one, f"{path}[{number}]")
        elif isinstance(part, dict):
            if "properties" in part:
                assert part.get("additionalProperties") is False, path
            for name, one in part.items():
                check(one, f"{path}.{name}")

    check(json.loads((HELM / "loopway" / "values.schema.json").read_text()), "$")
