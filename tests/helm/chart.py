"""The chart, rendered by the real Helm engine, and what is in what it renders.

Must not know what a test wants of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "loopway"
CI = sorted((CHART / "ci").glob("*-values.yaml"))
RELEASE, NAMESPACE = "demo", "llm"
CORE_GROUPS = {"v1", "apps/v1", "autoscaling/v2", "policy/v1", "networking.k8s.io/v1"}

Object = dict[str, Any]


def ci(name: str) -> dict[str, Any]:
    """The values of a file of ci/."""
    values: dict[str, Any] = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    return values


def over(values: Mapping[str, Any], *changes: Mapping[str, Any]) -> dict[str, Any]:
    """Values with changes, merged as Helm merges them."""
    made = copy.deepcopy(dict(values))
    for change in changes:
        for name, value in change.items():
            old = made.get(name)
            made[name] = over(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return made


def rendered(values: Mapping[str, Any], path: Path = CHART) -> dict[str, str]:
    """Template to text."""
    with helm.Chart.load(path) as chart:
        chart.validate_schema(dict(values))
        texts = chart.render(dict(values), name=RELEASE, namespace=NAMESPACE)
    return {name.partition("/")[2]: text for name, text in texts.items()}


def objects(values: Mapping[str, Any], path: Path = CHART) -> list[Object]:
    """Every object, of all templates."""
    return list(_objects(rendered(values, path)))


def _objects(texts: Mapping[str, str]) -> Iterator[Object]:
    for name, text in texts.items():
        if name.endswith(".yaml"):
            yield from (one for one in yaml.safe_load_all(text) if one is not None)


def kinds(found: list[Object]) -> list[str]:
    return [one["kind"] for one in found]


def one(found: list[Object], kind: str, name: str | None = None) -> Object:
    """The only object of a kind, or the one of a name."""
    (it,) = [each for each in found if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    return it


def pod(found: list[Object]) -> Object:
    """The pod of the Deployment."""
    spec: Object = one(found, "Deployment")["spec"]["template"]["spec"]
    return spec


def gateway(found: list[Object]) -> Object:
    """Its main container."""
    (it,) = [each for each in pod(found)["containers"] if each["name"] == "gateway"]
    return dict(it)
