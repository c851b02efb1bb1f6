"""The chart as the Helm engine renders it: every file of ci/, and what each object must have."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

helm = pytest.importorskip("helm_python", reason="the dependency group `chart` is not installed")
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the dependency group `chart` is not installed")

from helm.chart import (  # noqa: E402
    CHART,
    CI,
    CORE_GROUPS,
    NAMESPACE,
    RELEASE,
    ROOT,
    ci,
    gateway,
    kinds,
    objects,
    one,
    over,
    pod,
    rendered,
)
