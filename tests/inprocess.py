"""A gateway over a scripted model, both in this process, on real sockets.

This file must not know what a test wants of it.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from loopway.app import Gateway, build
from loopway.engine.notes import Note, Subject
from loopway.serving import Serving, bind
from loopway.telemetry import logs
from loopway.testing import ScriptedModel

KEY = "test-client-key-1"
UPSTREAM_KEY = "test-upstream-key-2"
PATHS = {"messages": "/v1/messages", "chat_completions": "/v1/chat/completions"}
BOTH = ("messages", "chat_completions")


class Run:
    """What runs: `url`, `admin_url`, `gateway`, `model`, `notes` (every note so far), `log`."""

    def __init__(self, gateway: Gateway, model: ScriptedModel, url: str, admin_url: str) -> None:
        self.gateway = gateway
        self.model = model
        self.url = url
        self.admin_url = admin_url
        self.notes: list[tuple[Subject, Note]] = []
        self.log = io.StringIO()
        self.client = httpx.AsyncClient(base_url=url, timeout=20, verify=False)  # no certificates to read
        self.serving: Serving

    async def fresh(self) -> None:
        """Close the client's connections and open new ones from now on."""
        await self.client.aclose()
        self.client = httpx.AsyncClient(base_url=self.url, timeout=20, verify=False)

    def told(self, kind: type[Any]) -> list[Any]:
        """The notes of one kind."""
        return [note for _, note in self.notes if isinstance(note, kind)]

    async def post(
        self,
        dialect: str,
        body: Any,
        *,
        headers: Mapping[str, str] | None = None,
        key: str | None = KEY,
        path: str | None = None,
    ) -> httpx.Response:
        """One request; `body` is bytes or plain data."""
        more = dict(headers or {})
        if key is not None:
            more.setdefault("authorization", f"Bearer {key}")
        target = path or PATHS[dialect]
        if isinstance(body, bytes):
            return await self.client.post(target, content=body, headers=more)
        return await self.client.post(target, json=body, headers=more)

    @asynccontextmanager
    async def stream(
        self, dialect: str, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """One request whose answer is read as it comes."""
        more = {"authorization": f"Bearer {KEY}", **(headers or {})}
        async with self.client.stream("POST", PATHS[dialect], json={**body, "stream": True}, headers=more) as answer:
            yield answer


def request_body(
    dialect: str, model: str = "m", tools: Sequence[str] = ("mine", "theirs"), words: str = "hello", **more: Any
) -> dict[str, Any]:
    """A request that offers these tools."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": words}]}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    if dialect == "messages":
        body["max_tokens"] = 500
        offered: list[dict[str, Any]] = [{"name": name, "input_schema": schema} for name in tools]
    else:
        offered = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in tools]
    if offered:
        body["tools"] = offered
    return {**body, **more}


@asynccontextmanager
async def gateway_over(
    scripts: Any,
    hooks: Sequence[object] = (),
    *,
    models: Sequence[Mapping[str, Any]] = (),
    upstream: Mapping[str, Any] | None = None,
    upstreams: Mapping[str, Any] | None = None,
    **sections: Mapping[str, Any],
) -> AsyncIterator[Run]:
    """A gateway with one key, one upstream that speaks both dialects, and a model per script.

    Args:
        scripts: What `ScriptedModel` takes.
        hooks: Hook instances.
        models: More models, or the same with settings of their own.
        upstream: More settings of the scripted upstream.
        upstreams: More upstreams.
        sections: `server`, `loop`, `auth`, … of the configuration.
    """
    run: Run | None = None

    def listen(subject: Subject, note: Note) -> None:
        if run is not None:
            run.notes.append((subject, note))

    async with ScriptedModel(scripts) as model:
        special = {one["name"] for one in models}
        config: dict[str, Any] = {
            "auth": {"keys": [{"name": "tester", "key": KEY}]},
            "upstreams": {
                "scripted": {
                    "base_url": model.url,
                    "api_key": UPSTREAM_KEY,
                    "dialects": list(BOTH),
                    "max_retries": 0,
                    **(upstream or {}),
                },
                **(upstreams or {}),
            },
            "models": [
                *({"name": name, "upstream": "scripted"} for name in scripts if name not in special),
                *models,
            ],
            **sections,
        }
        config["server"] = {"drain_seconds": 1, **sections.get("server", {})}
        out = io.StringIO()
        logs.configure(form="json", stream=out)
        gateway = build(config, hooks, listeners=[listen])
        main, admin = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
        urls = [f"http://127.0.0.1:{one.getsockname()[1]}" for one in (main, admin)]
        async with Serving(gateway, [main], [admin]) as serving:
            run = Run(gateway, model, *urls)
            run.serving = serving
            run.log = out
            try:
                yield run
            finally:
                await run.client.aclose()
