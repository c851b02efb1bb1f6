"""The chart as the Helm engine renders it: every file of ci/, and what each object must have."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

helm_python = pytest.importorskip("helm_python", reason="the dependency group `chart` is not installed")
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
from loopway.cli import main  # noqa: E402
from loopway.serving import AFTER_DRAIN_SECONDS  # noqa: E402
from running import running  # noqa: E402

MINIMAL = ci("minimal")
SCRAPED = {"monitoring": {"requireCRDs": False}}


@pytest.fixture(scope="module")
def all_objects() -> dict[str, list[dict[str, Any]]]:
    """What every file of ci/ renders, by its name."""
    return {
        path.name.removesuffix("-values.yaml"): objects(yaml.safe_load(path.read_text()))  # rendered once
        for path in CI
    }


# --- every file ---


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_kubernetes_takes_it(all_objects: dict[str, list[dict[str, Any]]], version: str) -> None:
    """Every object of Kubernetes' own kinds is valid, strictly, in the oldest and the newest version that is tested."""
    seen = set()
    for name, found in all_objects.items():
        for each in found:
            if each["apiVersion"] in CORE_GROUPS:
                seen.add(each["kind"])
                try:
                    kubernetes_validate.validate(each, version, strict=True)
                except kubernetes_validate.ValidationError as wrong:
                    pytest.fail(f"{name}, {each['kind']}: {wrong.message} at {list(wrong.path)}")
    assert seen >= {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy", "Pod"}


@pytest.mark.parametrize("path", CI, ids=lambda path: path.name.removesuffix("-values.yaml"))
def test_lint(path: Path) -> None:
    """Helm's own lint finds nothing, warnings included."""
    report = helm_python.lint(CHART, yaml.safe_load(path.read_text()), strict=True)
    assert (report["errors"], [said for said in report["messages"] if said["severity"] > 1]) == ([], [])


def test_lint_without_values() -> None:
    """The bare chart lints clean as well."""
    report = helm_python.lint(CHART, strict=True)
    assert (report["errors"], [said for said in report["messages"] if said["severity"] > 1]) == ([], [])


def test_every_object_is_labelled(all_objects: dict[str, list[dict[str, Any]]]) -> None:
    """Each object of the chart is in the release's namespace, with its labels; no name stands twice."""
    for name, found in all_objects.items():
        ours = [each for each in found if "helm.sh/chart" in each["metadata"].get("labels", {})]
        assert len(ours) == len(found) - (2 if name == "full" else 0)
        assert {each["metadata"]["namespace"] for each in ours} == {NAMESPACE}
        assert {each["metadata"]["labels"]["app.kubernetes.io/instance"] for each in ours} == {RELEASE}
        names = [(each["kind"], each["metadata"]["name"]) for each in found]
        assert len(names) == len(set(names))


def test_no_secret_is_made(all_objects: dict[str, list[dict[str, Any]]]) -> None:
    """The chart makes no Secret; variables come from the one that exists."""
    assert "Secret" not in {kind for found in all_objects.values() for kind in kinds(found)}
    env = {each["name"]: each for each in gateway(all_objects["minimal"])["env"]}
    assert env["ANTHROPIC_API_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "loopway-keys", "key": "anthropic-api-key"}


def containers(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    test = one(found, "Pod")["spec"]
    return [*pod(found)["containers"], *pod(found).get("initContainers", []), *test["containers"]]


def test_pods_are_restricted(all_objects: dict[str, list[dict[str, Any]]]) -> None:
    """Every pod and container fulfils the restricted Pod Security Standard, with a read-only root, without a token."""
    for found in all_objects.values():
        for spec in (pod(found), one(found, "Pod")["spec"]):
            context = spec["securityContext"]
            assert context["runAsNonRoot"] is True
            assert context["runAsUser"] == context["runAsGroup"] == 10001
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert spec["automountServiceAccountToken"] is False
            assert spec["enableServiceLinks"] is False
        for each in containers(found):
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


# --- one number ---


@pytest.mark.parametrize(
    ("drain", "stop", "grace"), [(0, 3, 18), (2.5, 3, 21), (30, 5, 50), (60, 10, 85), (300, 15, 330), (3600, 15, 3630)]
)
def test_timers_follow_from_the_drain(drain: float, stop: int, grace: int) -> None:
    """preStop, grace period and the gateway's own drain are one number."""
    found = objects(over(MINIMAL, {"drainSeconds": drain}))
    spec = pod(found)
    assert gateway(found)["lifecycle"]["preStop"]["sleep"]["seconds"] == stop
    assert spec["terminationGracePeriodSeconds"] == grace > stop + drain + AFTER_DRAIN_SECONDS
    config = yaml.safe_load(one(found, "ConfigMap")["data"]["loopway.yaml"])
    assert config["server"]["drain_seconds"] == drain


# --- the configuration and the hooks, with the gateway itself ---


@pytest.mark.parametrize("path", CI, ids=lambda path: path.name.removesuffix("-values.yaml"))
def test_the_gateway_takes_the_configuration(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`loopway check` is content with the rendered file, with the pod's variables and its /hooks."""
    values = yaml.safe_load(path.read_text())
    found = objects(values)
    container = gateway(found)
    maps = {each["metadata"]["name"]: each["data"] for each in found if each["kind"] == "ConfigMap"}
    (name,) = [each["configMap"]["name"] for each in pod(found)["volumes"] if each["name"] == "config"]
    if name not in maps:
        assert values["existingConfigMap"] == name
        return
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "from-a-secret"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "hooks"), *sys.path])
    monkeypatch.delitem(sys.modules, "our_hooks", raising=False)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    inline = ci("hooks-inline")["hooks"]["files"]
    for file, text in maps.get(f"{name}-hooks", inline).items():
        (hooks / file).write_text(text)
    config = tmp_path / "loopway.yaml"
    config.write_text(maps[name]["loopway.yaml"])
    assert main(["check", "--config", str(config)]) == 0, capsys.readouterr().err
    importlib.invalidate_caches()
    server = yaml.safe_load(maps[name]["loopway.yaml"])["server"]
    assert server["host"] == "0.0.0.0"
    assert [f"--port={server['port']}"] == [each for each in container["args"] if each.startswith("--port")]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"http": server["port"], **({"admin": server["admin_port"]} if server["admin_port"] else {})}


