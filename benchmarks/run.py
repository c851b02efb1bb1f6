"""`make bench`: what the gateway costs, as ratios to R (yardstick.py), everything interleaved in one run.

The gateway and R have core 0, one at a time under load; wrk and the model servers have core 1. Each workload is
measured REPEATS times in turn with R on the same upstream; the median of the ratios is what counts. Writes the
table in docs/benchmarks.md (between its marks), docs/benchmarks.json and docs/benchmarks.svg.

It needs `wrk`, and for the fixed reply `nginx`; without nginx the Python model server answers that as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
KEY = "bench-key-1"
HOOKS = ("bench_hooks.answer", "bench_hooks.look", "bench_hooks.served_for_four")
NONE: Mapping[str, str] = {}
PIN = shutil.which("taskset") is not None and (os.cpu_count() or 1) > 1

FIXED = (
    '{"id":"msg_1","type":"message","role":"assistant","model":"bench","content":[{"type":"text","text":"'
    + "A fixed reply of some words, so that it has the length of a short answer. " * 3
    + '"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":25,"output_tokens":50}}'
)


class Workload:
    """One thing that is measured: a request, sent by so many connections to the gateway and to R."""

    def __init__(
        self,
        name: str,
        path: str,
        model: str,
        *,
        goal: float | None = None,
        tools: tuple[str, ...] = (),
        stream: bool = False,
        connections: int = 32,
        size: int = 0,
        upstream: str = "python",
        gateway: str = "plain",
    ) -> None:
        self.name, self.path, self.model, self.goal = name, path, model, goal
        self.connections, self.upstream, self.gateway = connections, upstream, gateway
        messages = path.endswith("/messages")
        words = "hello" + " word" * (size // 5)
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": words}]}
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        if messages:
            body["max_tokens"] = 100
            offered: list[Any] = [{"name": tool, "input_schema": schema} for tool in tools]
        else:
            offered = [{"type": "function", "function": {"name": tool, "parameters": schema}} for tool in tools]
        if offered:
            body["tools"] = offered
        if stream:
            body["stream"] = True
        self.body = json.dumps(body)


M, C = "/v1/messages", "/v1/chat/completions"
TOOL = ("bench_tool",)
WORKLOADS = [
    Workload("pass-through, JSON, Messages", M, "fixed", goal=0.5, upstream="nginx"),
    Workload("pass-through, JSON, Chat", C, "fixed", goal=0.5, upstream="nginx"),
    Workload("pass-through, 1 % of requests traced", M, "fixed", upstream="nginx", gateway="sampled"),
    Workload("pass-through, all requests traced", M, "fixed", goal=0.3, upstream="nginx", gateway="traced"),
    Workload("pass-through, all requests traced and sent", M, "fixed", upstream="nginx", gateway="traced-sent"),
    Workload("no gateway: R with a client of httptools alone", M, "fixed", upstream="nginx", gateway="floor"),
    Workload("one reply, looked at, JSON, Messages", M, "watched", tools=("looked_for",)),
    Workload("one rerun, JSON, Messages", M, "loops1", goal=0.18, tools=TOOL),
    Workload("one rerun, JSON, Chat", C, "loops1", goal=0.18, tools=TOOL),
    Workload("one rerun, streamed, Messages", M, "loops1", goal=0.10, tools=TOOL, stream=True),
    Workload("one rerun, streamed, Chat", C, "loops1", goal=0.10, tools=TOOL, stream=True),
    Workload("three reruns, JSON, Messages", M, "loops3", tools=TOOL),
    Workload("three reruns, streamed, Messages", M, "loops3", tools=TOOL, stream=True),
    Workload("four server tools at once, JSON, Messages", M, "four"),
    Workload("four server tools at once, JSON, Chat", C, "four"),
    Workload("102 events, nobody watches, Messages", M, "events", goal=0.27, stream=True),
    Workload("102 events, nobody watches, Chat", C, "events", goal=0.27, stream=True),
    Workload("102 events, watched, Messages", M, "eventswatched", goal=0.13, tools=("looked_for",), stream=True),
    Workload("102 events, watched, Chat", C, "eventswatched", goal=0.13, tools=("looked_for",), stream=True),
    *(
        Workload(f"pass-through, body of {size >> 10} KB", M, "fixed", upstream="nginx", size=size, connections=8)
        for size in (1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20)
    ),
    *(
        Workload(f"pass-through, {number} connections", M, "fixed", upstream="nginx", connections=number)
        for number in (1, 10, 100, 500)
    ),
]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def pinned(core: int, *command: str) -> list[str]:
    """A command on one core, where that can be had."""
    return ["taskset", "-c", str(core), *command] if PIN else list(command)


class Bench:
    """The servers of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}

    def start(self, name: str, core: int, command: list[str], port: int, env: dict[str, str] | None = None) -> float:
        """Start a server and wait until it answers; gives the seconds that took."""
        began = time.perf_counter()
        log = (self.folder / f"{name}.log").open("wb")
        process = subprocess.Popen(
            pinned(core, *command), cwd=HERE, env={**os.environ, **(env or {})}, stdout=log, stderr=log
        )
        self.processes[name] = process
        self.ports[name] = port
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
                return time.perf_counter() - began
            if process.poll() is not None:
                sys.exit(f"{name} ended with {process.returncode}: {(self.folder / f'{name}.log').read_text()[-500:]}")
            time.sleep(0.01)

    def uvicorn(self, name: str, core: int, app: str, env: dict[str, str] | None = None) -> None:
        """Serve a bare ASGI function."""
        port = free_port()
        more = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
        self.start(name, core, [sys.executable, "-m", "uvicorn", app, "--port", str(port), *more], port, env)

    def nginx(self) -> None:
        """Serve the fixed reply."""
        port = free_port()
        (self.folder / "nginx.conf").write_text(
            f"daemon off; worker_processes 1; pid {self.folder}/nginx.pid; error_log {self.folder}/nginx.err;\n"
            "events { worker_connections 4096; }\n"
            "http { access_log off; keepalive_requests 10000000; client_max_body_size 64m;\n"
            "client_body_buffer_size 12m;\n"
            f"client_body_temp_path {self.folder}/b; server {{ listen 127.0.0.1:{port} backlog=4096;\n"
            f"location / {{ default_type application/json; return 200 '{FIXED}'; }}\n"
            "location /v1/traces { default_type application/x-protobuf; return 200; } } }\n"
        )
        self.start("nginx", 1, ["nginx", "-c", str(self.folder / "nginx.conf")], port)

    def gateway(self, name: str, env: dict[str, str] | None = None, hooks: Sequence[str] = HOOKS) -> float:
        """Serve the gateway; gives the seconds until it is ready."""
        port, admin = free_port(), free_port()
        both = {"api_key": "k", "dialects": ["messages", "chat_completions"]}
        upstreams = {
            which: {"base_url": f"http://127.0.0.1:{self.ports[which]}", **both} for which in ("nginx", "python")
        }
        names = ["watched", "loops1", "loops3", "four", "events", "eventswatched"]
        config = {
            "server": {"port": port, "admin_port": admin},
            "auth": {"keys": [{"name": "bench", "key": KEY}]},
            "upstreams": upstreams,
            "models": [
                {"name": "fixed", "upstream": "nginx"},
                *({"name": one, "upstream": "python"} for one in names),
            ],
            "hooks": list(hooks),
            "telemetry": {"log_level": "warning"},
        }
        path = HERE / f".bench-{name}-{os.getpid()}.json"
        path.write_text(json.dumps(config))  # JSON is YAML; beside the hooks, whose folder it must be
        try:
            command = [sys.executable, "-m", "loopway", "serve", "--config", str(path)]
            return self.start(name, 0, command, port, env)
        finally:
            path.unlink()

    def stop(self, *names: str) -> None:
        """End these, or everything."""
        ending = [self.processes.pop(name) for name in names or tuple(self.processes)]
        for process in ending:
            process.send_signal(signal.SIGTERM)
        for process in ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()


