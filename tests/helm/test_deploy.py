"""docs/deploy.md: its values are rendered, and what it says of the image and the timers is so."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

pytest.importorskip("helm_python", reason="the dependency group `chart` is not installed")

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helm.chart import ROOT, objects, one, over, pod

PAGE = (ROOT / "docs" / "deploy.md").read_text()
VALUES = [yaml.safe_load(block) for block in re.findall(r"```yaml values\n(.*?)```", PAGE, re.DOTALL)]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
LOCK = (ROOT / "requirements" / "lock.txt").read_text()


@pytest.mark.parametrize("values", VALUES, ids=", ".join)
def test_values(values: dict[str, Any]) -> None:
    """Each block of values renders, over the first one."""
    assert "Deployment" in {each["kind"] for each in objects(over(VALUES[0], values))}


def test_timers() -> None:
    """The table of a pod's end has the numbers of the chart's defaults."""
    spec = pod(objects(VALUES[0]))
    stop = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = spec["terminationGracePeriodSeconds"]
    assert re.findall(r"^\| (\d+) s \|", PAGE, re.MULTILINE) == [
        str(at) for at in (0, stop, stop + 30, grace - 5, grace)
    ]


def test_the_image_fits_the_chart() -> None:
    """User, ports, paths and command of the Dockerfile are those that the chart uses."""
    found = objects(VALUES[0])
    spec = pod(found)
    context = spec["securityContext"]
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}" in DOCKERFILE
    ports = " ".join(str(each["containerPort"]) for each in spec["containers"][0]["ports"])
    assert f"EXPOSE {ports}" in DOCKERFILE
    mounts = {each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
    assert {"/etc/loopway", "/tmp"} <= mounts
    assert "LOOPWAY_CONFIG=/etc/loopway/loopway.yaml" in DOCKERFILE
    assert 'ENTRYPOINT ["/opt/loopway/bin/loopway"]' in DOCKERFILE
    assert spec["containers"][0]["args"][0] == "serve"
    assert one(found, "Pod")["spec"]["containers"][0]["command"][0] == "/opt/loopway/bin/python"


def test_the_image_installs_by_hash() -> None:
    """Every installation of the Dockerfile is from a lock with hashes, or from what was built before it."""
    joined = DOCKERFILE.replace("\\\n", " ")
    installs = re.findall(r"pip[^&\n]* install [^&\n]*", joined)
    assert len(installs) == 3
    assert all("--require-hashes" in one or "--no-index" in one for one in installs)
    for line in (LOCK + (ROOT / "requirements" / "build.txt").read_text()).replace("\\\n", " ").splitlines():
        if line and not line.lstrip().startswith("#"):
            assert "--hash=sha256:" in line


def test_the_lock_is_current() -> None:
    """Every dependency of pyproject.toml, extras included, is in the lock in a version that it allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = {
        name.split("[")[0]: version for name, version in re.findall(r"^([\w.\[\]-]+)==([\w.]+)", LOCK, re.MULTILINE)
    }
    extras = project["optional-dependencies"]
    shipped = {name for line in extras["all"] for name in Requirement(line).extras}
    wanted = [Requirement(line) for line in project["dependencies"]]
    wanted += [Requirement(line) for name in shipped for line in extras[name]]
    missing = [str(each) for each in wanted if locked.get(canonicalize_name(each.name), "") not in each.specifier]
    assert missing == [], "renew requirements/lock.txt: `make lock`"