@pytest.mark.parametrize(
    ("name", "volume"),
    [
        ("hooks-inline", {"configMap": {"name": "demo-loopway-hooks"}}),
        ("hooks-configmap", {"configMap": {"name": "our-hooks"}}),
        ("hooks-image", {"emptyDir": {"sizeLimit": "1Gi"}}),
        (
            "hooks-volume",
            {
                "image": {
                    "reference": "registry.example.com/our-hooks@sha256:" + "1" * 64,
                    "pullPolicy": "IfNotPresent",
                }
            },
        ),
    ],
)
def test_hooks_are_mounted(all_objects: dict[str, list[dict[str, Any]]], name: str, volume: dict[str, Any]) -> None:
    """Wherever hook modules come from, they are at /hooks, which is on Python's path."""
    found = all_objects[name]
    container = gateway(found)
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "hooks"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/hooks", True)
    assert {"name": "PYTHONPATH", "value": "/hooks"} in container["env"]
    (there,) = [each for each in pod(found)["volumes"] if each["name"] == "hooks"]
    assert there == {"name": "hooks", **volume}
    copying = pod(found).get("initContainers", [])
    assert [each["command"] for each in copying] == ([["cp", "-r", "/hooks/.", "/copied/"]] * (name == "hooks-image"))


@pytest.mark.parametrize(
    ("change", "rolls"),
    [
        ({"config": {"loop": {"max_agentic_loops": 5}}}, True),
        ({"drainSeconds": 31}, True),
        ({"hooks": {"files": {"our_hooks.py": "weather = None\n"}}}, True),
        ({"replicaCount": 5}, False),
        ({"service": {"type": "NodePort"}}, False),
    ],
    ids=str,
)
def test_what_rolls_the_pods(change: dict[str, Any], rolls: bool) -> None:
    """A change of configuration or hooks changes the pod's checksums, and nothing else does."""

    def annotations(values: dict[str, Any]) -> dict[str, str]:
        template = one(objects(values), "Deployment")["spec"]["template"]["metadata"]
        return dict(template["annotations"])

    before = ci("hooks-inline")
    assert (annotations(before) != annotations(over(before, change))) is rolls


