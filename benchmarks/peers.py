"""`make bench-peers`: other gateways beside this one, each on the same core in turn, as ratios to R.

Each peer is installed into a folder of its own (`--folder`, kept between runs): LiteLLM and agentic-api from PyPI,
Portkey from npm. A peer gets what makes it fast: no database, no keys to check, one process, no logs. What a peer
cannot do, or does wrong under load, is said in the table instead of a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
from run import HERE, KEY, ROOT, Bench, C, M, Workload, free_port, load, running

MARKS = ("<!-- figures: make bench-peers -->", "<!-- end of peers -->")
HOOK = (HERE / "peer_hook.py").read_text()

WORKLOADS = [
    Workload("one reply, JSON, Messages", M, "fixed", upstream="nginx"),
    Workload("one reply, JSON, Chat", C, "loops1", upstream="python"),
    Workload("one rerun, JSON, Messages", M, "loops1", tools=("bench_tool",)),
    Workload("102 events, Chat", C, "events", stream=True),
]


class Peer:
    """A gateway beside ours: how it is installed, how it is started, and what it is asked with."""

    def __init__(
        self,
        name: str,
        install: Callable[[Path], list[list[str]]],
        command: Callable[[Bench, Path, int], list[str]],
        *,
        headers: Callable[[Bench, Workload], Mapping[str, str]] = lambda _bench, _work: {},
        cannot: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.install, self.command = name, install, command
        self.headers, self.cannot, self.env = headers, cannot or {}, env or {}


def _venv(package: str) -> Callable[[Path], list[list[str]]]:
    def steps(folder: Path) -> list[list[str]]:
        return [
            [sys.executable, "-m", "venv", str(folder)],
            [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", package],
        ]

    return steps


def _litellm(bench: Bench, folder: Path, port: int) -> list[str]:
    def model(name: str, provider: str, upstream: str, path: str) -> dict[str, object]:
        base = f"http://127.0.0.1:{bench.ports[upstream]}{path}"
        given = {"model": f"{provider}/{name}", "api_base": base, "api_key": "k"}
        return {"model_name": name, "litellm_params": given}

    # LiteLLM names one provider for a model, so each dialect has a configuration of its own.
    messages, chat = {"fixed": "nginx", "loops1": "python"}, {"loops1": "python", "events": "python"}
    anthropic = [model(name, "anthropic", upstream, "") for name, upstream in messages.items()]
    openai = [model(f"chat-{name}", "openai", upstream, "/v1") for name, upstream in chat.items()]
    for entry, name in zip(openai, chat, strict=True):
        entry["litellm_params"]["model"] = f"openai/{name}"  # type: ignore[index]
    config = {
        "model_list": [*anthropic, *openai],
        "litellm_settings": {"callbacks": ["peer_hook.answer"], "set_verbose": False, "telemetry": False},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    (folder / "peer_hook.py").write_text(HOOK)
    return [
        str(folder / "bin" / "litellm"), "--config", str(folder / "config.yaml"), "--host", "127.0.0.1",
        "--port", str(port), "--num_workers", "1",
    ]  # fmt: skip


def _portkey(_bench: Bench, folder: Path, port: int) -> list[str]:
    start = folder / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    return ["node", str(start), f"--port={port}", "--headless"]


def _portkey_headers(bench: Bench, work: Workload) -> dict[str, str]:
    provider = "anthropic" if work.path == M else "openai"
    host = f"http://127.0.0.1:{bench.ports[work.upstream]}/v1"
    return {"x-portkey-provider": provider, "x-portkey-custom-host": host, "authorization": "Bearer k"}


def _agentic(bench: Bench, folder: Path, port: int) -> list[str]:
    base = f"http://127.0.0.1:{bench.ports['python']}"
    serve = ["serve", "--vllm-base-url", base, "--host", "127.0.0.1", "--port", str(port)]
    return [str(folder / "bin" / "python"), "-m", "agentic_api", *serve]


NO_LOOP = "no hook for a rerun"
PEERS = [
    Peer(
        "LiteLLM",
        _venv("litellm[proxy]"),
        _litellm,
        env={
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": "ERROR",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        },
    ),
    Peer(
        "Portkey",
        lambda folder: [["npm", "install", "--silent", "--prefix", str(folder), "@portkey-ai/gateway"]],
        _portkey,
        headers=_portkey_headers,
        cannot={"one rerun, JSON, Messages": NO_LOOP},
        env={"TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost", "NODE_ENV": "production"},
    ),
    Peer(
        "agentic-api",
        _venv("agentic-api"),
        _agentic,
        cannot={"one rerun, JSON, Messages": f"{NO_LOOP}; loops are for its Responses API"},
    ),
]


def installed(peer: Peer, folder: Path) -> Path:
    """The peer's folder, filled on the first run."""
    home = folder / peer.name.lower()
    done = home / ".installed"
    if not done.exists():
        home.mkdir(parents=True, exist_ok=True)
        for step in peer.install(home):
            subprocess.run(step, check=True)
        done.touch()
    return home