def load(port: int, work: Workload, seconds: float, folder: Path, headers: Mapping[str, str] = NONE) -> float:
    """Requests per second. Ends the run if any answer is not a 200."""
    script = folder / "post.lua"
    script.write_text(
        "wrk.method='POST'\nlocal f=io.open('" + str(folder / "body.json") + "')\nwrk.body=f:read('*a')\nf:close()\n"
        f"wrk.headers['content-type']='application/json'\nwrk.headers['x-api-key']='{KEY}'\n"
        "wrk.headers['anthropic-version']='2023-06-01'\n"
        + "".join(f"wrk.headers['{name}']='{value}'\n" for name, value in headers.items())
    )
    (folder / "body.json").write_text(work.body)
    url = f"http://127.0.0.1:{port}{work.path}"
    command = [
        "wrk",
        "-t1",
        f"-c{work.connections}",
        f"-d{max(1, round(seconds))}s",
        "--timeout",
        "30s",
        "-s",
        str(script),
        url,
    ]
    out = subprocess.run(pinned(1, *command), capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in out:
        sys.exit(f"{work.name}: not every answer was a 200:\n{out}")
    found = re.search(r"Requests/sec:\s*([\d.]+)", out)
    if found is None:
        sys.exit(f"{work.name}: wrk said: {out}")
    return float(found[1])


def measured(bench: Bench, work: Workload, seconds: float, repeats: int) -> dict[str, Any]:
    """One workload against R, in turn; medians."""
    ours, theirs = bench.ports[work.gateway], bench.ports[f"R-{work.upstream}"]
    seconds = max(seconds, 4.0) if len(work.body) > 1 << 22 else seconds
    rows = [
        (load(ours, work, seconds, bench.folder), load(theirs, work, seconds, bench.folder)) for _ in range(repeats)
    ]
    return {
        "name": work.name,
        "requests_per_second": round(statistics.median(one for one, _ in rows), 1),
        "r_requests_per_second": round(statistics.median(other for _, other in rows), 1),
        "ratio": round(statistics.median(one / max(other, 0.01) for one, other in rows), 3),
        "ratios": [round(one / max(other, 0.01), 3) for one, other in rows],
        "goal": work.goal,
    }


async def _paced(url: str, body: str, number: int, per_second: float) -> list[float]:
    """Milliseconds of so many requests at a fixed rate, one connection pool."""
    took: list[float] = []
    headers = {"content-type": "application/json", "x-api-key": KEY}
    async with httpx.AsyncClient(timeout=10) as client:

        async def one() -> None:
            began = time.perf_counter()
            answer = await client.post(url, content=body, headers=headers)
            took.append((time.perf_counter() - began) * 1000)
            answer.raise_for_status()

        tasks = []
        start = time.perf_counter()
        for place in range(number):
            await asyncio.sleep(max(0.0, start + place / per_second - time.perf_counter()))
            tasks.append(asyncio.create_task(one()))
        await asyncio.gather(*tasks)
    return took


def added_latency(bench: Bench, number: int, rounds: int = 3) -> dict[str, dict[str, float]]:
    """Milliseconds that the gateway adds at 100 requests a second, and that R adds: through minus direct, in turn."""
    work = WORKLOADS[0]
    took: dict[str, list[float]] = {"nginx": [], "R-nginx": [], work.gateway: []}
    for _ in range(rounds):
        for name in took:
            url = f"http://127.0.0.1:{bench.ports[name]}{work.path}"
            took[name] += asyncio.run(_paced(url, work.body, number // rounds, 100))

    def at(name: str, share: float) -> float:
        return sorted(took[name])[min(len(took[name]) - 1, int(len(took[name]) * share))]

    shares = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
    return {
        what: {word: round(at(name, share) - at("nginx", share), 3) for word, share in shares.items()}
        for what, name in (("gateway", work.gateway), ("R", "R-nginx"))
    }


@contextlib.contextmanager
def running(hooks: Sequence[str] = HOOKS) -> Iterator[tuple[Bench, dict[str, float]]]:
    """All servers of the run, and what their start told."""
    with tempfile.TemporaryDirectory(prefix="loopway-bench-") as folder:
        bench = Bench(Path(folder))
        facts: dict[str, float] = {}
        try:
            bench.uvicorn("python", 1, "model:app")
            if shutil.which("nginx"):
                bench.nginx()
            else:
                print("nginx is not installed: the Python model server gives the fixed reply", file=sys.stderr)
                bench.ports["nginx"] = bench.ports["python"]
            for which in ("python", "nginx"):
                upstream = f"http://127.0.0.1:{bench.ports[which]}"
                bench.uvicorn(f"R-{which}", 0, "yardstick:app", {"BENCH_UPSTREAM": upstream})
            bench.uvicorn("floor", 0, "floor:app", {"BENCH_UPSTREAM": f"http://127.0.0.1:{bench.ports['nginx']}"})
            starts = [bench.gateway("plain", hooks=hooks)]
            for _ in range(2):
                bench.stop("plain")
                starts.append(bench.gateway("plain", hooks=hooks))
            facts["ready_seconds"] = round(statistics.median(starts), 2)
            facts["idle_mb"] = round(_rss_mb(bench.processes["plain"].pid), 1)
            trace = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_TRACES_EXPORTER": "otlp"}
            there = {**trace, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{bench.ports['nginx']}"}
            gone = {**trace, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
            bench.gateway("traced", {**gone, "OTEL_TRACES_SAMPLER": "always_on"})
            bench.gateway("traced-sent", {**there, "OTEL_TRACES_SAMPLER": "always_on"})
            bench.gateway(
                "sampled", {**there, "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
            )
            yield bench, facts
        finally:
            bench.stop()


def _rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def table(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    """The Markdown of a run."""
    lines = ["| workload | ratio to R | goal | requests/s | R |", "|---|---|---|---|---|"]
    for row in rows:
        goal = f"{row['goal']:.2f}" if row["goal"] else ""
        lines.append(
            f"| {row['name']} | **{row['ratio']:.2f}** | {goal} | {row['requests_per_second']:,.0f} "
            f"| {row['r_requests_per_second']:,.0f} |"
        )
    lines += ["", "| fact | figure | goal |", "|---|---|---|"]
    lines.append(f"| ready after start | {facts['ready_seconds']} s | 1 s |")
    lines.append(f"| idle memory | {facts['idle_mb']} MB | 100 MB |")
    added, least = facts["added_ms"]["gateway"], facts["added_ms"]["R"]
    lines.append(f"| added at 100 requests/s, p50 | {added['p50']} ms; R adds {least['p50']} ms | 0.6 ms |")
    lines.append(
        f"| added at 100 requests/s, p90, p99 | {added['p90']}, {added['p99']} ms; R adds {least['p90']}, "
        f"{least['p99']} ms | |"
    )
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]]) -> str:
    """The ratios as an SVG of bars."""
    height, left, width = 22, 330, 420
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 60}" height="{height * len(rows) + 20}" '
            'font-family="sans-serif" font-size="12">'
        )
    ]
    most = max(1.0, *(row["ratio"] for row in rows))
    for number, row in enumerate(rows):
        y = 10 + number * height
        bar = row["ratio"] / most * width
        out.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{row["name"]}</text>')
        out.append(f'<rect x="{left}" y="{y + 3}" width="{bar:.1f}" height="14" fill="#4878a8"/>')
        if row["goal"]:
            goal = left + row["goal"] / most * width
            out.append(f'<path d="M{goal:.1f} {y} v20" stroke="#c44" stroke-width="2"/>')
        out.append(f'<text x="{left + bar + 6:.1f}" y="{y + 14}">{row["ratio"]:.2f}</text>')
    return "\n".join([*out, "</svg>", ""])


MARKS = ("<!-- figures: make bench -->", "<!-- end of figures -->")


def main() -> None:
    """Measure, print, and write the docs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=5, help="of each workload, in turn with R")
    parser.add_argument("--only", default="", help="workloads whose name holds this")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.*")
    given = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("wrk is not installed; it makes the load (Debian: apt-get install wrk nginx-light)")
    wanted = [work for work in WORKLOADS if given.only in work.name]
    if PIN:
        os.sched_setaffinity(0, {1})  # the paced load is made here; servers are put on their cores by taskset
    with running() as (bench, started):
        facts: dict[str, Any] = dict(started)
        rows = []
        for work in wanted:
            row = measured(bench, work, given.seconds, given.repeats)
            rows.append(row)
            print(f"{row['ratio']:.3f}  {row['name']}  {row['ratios']}", flush=True)
        facts["added_ms"] = added_latency(bench, 1800)
    made = table(rows, facts)
    print(made)
    if given.write:
        docs = ROOT / "docs"
        machine = {"python": platform.python_version(), "cores": os.cpu_count(), "pinned": PIN}
        (docs / "benchmarks.json").write_text(
            json.dumps({"machine": machine, "facts": facts, "rows": rows}, indent=1) + "\n"
        )
        (docs / "benchmarks.svg").write_text(plot(rows))
        page = (docs / "benchmarks.md").read_text()
        before, _, rest = page.partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        (docs / "benchmarks.md").write_text(f"{before}{MARKS[0]}\n{made}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