async def test_the_probes_are_answered() -> None:
    """Each probe's path is answered on the port that it names, with and without an admin port."""
    for name in ("minimal", "podmonitor"):
        container = gateway(objects(ci(name)))
        admin = {each["name"]: each["containerPort"] for each in container["ports"]}.get("admin")
        async with running(server={"admin_port": 0 if admin else None}) as served, httpx.AsyncClient() as client:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked = container[probe]["httpGet"]
                assert asked["port"] == ("admin" if admin else "http")
                assert (await client.get(f"{served.admin_url}{asked['path']}")).status_code == 200


async def test_the_test_pod_passes(all_objects: dict[str, list[dict[str, Any]]]) -> None:
    """What `helm test` runs is content with a gateway that is ready, and not with one that drains."""
    (container,) = one(all_objects["minimal"], "Pod")["spec"]["containers"]
    assert container["env"] == [{"name": "URL", "value": "http://demo-loopway:4000"}]
    assert one(all_objects["minimal"], "Pod")["metadata"]["annotations"]["helm.sh/hook"] == "test"
    async with running() as served:
        for draining, code in ((False, 0), (True, 1)):
            served.gateway.admission.draining = draining
            ended = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", *container["args"]],
                env={"URL": served.url},
                capture_output=True,
                check=False,
            )
            assert ended.returncode == code, ended.stderr


# --- more than one, and how many ---


@pytest.mark.parametrize(
    ("change", "budget"),
    [
        ({}, {"maxUnavailable": 1}),
        ({"replicaCount": 1}, None),
        ({"autoscaling": {"enabled": True, "minReplicas": 1}}, None),
        ({"podDisruptionBudget": {"enabled": False}}, None),
        ({"podDisruptionBudget": {"minAvailable": "50%"}}, {"minAvailable": "50%"}),
        ({"podDisruptionBudget": {"maxUnavailable": 0}}, {"maxUnavailable": 0}),
        ({"replicaCount": 1, "podDisruptionBudget": {"enabled": True, "maxUnavailable": 1}}, {"maxUnavailable": 1}),
    ],
    ids=str,
)
def test_disruption_budget(change: dict[str, Any], budget: dict[str, Any] | None) -> None:
    """There is one where there are two gateways, unless it is said otherwise."""
    found = objects(over(MINIMAL, change))
    if budget is None:
        assert "PodDisruptionBudget" not in kinds(found)
    else:
        spec = one(found, "PodDisruptionBudget")["spec"]
        assert {name: spec[name] for name in spec if name.endswith("vailable")} == budget