def asked(peer: str, work: Workload) -> Workload:
    """The workload under the name that the peer has for the model."""
    if peer != "LiteLLM" or work.path == M:
        return work
    other = Workload(work.name, work.path, work.model, stream="events" in work.model, upstream=work.upstream)
    other.body = work.body.replace(f'"model": "{work.model}"', f'"model": "chat-{work.model}"')
    return other


def figure(bench: Bench, peer: Peer, work: Workload, seconds: float, repeats: int) -> dict[str, object]:
    """One peer and one workload: a ratio to R, or what was wrong."""
    row: dict[str, object] = {"peer": peer.name, "workload": work.name}
    if work.name in peer.cannot:
        return {**row, "cannot": peer.cannot[work.name]}
    sent, headers = asked(peer.name, work), dict(peer.headers(bench, work))
    port = bench.ports[peer.name]
    first = httpx.post(
        f"http://127.0.0.1:{port}{sent.path}",
        content=sent.body,
        headers={"content-type": "application/json", "x-api-key": KEY, "anthropic-version": "2023-06-01", **headers},
        timeout=30,
    )
    if first.status_code != 200:
        return {**row, "cannot": f"answers {first.status_code}"}
    if "rerun" in work.name and "tool_use" in first.text:
        return {**row, "cannot": "the call comes out; no rerun"}
    pairs = []
    for _ in range(repeats):
        ours = load(port, sent, seconds, bench.folder, headers)
        pairs.append((ours, load(bench.ports[f"R-{work.upstream}"], work, seconds, bench.folder)))
    middle = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
    return {**row, "requests_per_second": middle[0], "ratio": round(middle[0] / middle[1], 4)}


def table(rows: list[dict[str, object]], names: list[str]) -> str:
    """Workloads down, gateways across."""
    lines = [f"| workload | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for work in WORKLOADS:
        cells = []
        for name in names:
            row = next(one for one in rows if one["peer"] == name and one["workload"] == work.name)
            if "cannot" in row:
                cells.append(str(row["cannot"]))
            else:
                cells.append(f"**{row['ratio']:.3f}** ({row['requests_per_second']:,.0f}/s)")
        lines.append(f"| {work.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Install, measure, print; with `--write` into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "peers", help="where peers are installed")
    parser.add_argument("--only", default="", help="the one peer with this name")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    for tool in ("wrk", "nginx"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed (Debian: apt-get install wrk nginx-light)")
    folder = given.folder.resolve()
    wanted = [peer for peer in PEERS if given.only in ("", peer.name)]
    homes = {peer.name: installed(peer, folder) for peer in wanted}
    ours = Peer("Loopway", lambda _folder: [], lambda _bench, _folder, _port: [])
    rows: list[dict[str, object]] = []
    with running(hooks=["peer_hook.answer", "bench_hooks.look"]) as (bench, _):
        bench.ports[ours.name] = bench.ports["plain"]
        for peer in [ours, *wanted]:
            if peer is not ours:
                port = free_port()
                command = peer.command(bench, homes[peer.name], port)
                bench.start(peer.name, 0, command, port, {**os.environ, **peer.env})
            for work in WORKLOADS:
                rows.append(figure(bench, peer, work, given.seconds, given.repeats))
                print(rows[-1], flush=True)
            if peer is not ours:
                bench.stop(peer.name)
    made = table(rows, [ours.name, *(peer.name for peer in wanted)])
    print(made)
    if given.write:
        page = (ROOT / "docs" / "benchmarks.md").read_text()
        before, _, rest = page.partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        (ROOT / "docs" / "benchmarks.md").write_text(f"{before}{MARKS[0]}\n{made}\n{MARKS[1]}{after}")
        (ROOT / "docs" / "benchmarks-peers.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
