"""What one passed-on request costs in the gateway's own code, without HTTP server and client: microseconds.

Usage: python benchmarks/road.py [plain | sampled | traced]

The ASGI application is called directly, over a transport that answers at once. Processor time, the least of 150 rounds
of 100 requests: a figure that another program on the machine hardly changes. `sampled` traces 1 % of them, `traced`
all, for a collector that is down.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import uvloop
from run import FIXED, HERE, KEY, WORKLOADS

from loopway.app import Gateway, build
from loopway.telemetry import logs

ROUNDS, REQUESTS = 150, 100
BODY = FIXED.encode()
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY)), (b"server", b"none")]


class _Stream(httpx.AsyncByteStream):
    async def __aiter__(self) -> Any:
        yield BODY


class _Transport(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=HEADERS, stream=_Stream(), request=request)


def _config() -> dict[str, Any]:
    names = ["fixed", "watched", "loops1", "loops3", "four", "events", "eventswatched"]
    return {
        "auth": {"keys": [{"name": "bench", "key": KEY}]},
        "upstreams": {"here": {"base_url": "http://127.0.0.1:9", "dialects": ["messages", "chat_completions"]}},
        "models": [{"name": name, "upstream": "here"} for name in names],
        "hooks": ["bench_hooks.answer", "bench_hooks.look", "bench_hooks.served_for_four"],
    }


def _built() -> Gateway:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=HERE) as file:  # beside the hooks
        file.write(json.dumps(_config()))
        file.flush()
        gateway = build(Path(file.name))
    logs.configure(level="warning", stream=open(os.devnull, "w"))  # noqa: PTH123, SIM115 - as long as the process
    for upstream in gateway.upstreams.values():
        upstream._transport = _Transport()  # noqa: SLF001 - no configuration says this
    return gateway


async def _measure(gateway: Gateway) -> float:
    await gateway._start()  # noqa: SLF001 - without a server there is no lifespan
    work, sent = WORKLOADS[0], list[dict[str, Any]]()
    body = work.body.encode()
    headers = [
        (b"host", b"127.0.0.1"),
        (b"content-length", b"%d" % len(body)),
        (b"content-type", b"application/json"),
        (b"x-api-key", KEY.encode()),
        (b"anthropic-version", b"2023-06-01"),
    ]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": work.path,
        "root_path": "",
    }
    scope |= {"query_string": b"", "headers": headers, "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1)}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def round_() -> float:
        began = time.process_time()
        for _ in range(REQUESTS):
            await asyncio.create_task(gateway.app(dict(scope), receive, send))  # type: ignore[arg-type]
            sent.clear()
        return (time.process_time() - began) / REQUESTS * 1e6

    await gateway.app(dict(scope), receive, send)  # type: ignore[arg-type]
    if sent[0]["status"] != 200:
        sys.exit(f"it answered {sent}")
    gc.collect()
    gc.freeze()
    return min([await round_() for _ in range(ROUNDS)])


def main() -> None:
    """Measure and print."""
    mode = sys.argv[1] if len(sys.argv) > 1 else "plain"
    if mode in ("sampled", "traced"):
        os.environ |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_TRACES_SAMPLER": "traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.01" if mode == "sampled" else "1",
        }
    elif mode != "plain":
        sys.exit(__doc__)
    took = uvloop.run(_measure(_built()))
    print(f"{mode}: {took:.1f} microseconds a request", flush=True)
    os._exit(0)  # the collector that is down is not waited for


if __name__ == "__main__":
    main()