def test_scalers_own_the_number(all_objects: dict[str, list[dict[str, Any]]]) -> None:
    """With a scaler the Deployment says no number; without one it does."""
    says = {name: "replicas" in one(found, "Deployment")["spec"] for name, found in all_objects.items()}
    assert {name for name, number in says.items() if not number} == {"autoscaling", "keda", "full"}
    scaler = one(all_objects["autoscaling"], "HorizontalPodAutoscaler")["spec"]
    assert [each["type"] for each in scaler["metrics"]] == ["Pods", "Resource"]
    assert scaler["metrics"][0]["pods"]["metric"]["name"] == "loopway_in_flight_requests"
    assert scaler["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 300
    keda = one(all_objects["keda"], "ScaledObject")["spec"]
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == scaler["behavior"]
    assert "loopway_in_flight_requests" in keda["triggers"][0]["metadata"]["query"]


def test_selectors_find_the_pods(all_objects: dict[str, list[dict[str, Any]]]) -> None:
    """Service, budget, policy, spread and monitors select exactly the gateway's pods."""
    for found in all_objects.values():
        template = one(found, "Deployment")["spec"]["template"]
        labels = template["metadata"]["labels"].items()
        test = one(found, "Pod")["metadata"]["labels"].items()
        selectors = [one(found, "Deployment")["spec"]["selector"]["matchLabels"]]
        selectors += [each["spec"]["selector"] for each in found if each["kind"] == "Service"]
        selectors += [each["labelSelector"]["matchLabels"] for each in template["spec"]["topologySpreadConstraints"]]
        for kind, key in (
            ("PodDisruptionBudget", "selector"),
            ("NetworkPolicy", "podSelector"),
            ("PodMonitor", "selector"),
        ):
            selectors += [each["spec"][key]["matchLabels"] for each in found if each["kind"] == kind]
        for selector in selectors:
            assert selector.items() <= labels
            assert not selector.items() <= test
        for monitor in (each for each in found if each["kind"] == "ServiceMonitor"):
            wanted = monitor["spec"]["selector"]["matchLabels"].items()
            (service,) = [
                each for each in found if each["kind"] == "Service" and wanted <= each["metadata"]["labels"].items()
            ]
            assert monitor["spec"]["endpoints"][0]["port"] in {each["name"] for each in service["spec"]["ports"]}


# --- the way in and out ---


def test_the_way_in_reaches_no_metrics(all_objects: dict[str, list[dict[str, Any]]]) -> None:
    """Ingress and route lead to the Service for clients, which has no admin port."""
    found = all_objects["full"]
    service = one(found, "Service", "gateway")
    assert [each["name"] for each in service["spec"]["ports"]] == ["http"]
    (rule,) = one(found, "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "gateway", "port": 4000}]
    assert rule["timeouts"] == {"request": "620s", "backendRequest": "620s"}
    (host,) = one(found, "Ingress")["spec"]["rules"]
    assert host["http"]["paths"][0]["backend"]["service"] == {"name": "gateway", "port": {"name": "http"}}
    assert one(found, "Ingress")["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-read-timeout"] == "620"


def test_network_policy(all_objects: dict[str, list[dict[str, Any]]]) -> None:
    """In come named namespaces and the test pod; out go DNS, model servers, the collector and what is added."""
    spec = one(all_objects["network"], "NetworkPolicy")["spec"]

    def names(peers: list[dict[str, Any]]) -> list[str]:
        return [
            each.get("namespaceSelector", {}).get("matchLabels", {}).get("kubernetes.io/metadata.name", "")
            for each in peers
        ]

    assert spec["policyTypes"] == ["Ingress", "Egress"]
    clients, scrapers = spec["ingress"]
    assert (names(clients["from"]), clients["ports"][0]["port"]) == (["apps", "ingress-nginx", ""], "http")
    assert (names(scrapers["from"]), scrapers["ports"][0]["port"]) == (["monitoring"], "admin")
    assert [(names(rule["to"])[0], [port["port"] for port in rule["ports"]]) for rule in spec["egress"]] == [
        ("kube-system", [53, 53]),
        ("", [443]),
        ("vllm", [8000]),
        ("observability", [4317, 4318]),
        ("", [6379]),
    ]


# --- what watches ---


def test_dashboards_and_alerts_are_the_files(all_objects: dict[str, list[dict[str, Any]]]) -> None:
    """The chart ships the files of dashboards/ themselves: each dashboard unchanged, each alert."""
    found = all_objects["monitoring"]
    maps = [each for each in found if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
    shipped = {name: json.loads(text) for each in maps for name, text in each["data"].items()}
    assert shipped == {path.name: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("*.json")}
    groups = one(found, "PrometheusRule")["spec"]["groups"]
    alerts = ROOT / "dashboards" / "alerts.yaml"
    there = yaml.safe_load(alerts.read_text())["groups"] if alerts.exists() else []
    assert groups == [*there, *ci("monitoring")["monitoring"]["rules"]["extraGroups"]]


def test_traces(all_objects: dict[str, list[dict[str, Any]]]) -> None:
    """The standard variables, and the pod as attributes; nothing of it without an endpoint."""
    env = {each["name"]: each.get("value") for each in gateway(all_objects["monitoring"])["env"]}
    assert env["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector.observability:4318"
    assert env["OTEL_TRACES_SAMPLER_ARG"] == "0.05"
    attributes = dict(each.split("=") for each in (env["OTEL_RESOURCE_ATTRIBUTES"] or "").split(","))
    assert attributes["k8s.namespace.name"] == NAMESPACE
    assert attributes["deployment.environment.name"] == "production"
    assert not [name for each in gateway(all_objects["minimal"])["env"] if (name := each["name"]).startswith("OTEL")]


# --- the package ---


def test_package(tmp_path: Path) -> None:
    """`helm package` ships real files: the packed chart renders what the folder does, without ci/."""
    archive = helm_python.package(CHART, destination=tmp_path)
    values = ci("monitoring")
    assert rendered(values, Path(archive)) == rendered(values)
    with helm_python.Chart.load(archive) as chart:
        names = {each["name"] for each in chart.files}
    assert not [name for name in names if name.startswith("ci/")]
    dashboards = {path.name for path in (ROOT / "dashboards").glob("*.json")} | {"alerts.yaml"}
    assert {name for name in names if name.startswith("dashboards/")} == {f"dashboards/{name}" for name in dashboards}
