"""Makes what follows from other files: the chart's README.md and values.schema.json.

`python helm/generate.py` writes both; tests/helm holds that they are current. The README comes from the comments of
values.yaml; of the schema, `config` comes from the gateway's own settings, the rest from TYPES below.
"""

# ruff: noqa: INP001 - a program beside the chart, no package

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml

from loopway.settings.shape import Secret, Settings

CHART = Path(__file__).parent / "loopway"
LONGEST_DEFAULT = 79
"""Characters of a default that the README shows."""
SET_BY_CHART = ("host", "port", "admin_port", "drain_seconds")

TEXT = {"type": "string"}
FLAG = {"type": "boolean"}
NAMES = {"type": "object", "additionalProperties": TEXT}
TEXTS = {"type": "array", "items": TEXT}
COUNT = {"type": "integer", "minimum": 0}
ATLEAST1 = {"type": "integer", "minimum": 1}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
PORTS = {"type": "array", "items": PORT, "minItems": 1}
DURATION = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}
API_OBJECT = {"type": "object", "description": "As in the Kubernetes API, which checks it"}
API_LIST = {"type": "array", "items": {"type": "object"}, "description": "As in the Kubernetes API, which checks it"}
DIGEST = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
PULL = {"enum": ["Always", "IfNotPresent", "Never"]}
AMOUNT = {"anyOf": [{"type": "null"}, COUNT, {"type": "string", "pattern": "^[0-9]+%$"}]}
VARIABLE = "^[A-Za-z_][A-Za-z0-9_]*$"


