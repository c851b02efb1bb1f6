"""Writes the Grafana dashboards beside it: `python dashboards/build.py`. A test holds that they are what it writes.

Each panel is one line of data: its question, its expressions, its unit. The JSON is Grafana's own model (12, schema 41;
11 loads it, too). It must not know which Prometheus answers: the data source is a variable.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
WIDTH = 24
HEIGHT = 8
SCHEMA = 41
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

W = "$__rate_interval"
JOB = 'job=~"$job"'
MODEL = f'{JOB}, model=~"$model"'
FAILED = 'status=~"5.."'
UPSTREAM_FAILED = 'status=~"5..|429|upstream_.*"'


class Panel(NamedTuple):
    """One panel.

    Attributes:
        title: What it shows.
        question: What it answers, in one line; the panel's description and the table in README.md.
        expressions: PromQL and the legend of each.
        unit: Grafana's name of the unit.
        kind: Grafana's panel type.
        width: Of 24 columns.
    """

    title: str
    question: str
    expressions: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8


class Dashboard(NamedTuple):
    """One dashboard; `rows` are titles and their panels."""

    uid: str
    title: str
    description: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    labels: Sequence[tuple[str, str]] = (("model", "loopway_requests_total"),)


def rate(metric: str, by: str, where: str = MODEL) -> str:
    """A rate per second, summed."""
    return f"sum by ({by}) (rate({metric}{{{where}}}[{W}]))"


def ratio(metric: str, some: str, by: str = "", where: str = MODEL) -> str:
    """A share of a counter; 0 where nothing of it was counted."""
    group = f" by ({by})" if by else ""
    whole = f"sum{group} (rate({metric}{{{where}}}[{W}]))"
    part = f"sum{group} (rate({metric}{{{where}, {some}}}[{W}]))"
    return f"({part} or 0 * {whole}) / ({whole} > 0)"


def share(metric: str, whole: str, by: str) -> str:
    """One counter as a share of another."""
    return f"{rate(metric, by)} / ({rate(whole, by)} > 0)"


def quantile(part: float, metric: str, by: str = "", where: str = MODEL) -> str:
    """A quantile of a histogram."""
    group = f"le, {by}" if by else "le"
    return f"histogram_quantile({part}, sum by ({group}) (rate({metric}_bucket{{{where}}}[{W}])))"


def quantiles(metric: str, where: str = MODEL) -> list[tuple[str, str]]:
    """Median, p95 and p99."""
    return [(quantile(part, metric, where=where), f"p{round(part * 100)}") for part in (0.5, 0.95, 0.99)]


def mean(metric: str, by: str, where: str = MODEL) -> str:
    """The mean of a histogram."""
    total, count = rate(f"{metric}_sum", by, where), rate(f"{metric}_count", by, where)
    return f"{total} / ({count} > 0)"


def heat(metric: str, where: str = MODEL) -> list[tuple[str, str]]:
    """A histogram as a heat map."""
    return [(f"sum by (le) (increase({metric}_bucket{{{where}}}[{W}]))", "{{le}}")]


OVERVIEW = Dashboard(
    "loopway-overview",
    "Loopway / Overview",
    "Traffic, errors, latency, tokens: is the gateway well?",
    [
        (
            "Now",
            [
                Panel(
                    "Requests",
                    "How much traffic is there?",
                    [(rate("loopway_requests_total", "job"), "")],
                    "reqps",
                    "stat",
                    4,
                ),
                Panel(
                    "Errors",
                    "What share of requests fails?",
                    [(ratio("loopway_requests_total", FAILED), "")],
                    "percentunit",
                    "stat",
                    4,
                ),
                Panel(
                    "First content, p95",
                    "How long does a client wait for the first word?",
                    [(quantile(0.95, "loopway_time_to_first_content_seconds"), "")],
                    "s",
                    "stat",
                    4,
                ),
                Panel(
                    "Overhead, p95",
                    "How much of that is the gateway's own?",
                    [(quantile(0.95, "loopway_overhead_seconds"), "")],
                    "s",
                    "stat",
                    4,
                ),
                Panel(
                    "In flight",
                    "How many requests are under way?",
                    [(f"sum(loopway_in_flight_requests{{{JOB}}})", "")],
                    "short",
                    "stat",
                    4,
                ),
                Panel(
                    "Versions",
                    "Which versions run?",
                    [(f"count by (version) (loopway_build_info{{{JOB}}})", "{{version}}")],
                    "short",
                    "stat",
                    4,
                ),
            ],
        ),
        (
            "Traffic",
            [
                Panel(
                    "Requests by model",
                    "Which models are asked for?",
                    [(rate("loopway_requests_total", "model"), "{{model}}")],
                    "reqps",
                ),
                Panel(
                    "Requests by status",
                    "How do requests end?",
                    [(rate("loopway_requests_total", "status"), "{{status}}")],
                    "reqps",
                ),
                Panel(
                    "Error share by model",
                    "Which model fails?",
                    [(ratio("loopway_requests_total", FAILED, "model"), "{{model}}")],
                    "percentunit",
                ),
                Panel(
                    "Streams and JSON",
                    "How many clients stream, in which dialect?",
                    [(rate("loopway_requests_total", "dialect, stream"), "{{dialect}} stream={{stream}}")],
                    "reqps",
                ),
                Panel(
                    "Turned away",
                    "Which requests were not served, and why?",
                    [(rate("loopway_rejected_requests_total", "reason", JOB), "{{reason}}")],
                    "reqps",
                ),
                Panel(
                    "Clients that left",
                    "Where are exchanges when their client leaves?",
                    [(rate("loopway_client_disconnects_total", "phase", JOB), "{{phase}}")],
                    "reqps",
                ),
            ],
        ),
        (
            "Time",
            [
                Panel(
                    "Whole request", "How long do exchanges take?", quantiles("loopway_request_duration_seconds"), "s"
                ),
                Panel(
                    "First content",
                    "When does the first content leave? A keepalive is none.",
                    quantiles("loopway_time_to_first_content_seconds"),
                    "s",
                ),
                Panel("Overhead", "What does the gateway itself cost?", quantiles("loopway_overhead_seconds"), "s"),
            ],
        ),
        (
            "Load",
            [
                Panel(
                    "Tokens",
                    "How many tokens flow, and how many from caches?",
                    [(rate("loopway_tokens_total", "type"), "{{type}}")],
                    "short",
                ),
                Panel(
                    "Tokens by model",
                    "Which model uses them?",
                    [(rate("loopway_tokens_total", "model", f'{MODEL}, type=~"input|output"'), "{{model}}")],
                    "short",
                ),
                Panel(
                    "Saturation",
                    "How full is the gateway? At 100 % it turns requests away.",
                    [
                        (
                            f"sum(loopway_in_flight_requests{{{JOB}}}) / sum(loopway_max_concurrent_requests{{{JOB}}})",
                            "in flight / limit",
                        )
                    ],
                    "percentunit",
                ),
            ],
        ),
    ],
)

LOOP = Dashboard(
    "loopway-agentic-loop",
    "Loopway / Agentic loop",
    "What hooks decide, how deep loops go, why they are cut, what hooks and tools cost.",
    [
        (
            "Decisions",
            [
                Panel(
                    "Decisions",
                    "What is decided on replies?",
                    [(rate("loopway_loop_iterations_total", "outcome"), "{{outcome}}")],
                    "ops",
                ),
                Panel(
                    "Aborts", "Why are loops cut?", [(rate("loopway_loop_aborts_total", "reason"), "{{reason}}")], "ops"
                ),
                Panel(
                    "Abort share by model",
                    "Which model runs into limits?",
                    [
                        (
                            share("loopway_loop_aborts_total", "loopway_requests_total", "model"),
                            "{{model}}",
                        )
                    ],
                    "percentunit",
                ),
            ],
        ),
        (
            "Depth",
            [
                Panel(
                    "Depth", "How many reruns do exchanges have?", heat("loopway_loop_depth"), "short", "heatmap", 12
                ),
                Panel(
                    "Iterations per exchange",
                    "How many model calls does one request cost?",
                    [(f"{mean('loopway_loop_depth', 'model')} + 1", "{{model}}")],
                    "short",
                    width=6,
                ),
                Panel(
                    "Looping exchanges",
                    "How long do exchanges take in which a loop ran?",
                    quantiles("gen_ai_invoke_agent_duration_seconds", JOB),
                    "s",
                    width=6,
                ),
            ],
        ),
        (
            "Hooks",
            [
                Panel(
                    "Hook time, p95",
                    "Which hook is slow, and in which phase?",
                    [(quantile(0.95, "loopway_hook_duration_seconds", "hook, phase", JOB), "{{hook}} {{phase}}")],
                    "s",
                    width=12,
                ),
                Panel(
                    "Hook failures",
                    "Which hook fails?",
                    [(rate("loopway_hook_errors_total", "hook, phase", JOB), "{{hook}} {{phase}}")],
                    "ops",
                    width=12,
                ),
            ],
        ),
        (
            "Server tools",
            [
                Panel(
                    "Tool calls",
                    "Which tools are called, and how do they end?",
                    [(rate("loopway_tool_calls_total", "tool, result", JOB), "{{tool}} {{result}}")],
                    "ops",
                ),
                Panel(
                    "Tool time, p95",
                    "Which tool is slow?",
                    [
                        (
                            quantile(0.95, "gen_ai_execute_tool_duration_seconds", "gen_ai_tool_name", JOB),
                            "{{gen_ai_tool_name}}",
                        )
                    ],
                    "s",
                ),
                Panel(
                    "Tool calls per looping exchange",
                    "How many tools does one request run?",
                    [(mean("gen_ai_invoke_agent_tool_calls", "gen_ai_request_model", JOB), "{{gen_ai_request_model}}")],
                    "short",
                ),
            ],
        ),
    ],
)

UPSTREAM = f'{JOB}, upstream=~"$upstream"'
UPSTREAMS = Dashboard(
    "loopway-upstreams",
    "Loopway / Upstreams",
    "Is it us or the model servers?",
    [
        (
            "Tries",
            [
                Panel(
                    "Tries",
                    "How often is each upstream called?",
                    [(rate("loopway_upstream_requests_total", "upstream", UPSTREAM), "{{upstream}}")],
                    "reqps",
                ),
                Panel(
                    "Statuses",
                    "What do upstreams answer?",
                    [
                        (
                            rate("loopway_upstream_requests_total", "upstream, status", UPSTREAM),
                            "{{upstream}} {{status}}",
                        )
                    ],
                    "reqps",
                ),
                Panel(
                    "Failure share",
                    "Which upstream fails or is full?",
                    [(ratio("loopway_upstream_requests_total", UPSTREAM_FAILED, "upstream", UPSTREAM), "{{upstream}}")],
                    "percentunit",
                ),
            ],
        ),
        (
            "Time",
            [
                Panel(
                    "To the head, p95",
                    "How long until an upstream answers at all?",
                    [(quantile(0.95, "loopway_upstream_duration_seconds", "upstream", UPSTREAM), "{{upstream}}")],
                    "s",
                ),
                Panel(
                    "First chunk, p95",
                    "How long until a streamed reply begins?",
                    [
                        (
                            quantile(
                                0.95, "gen_ai_client_operation_time_to_first_chunk_seconds", "gen_ai_request_model", JOB
                            ),
                            "{{gen_ai_request_model}}",
                        )
                    ],
                    "s",
                ),
                Panel(
                    "Whole model call, p95",
                    "How long do model calls take?",
                    [
                        (
                            quantile(0.95, "gen_ai_client_operation_duration_seconds", "gen_ai_request_model", JOB),
                            "{{gen_ai_request_model}}",
                        )
                    ],
                    "s",
                ),
            ],
        ),
        (
            "Model calls",
            [
                Panel(
                    "Failed model calls",
                    "Which calls end without a reply, and why?",
                    [
                        (
                            rate(
                                "gen_ai_client_operation_duration_seconds_count",
                                "gen_ai_request_model, error_type",
                                f'{JOB}, error_type!=""',
                            ),
                            "{{gen_ai_request_model}} {{error_type}}",
                        )
                    ],
                    "ops",
                    width=12,
                ),
                Panel(
                    "Tokens per call, p95",
                    "How large are the calls?",
                    [
                        (
                            quantile(0.95, "gen_ai_client_token_usage", "gen_ai_request_model, gen_ai_token_type", JOB),
                            "{{gen_ai_request_model}} {{gen_ai_token_type}}",
                        )
                    ],
                    "short",
                    width=12,
                ),
            ],
        ),
    ],
    (("upstream", "loopway_upstream_requests_total"),),
)

DASHBOARDS = {"overview.json": OVERVIEW, "agentic-loop.json": LOOP, "upstreams.json": UPSTREAMS}


def built(dashboard: Dashboard) -> dict[str, Any]:
    """A dashboard as Grafana reads it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["loopway"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [
            {"type": "dashboards", "tags": ["loopway"], "title": "Loopway", "asDropdown": True, "keepTime": True,
             "includeVars": True}
        ],
        "templating": {"list": list(_variables(dashboard.labels))},
        "annotations": {"list": []},
        "panels": list(_panels(dashboard.rows)),
    }  # fmt: skip


