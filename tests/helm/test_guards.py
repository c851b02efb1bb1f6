"""What the chart refuses, each with a sentence; what it warns of; what its schema does not let pass."""

from __future__ import annotations

from typing import Any

import pytest

helm_python = pytest.importorskip("helm_python", reason="the dependency group `chart` is not installed")

from helm.chart import ci, over, rendered  # noqa: E402

MINIMAL = ci("minimal")
ON = {"enabled": True}


def upstream(**members: Any) -> dict[str, Any]:
    return {"config": {"upstreams": {"anthropic": members}}}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "config: there is no configuration; write config.upstreams"),
        (over(MINIMAL, {"existingConfigMap": "mine"}), "config and existingConfigMap are both set"),
        (over(MINIMAL, {"config": {"server": {"drain_seconds": 3}}}), "drainSeconds"),
        (over(MINIMAL, {"config": {"server": {"port": 3}}}), "ports.http"),
        (over(MINIMAL, {"ports": {"admin": 4000}}), "ports.http and ports.admin are the same"),
        (over(MINIMAL, upstream(api_key="sk-1")), "config.upstreams.anthropic.api_key: a secret stands in the open"),
        (
            over(MINIMAL, upstream(headers={"X-Api-Key": "abc"})),
            "config.upstreams.anthropic.headers.X-Api-Key: a secret stands in the open",
        ),
        (over(MINIMAL, upstream(proxy="http://me:word@proxy:3128")), "a URL has a password in it"),
        (
            over(MINIMAL, {"config": {"auth": {"keys": [{"name": "team", "key": "sk-2"}]}}}),
            "config.auth.keys (team).key: a secret stands in the open",
        ),
        (over(MINIMAL, {"secrets": {"existingSecret": ""}}), "secrets.existingSecret does not say which"),
        (over(MINIMAL, {"secrets": {"env": None}}), "config reads ${LOOPWAY_KEY}, but nothing sets it"),
        (over(MINIMAL, upstream(base_url="${BASE}")), "config reads ${BASE}, but nothing sets it"),
        (over(MINIMAL, upstream(api_key="os.environ/OTHER")), "config reads ${OTHER}, but nothing sets it"),
        (
            over(MINIMAL, {"otel": {"headersKey": "k"}, "secrets": {"existingSecret": "", "env": None}}),
            "otel.headersKey names a key",
        ),
        (
            over(MINIMAL, {"hooks": {"files": {"a.py": ""}, "existingConfigMap": "b"}}),
            "only one of hooks.files, hooks.existingConfigMap and hooks.image",
        ),
        (over(MINIMAL, {"hooks": {"files": {"my-hooks.py": ""}}}), "is no module"),
        (
            over(ci("keda"), {"autoscaling": ON}),
            "autoscaling and keda are both enabled",
        ),
        (
            over(MINIMAL, {"autoscaling": {**ON, "minReplicas": 5, "maxReplicas": 4}}),
            "autoscaling.minReplicas is above autoscaling.maxReplicas",
        ),
        (over(MINIMAL, {"autoscaling": {**ON, "targetCPU": None}}), "there is nothing to scale on"),
        (
            over(MINIMAL, {"autoscaling": ON, "resources": {"requests": {"cpu": None}}}),
            "resources.requests.cpu is not set",
        ),
        (over(MINIMAL, {"keda": ON}), "keda.prometheusAddress"),
        (
            over(MINIMAL, {"podDisruptionBudget": {"minAvailable": 1, "maxUnavailable": 1}}),
            "minAvailable and maxUnavailable are both set",
        ),
        (over(MINIMAL, {"replicaCount": 1, "podDisruptionBudget": ON}), "with one gateway it would keep its node"),
        (over(MINIMAL, {"ingress": ON}), "ingress.hosts: there is none"),
        (over(MINIMAL, {"httpRoute": ON}), "httpRoute.parentRefs: there is none"),
        (
            over(ci("monitoring"), {"monitoring": {"podMonitor": ON}}),
            "every gateway would be counted twice",
        ),
        (over(MINIMAL, {"monitoring": {"rules": ON}}), "does not know monitoring.coreos.com/v1"),
        (over(ci("network"), {"networkPolicy": {"otlpNamespace": "", "extraEgress": []}}), "spans could not leave"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(values: dict[str, Any], sentence: str) -> None:
    """A combination that cannot work is refused with a sentence."""
    with pytest.raises(helm_python.HelmError) as refused:
        rendered(values)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        over(MINIMAL, upstream(base_url="${BASE:-https://api.anthropic.com}")),
        over(MINIMAL, upstream(base_url="${BASE}"), {"extraEnv": [{"name": "BASE", "value": "x"}]}),
        over(MINIMAL, upstream(base_url="${BASE}"), {"extraEnvFrom": [{"configMapRef": {"name": "x"}}]}),
        over(MINIMAL, upstream(headers={"x-team": "a", "authorization": "Bearer ${ANTHROPIC_API_KEY}"})),
        over(MINIMAL, upstream(headers={"x-text": "$${NOT_READ}"})),
        over(MINIMAL, {"config": {"auth": {"keys": [{"name": "team", "sha256": "0" * 64}]}}}),
        over(MINIMAL, {"config": {"loop": {"max_agentic_loops": "${LOOPS:-3}"}}}),
    ],
    ids=str,
)
def test_taken(values: dict[str, Any]) -> None:
    """What only looks like one of these mistakes is taken."""
    assert rendered(values)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"replicas": 3}, "replicas"),
        ({"image": {"repo": "x"}}, "repo"),
        ({"monitoring": {"serviceMonitor": {"enable": True}}}, "enable"),
        ({"config": {"sever": {}}}, "sever"),
        ({"config": {"loop": {"max_loops": 3}}}, "max_loops"),
        ({"config": {"loop": {"max_agentic_loops": -1}}}, "max_agentic_loops"),
        ({"config": {"upstreams": {"anthropic": {"url": "x"}}}}, "url"),
        ({"livenessProbe": {"httpGet": {}}}, "httpGet"),
        ({"networkPolicy": {"upstreams": [{"ports": [443]}]}}, "upstreams"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"drainSeconds": "30s"}, "drainSeconds"),
    ],
    ids=str,
)
def test_schema(change: dict[str, Any], where: str) -> None:
    """An unknown key or a wrong type is refused on every level, and named."""
    with pytest.raises(helm_python.HelmError) as refused:
        rendered(over(MINIMAL, change))
    assert where in str(refused.value)


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        (MINIMAL, "image.repository names no registry"),
        (MINIMAL, "Nothing scrapes metrics"),
        (MINIMAL, "There is no NetworkPolicy"),
        (MINIMAL, "no state.redis_url"),
        (over(MINIMAL, {"config": {"auth": {"mode": "open"}}}), "auth.mode is open"),
        (over(ci("gateway-api"), {"config": {"auth": {"mode": "open"}}}), "asks nobody for a key"),
        (over(ci("ingress"), {"ingress": {"tlsSecret": ""}}), "travel unencrypted"),
        (ci("one"), "There is one gateway"),
        (over(MINIMAL, {"resources": {"limits": {"memory": None}}}), "resources.limits.memory is not set"),
        (over(MINIMAL, {"resources": {"limits": {"cpu": "1"}}}), "every stream stalls"),
        (over(MINIMAL, {"drainSeconds": 900}), "drainSeconds is above 600"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_notes_warn(values: dict[str, Any], warning: str) -> None:
    """The notes warn of what is missing, and do not where it is there."""
    notes = rendered(values)["templates/NOTES.txt"]
    assert f"- {warning}" in notes or warning in notes
    assert warning not in rendered(ci("full"))["templates/NOTES.txt"] or "redis" in warning


def test_notes_say_where() -> None:
    """The notes name the address for both SDKs, and the timers."""
    notes = rendered(MINIMAL)["templates/NOTES.txt"]
    assert "http://demo-loopway.llm:4000/v1" in notes
    assert "has 50 s: 5 s until nobody sends to it any more, 30 s for open exchanges" in notes