def null_or(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, or null."""
    return {"anyOf": [{"type": "null"}, schema]}


REFERENCE = {
    "type": "object",
    "required": ["name"],
    "properties": dict.fromkeys(("name", "namespace", "group", "kind", "sectionName"), TEXT) | {"port": PORT},
    "additionalProperties": False,
}
PEER = {
    "type": "object",
    "required": ["ports"],
    "oneOf": [{"required": ["cidr"]}, {"required": ["namespace"]}],
    "properties": {"cidr": TEXT, "except": TEXTS, "namespace": TEXT, "ports": PORTS},
    "additionalProperties": False,
}
ENDPOINT = {"interval": DURATION, "scrapeTimeout": DURATION, "relabelings": API_LIST, "metricRelabelings": API_LIST}

TYPES: dict[str, Any] = {
    "replicaCount": COUNT,
    "workers": ATLEAST1,
    "image.repository": {"type": "string", "minLength": 1},
    "image.tag": TEXT,
    "image.digest": DIGEST,
    "image.pullPolicy": PULL,
    "imagePullSecrets": {
        "type": "array",
        "items": {"type": "object", "required": ["name"], "properties": {"name": TEXT}, "additionalProperties": False},
    },
    "nameOverride": TEXT,
    "fullnameOverride": TEXT,
    "commonLabels": NAMES,
    "existingConfigMap": TEXT,
    "existingConfigMapKey": {"type": "string", "minLength": 1},
    "secrets.existingSecret": TEXT,
    "secrets.env": {
        "type": "object",
        "propertyNames": {"pattern": VARIABLE},
        "additionalProperties": {"type": "string", "minLength": 1},
    },
    "hooks.files": NAMES,
    "hooks.existingConfigMap": TEXT,
    "hooks.image.repository": TEXT,
    "hooks.image.tag": TEXT,
    "hooks.image.digest": DIGEST,
    "hooks.image.path": {"type": "string", "pattern": "^/"},
    "hooks.image.pullPolicy": PULL,
    "hooks.image.asVolume": FLAG,
    "ports.http": PORT,
    "ports.admin": null_or(PORT),
    "drainSeconds": {"type": "number", "minimum": 0},
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "service.annotations": NAMES,
    "ingress.enabled": FLAG,
    "ingress.className": TEXT,
    "ingress.annotations": NAMES,
    "ingress.nginxAnnotations": FLAG,
    "ingress.hosts": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "ingress.tlsSecret": TEXT,
    "httpRoute.enabled": FLAG,
    "httpRoute.parentRefs": {"type": "array", "items": REFERENCE},
    "httpRoute.hostnames": TEXTS,
    "httpRoute.timeout": DURATION,
    "httpRoute.annotations": NAMES,
    "resources": {
        "type": "object",
        "properties": {"requests": {"type": "object"}, "limits": {"type": "object"}, "claims": {"type": "array"}},
        "additionalProperties": False,
    },
    "autoscaling.enabled": FLAG,
    "autoscaling.minReplicas": ATLEAST1,
    "autoscaling.maxReplicas": ATLEAST1,
    "autoscaling.targetCPU": null_or(ATLEAST1),
    "autoscaling.targetInFlight": null_or(ATLEAST1),
    "autoscaling.behavior": {
        "type": "object",
        "properties": {"scaleUp": API_OBJECT, "scaleDown": API_OBJECT},
        "additionalProperties": False,
    },
    "keda.enabled": FLAG,
    "keda.minReplicas": ATLEAST1,
    "keda.maxReplicas": ATLEAST1,
    "keda.pollingInterval": ATLEAST1,
    "keda.prometheusAddress": {"type": "string", "pattern": "^(https?://.+)?$"},
    "keda.targetInFlight": ATLEAST1,
    "keda.targetCPU": null_or(ATLEAST1),
    "podDisruptionBudget.enabled": null_or(FLAG),
    "podDisruptionBudget.minAvailable": AMOUNT,
    "podDisruptionBudget.maxUnavailable": AMOUNT,
    "topologySpread.keys": TEXTS,
    "topologySpread.whenUnsatisfiable": {"enum": ["ScheduleAnyway", "DoNotSchedule"]},
    "topologySpread.maxSkew": ATLEAST1,
    "networkPolicy.enabled": FLAG,
    "networkPolicy.clientNamespaces": TEXTS,
    "networkPolicy.monitoringNamespaces": TEXTS,
    "networkPolicy.dnsNamespace": {"type": "string", "minLength": 1},
    "networkPolicy.upstreams": {"type": "array", "items": PEER},
    "networkPolicy.otlpNamespace": TEXT,
    "networkPolicy.otlpPorts": PORTS,
    "networkPolicy.extraEgress": API_LIST,
    "monitoring.requireCRDs": FLAG,
    "monitoring.serviceMonitor.enabled": FLAG,
    "monitoring.serviceMonitor.labels": NAMES,
    **{f"monitoring.serviceMonitor.{name}": schema for name, schema in ENDPOINT.items()},
    "monitoring.podMonitor.enabled": FLAG,
    "monitoring.podMonitor.labels": NAMES,
    **{f"monitoring.podMonitor.{name}": schema for name, schema in ENDPOINT.items()},
    "monitoring.rules.enabled": FLAG,
    "monitoring.rules.labels": NAMES,
    "monitoring.rules.extraGroups": API_LIST,
    "monitoring.dashboards.enabled": FLAG,
    "monitoring.dashboards.labels": NAMES,
    "monitoring.dashboards.annotations": NAMES,
    "otel.endpoint": {"type": "string", "pattern": "^(https?://.+)?$"},
    "otel.protocol": {"enum": ["http/protobuf", "grpc"]},
    "otel.samplerRatio": {"type": "number", "minimum": 0, "maximum": 1},
    "otel.resourceAttributes": NAMES,
    "otel.headersKey": TEXT,
    "serviceAccount.create": FLAG,
    "serviceAccount.name": TEXT,
    "serviceAccount.annotations": NAMES,
    "podSecurityContext": API_OBJECT,
    "securityContext": API_OBJECT,
    **{
        probe: {
            "type": "object",
            "properties": {
                "initialDelaySeconds": COUNT,
                "periodSeconds": ATLEAST1,
                "timeoutSeconds": ATLEAST1,
                "successThreshold": ATLEAST1,
                "failureThreshold": ATLEAST1,
                "terminationGracePeriodSeconds": ATLEAST1,
            },
            "additionalProperties": False,
        }
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    },
    "updateStrategy": API_OBJECT,
    "revisionHistoryLimit": COUNT,
    "minReadySeconds": COUNT,
    "podAnnotations": NAMES,
    "podLabels": NAMES,
    "nodeSelector": NAMES,
    "tolerations": API_LIST,
    "affinity": API_OBJECT,
    "priorityClassName": TEXT,
    "extraEnv": {"type": "array", "items": {"type": "object", "required": ["name"]}},
    "extraEnvFrom": API_LIST,
    "extraVolumes": API_LIST,
    "extraVolumeMounts": API_LIST,
    "extraContainers": API_LIST,
    "extraInitContainers": API_LIST,
    "extraManifests": {"type": "array", "items": {"type": ["object", "string"]}},
    "tests.enabled": FLAG,
}
"""Every value of the chart but `config`."""


def config_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of the gateway's configuration, and what it refers to. A variable may stand for any value."""

    def hook(kind: type) -> dict[str, Any]:
        if kind is Secret:
            return dict(TEXT)
        raise NotImplementedError

    _, parts = msgspec.json.schema_components([Settings], schema_hook=hook, ref_template="#/$defs/{name}")
    parts["HookSetting"] = {
        "anyOf": [TEXT, {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": API_OBJECT}]
    }
    server = parts["ServerSettings"]["properties"]
    for name in SET_BY_CHART:
        server[name] = {"description": "Set by the chart, which refuses it here"}
    whole = strict(parts.pop("Settings"))
    whole.pop("required", None)
    return whole, {name: strict(part) for name, part in sorted(parts.items())}


def strict(part: Any) -> Any:
    """No unknown keys, no defaults, and `${NAME}` where a number or a boolean is wanted."""
    if isinstance(part, list):
        return [strict(one) for one in part]
    if not isinstance(part, dict):
        return part
    made = {name: strict(value) for name, value in part.items() if name not in ("title", "default")}
    if "description" in made and isinstance(made["description"], str):
        made["description"] = made["description"].split("\n\nAttributes:")[0]
    if made.get("type") == "object" and "properties" in made:
        made["additionalProperties"] = False
    if made.get("type") in ("integer", "number", "boolean"):
        return {"anyOf": [made, {"type": "string", "pattern": "^\\$\\{.+\\}$"}]}
    return made


def schema() -> dict[str, Any]:
    """The whole schema: an object for each level, nothing but what is named here."""
    config, parts = config_schema()
    root: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    for path, kind in (TYPES | {"config": config}).items():
        *above, last = path.split(".")
        level = root
        for name in above:
            level = level["properties"].setdefault(
                name, {"type": "object", "properties": {}, "additionalProperties": False}
            )
        level["properties"][last] = kind
    root["properties"]["global"] = {"type": "object", "description": "Helm's own, for charts that hold this one"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of loopway", **root, "$defs": parts}


def rows(text: str) -> list[tuple[str, str, str]]:
    """Each documented value: its path, its default, what it is."""
    values = yaml.safe_load(text)
    found: list[tuple[str, str, str]] = []
    said: list[str] = []
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        comment = re.match(r"\s*# (-- )?(.*)", line)
        if comment and (comment[1] or said):
            said.append(comment[2])
            continue
        key = re.match(r"(\s*)([A-Za-z_]\w*):", line)
        if key is None:
            continue
        path = [*(one for one in path if one[0] < len(key[1])), (len(key[1]), key[2])]
        if said:
            names = [name for _, name in path]
            default = values
            for name in names:
                default = default[name]
            found.append((".".join(names), json.dumps(default), " ".join(said)))
            said = []
    return found


def readme() -> str:
    """The chart's README."""
    lines = [
        "# loopway",
        "",
        (
            "A chart for [Loopway](../../README.md). From nothing to a running gateway, rollouts, scaling, watching: "
            "[docs/deploy.md](../../docs/deploy.md). Values to start from: [ci/](ci/)."
        ),
        "",
        "Made by `python helm/generate.py` from `values.yaml`; a test holds that it is current.",
        "",
        "| value | default | meaning |",
        "|---|---|---|",
    ]
    for path, default, said in rows((CHART / "values.yaml").read_text()):
        shown = default if len(default) <= LONGEST_DEFAULT else default[: LONGEST_DEFAULT - 1] + "…"
        lines.append(f"| `{path}` | `{shown.replace('|', '&#124;')}` | {said.replace('|', '&#124;')} |")
    return "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """What is made, and where it goes."""
    return {
        CHART / "README.md": readme(),
        CHART / "values.schema.json": json.dumps(schema(), indent=2, ensure_ascii=False) + "\n",
    }


def main() -> int:
    """Write the files."""
    for path, text in files().items():
        path.write_text(text)
        sys.stdout.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