def _variables(labels: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}
    yield _variable("job", "loopway_build_info", "")
    for label, metric in labels:
        yield _variable(label, metric, '{job=~"$job"}')


def _variable(label: str, metric: str, where: str) -> dict[str, Any]:
    query = f"label_values({metric}{where}, {label})"
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": "variable"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(rows: Sequence[tuple[str, Sequence[Panel]]]) -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, panels in rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top},
            "panels": [],
        }
        top += 1
        left = 0
        height = HEIGHT // 2 if all(panel.kind == "stat" for panel in panels) else HEIGHT
        for panel in panels:
            if left + panel.width > WIDTH:
                left, top = 0, top + height
            number += 1
            yield _panel(panel, number, {"h": height, "w": panel.width, "x": left, "y": top})
            left += panel.width
        top += height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.question,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [_target(panel, place) for place in range(len(panel.expressions))],
    }
    if panel.kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 10, "lineWidth": 1, "showPoints": "never"}
        made["options"] = {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
                           "tooltip": {"mode": "multi", "sort": "desc"}}  # fmt: skip
    elif panel.kind == "stat":
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area", "textMode": "auto"}
    elif panel.kind == "heatmap":
        made["options"] = {"calculate": False, "yAxis": {"unit": panel.unit}, "color": {"scheme": "Spectral"},
                           "cellGap": 1, "showValue": "auto"}  # fmt: skip
    return made


