"""A real Prometheus scrapes a running gateway: every expression of every panel and rule gives data.

Needs Debian's package `prometheus` (`prometheus` and `promtool`); skipped where it is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from dashboards.load import KEY, gateway, load
from dashboards.test_dashboards import FILES, FOLDER, dashboard

PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")
LONGEST_SECONDS = 40.0
COUNTED = (
    ("loopway_loop_iterations_total", "outcome", {"rerun", "override", "terminate", "skip"}),
    ("loopway_loop_aborts_total", "reason", {"fingerprint", "max_agentic_loops", "max_seconds", "max_tool_calls"}),
    ("loopway_tool_calls_total", "result", {"ok", "error"}),
    ("loopway_rejected_requests_total", "reason", {"unauthorized", "not_found", "full"}),
    ("loopway_client_disconnects_total", "phase", {"stream"}),
    ("loopway_requests_total", "status", {"200", "401", "404", "429", "500", "502", "529"}),
)
"""What the load must have caused, so that no panel shows the zero that it starts with."""
RULES = FOLDER / "alerts.yaml"

pytestmark = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="no `prometheus` or no `promtool`: apt-get install prometheus"
)


def panels() -> dict[str, str]:
    """Every expression of every panel, with its variables replaced as Grafana does."""
    found = {}
    for name in FILES:
        for panel in dashboard(name)["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"].replace("$__rate_interval", "30s")
                expression = re.sub(r"\$(job|model|upstream)\b", ".*", expression)
                assert "$" not in expression
                found[f"{name} {panel['title']} {target['refId']}"] = expression
        for variable in dashboard(name)["templating"]["list"][1:]:
            selector = variable["query"]["query"].removeprefix("label_values(").rpartition(",")[0]
            found[f"{name} ${variable['name']}"] = selector.replace("$job", ".*")
    return found


def rules() -> dict[str, str]:
    """Every expression of every rule; of an alert's both sides of `and`, without the thresholds."""
    found = {}
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            if "record" in rule:
                found[rule["record"]] = rule["expr"]
                found[f"recorded {rule['record']}"] = rule["record"]
            else:
                for number, side in enumerate(re.split(r" and on \(job\) ", rule["expr"])):
                    bare, count = re.subn(r" > [\d.* ]+$", "", side.strip())
                    assert count == 1, f"{rule['alert']} has no threshold"
                    found[f"{rule['alert']} {number}"] = bare
    return found


@contextlib.asynccontextmanager
async def prometheus(target: str, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A Prometheus that scrapes one target and evaluates the rules."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "loopway", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    process = await asyncio.create_subprocess_exec(
        PROMETHEUS or "",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10.0, verify=False) as client:
            yield client
    finally:
        process.kill()
        await process.wait()


async def empty(client: httpx.AsyncClient, expressions: dict[str, str]) -> dict[str, str]:
    """The expressions that give nothing, or nothing but NaN."""
    left = {}
    for name, expression in expressions.items():
        answer = (await client.get("/api/v1/query", params={"query": expression})).json()
        assert answer["status"] == "success", (name, answer)
        if not any(not math.isnan(float(series["value"][1])) for series in answer["data"]["result"]):
            left[name] = expression
    return left


async def test_every_expression_gives_data(tmp_path: Path) -> None:
    """Under a load with all outcomes and aborts no panel and no rule is empty."""
    left = panels() | rules()
    assert len(left) > 70
    async with gateway() as served, prometheus(served.admin_url.removeprefix("http://"), tmp_path) as client:
        with contextlib.suppress(TimeoutError):  # then what is left tells more
            async with asyncio.timeout(LONGEST_SECONDS):
                while left:
                    await load(served)
                    with contextlib.suppress(httpx.TransportError):  # it is still starting
                        left = await empty(client, left)
        assert left == {}
        health = (await client.get("/api/v1/rules")).json()["data"]["groups"]
        assert {rule["health"] for group in health for rule in group["rules"]} == {"ok"}
        for metric, label, values in COUNTED:
            by = f"sum by ({label}) ({metric}) > 0"
            answer = (await client.get("/api/v1/query", params={"query": by})).json()
            assert values <= {series["metric"][label] for series in answer["data"]["result"]}, metric


def promtool(*arguments: str, given: str = "") -> str:
    """Run promtool; what it said, if it found fault."""
    done = subprocess.run([PROMTOOL or "", *arguments], input=given, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip()
    return said if done.returncode or "error" in said.lower() else ""


def test_rules() -> None:
    """Promtool finds no fault with the rules."""
    assert promtool("check", "rules", "--lint-fatal", str(RULES)) == ""


def test_rules_of_the_rules() -> None:
    """The rules do what their unit tests say, and each alert has one."""
    tests: Any = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())
    tested = {
        one["alertname"] for test in tests["tests"] for one in test.get("alert_rule_test", ()) if one["exp_alerts"]
    }
    groups = yaml.safe_load(RULES.read_text())["groups"]
    assert tested == {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert promtool("test", "rules", str(FOLDER / "alerts_test.yaml")) == ""


async def test_metrics_are_clean() -> None:
    """Promtool finds no fault with names and help texts of the page."""
    async with gateway() as served:
        await load(served)
        page = (await served.http.get(f"{served.admin_url}/metrics")).text
        assert KEY not in page
        assert promtool("check", "metrics", given=page) == ""