def _target(panel: Panel, place: int) -> dict[str, Any]:
    expression, legend = panel.expressions[place]
    made: dict[str, Any] = {
        "refId": "ABCDEFGH"[place],
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": expression,
        "legendFormat": legend or "__auto",
        "range": True,
    }
    if panel.kind == "heatmap":
        made["format"] = "heatmap"
    elif "_bucket" in expression and panel.kind == "timeseries":
        made["exemplar"] = True
    return made


def text(dashboard: Dashboard) -> str:
    """The file's content."""
    return json.dumps(built(dashboard), indent=2) + "\n"


def questions() -> str:
    """The table of panels for README.md."""
    lines = []
    for dashboard in DASHBOARDS.values():
        lines += [f"### {dashboard.title.partition(' / ')[2]}", "", "| panel | question |", "|---|---|"]
        lines += [f"| {panel.title} | {panel.question} |" for _, panels in dashboard.rows for panel in panels]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Write every file, and the table in README.md."""
    for name, dashboard in DASHBOARDS.items():
        (HERE / name).write_text(text(dashboard))
    readme = HERE / "README.md"
    before, mark, _ = readme.read_text().partition("<!-- panels -->\n")
    readme.write_text(f"{before}{mark}\n{questions()}")


if __name__ == "__main__":
    main()
