"""A whole gateway in this process, with a scripted model behind it, for tests.

It must not know what a test wants to see: it gives addresses, the model, the notes and the log.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import httpx
import httpx_aiohttp
import structlog

from loopway.app import Gateway, build
from loopway.engine.notes import Note, Subject
from loopway.serving import Serving, bind
from loopway.telemetry import logs
from loopway.testing import Script, ScriptedModel

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

MODEL = "demo"
"""The model's name where a test names none."""


class Served:
    """A gateway that listens.

    Attributes:
        url: The clients' address, without a path. The `openai` SDK wants `url + "/v1"`.
        admin_url: The address of metrics and health; `url` if `server.admin_port` is null.
        gateway: The gateway itself.
        model: The scripted model behind it.
        key: The key that may call, if there is one.
        http: An HTTP client whose base is `url`, with the key.
        notes: What telemetry was told, in order.
        log: The log lines as text.
    """

    def __init__(
        self,
        urls: tuple[str, str],
        gateway: Gateway,
        model: ScriptedModel,
        key: str | None,
        notes: list[Note],
        log: io.StringIO,
    ) -> None:
        self.url, self.admin_url = urls
        self.gateway = gateway
        self.model = model
        self.key = key
        self.notes = notes
        self.log = log
        headers = {"x-api-key": key} if key is not None else {}
        limits = httpx.Limits(max_connections=1000)  # httpcore's pool is slow with hundreds of connections
        transport = httpx_aiohttp.AiohttpTransport(verify=False, limits=limits)
        self.http = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=10.0, transport=transport)

    def anthropic(self, **options: Any) -> AsyncAnthropic:
        """Anthropic's SDK for this gateway, to be used with `async with`."""
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

        client = DefaultAsyncHttpxClient(verify=False)  # reading the system's certificates takes its time
        return AsyncAnthropic(**{"base_url": self.url, "http_client": client, **self._sdk(), **options})

    def openai(self, **options: Any) -> AsyncOpenAI:
        """OpenAI's SDK for this gateway, to be used with `async with`."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        client = DefaultAsyncHttpxClient(verify=False)
        return AsyncOpenAI(**{"base_url": f"{self.url}/v1", "http_client": client, **self._sdk(), **options})

    def _sdk(self) -> dict[str, Any]:
        return {"api_key": self.key or "none", "max_retries": 0, "timeout": 10.0}

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """The log lines, or those of one event."""
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if event is None or line["event"] == event]


@contextlib.asynccontextmanager
async def running(
    config: Mapping[str, Any] | None = None,
    hooks: Sequence[object] = (),
    *,
    script: Script | Mapping[str, Script] = (),
    key: str | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """A gateway that listens on free ports, with a scripted model behind it.

    Args:
        config: Merged over the defaults: one upstream `here` for both dialects without retries, one model for each
            script, anyone may call. A list replaces the default's list.
        hooks: Hook instances.
        script: What the model `demo` says, or what each of several models says.
        key: The one key that may call.
        settings: Sections of the configuration (`loop={"max_agentic_loops": 1}`), merged last.
    """
    scripts = dict(script) if isinstance(script, Mapping) else {MODEL: script}
    async with contextlib.AsyncExitStack() as stack:
        model = await stack.enter_async_context(ScriptedModel(scripts))
        whole = merged(_defaults(model.url, list(scripts), key), config or {}, settings)
        log = stack.enter_context(_logged())
        notes: list[Note] = []

        def listen(_subject: Subject, note: Note) -> None:
            notes.append(note)

        gateway = build(whole, hooks, listeners=[listen])
        main = bind("127.0.0.1", 0)
        admin = [bind("127.0.0.1", 0)] if gateway.settings.server.admin_port is not None else []
        urls = [f"http://127.0.0.1:{socket.getsockname()[1]}" for socket in (main, *admin)]
        await stack.enter_async_context(Serving(gateway, [main], admin))
        here = Served((urls[0], urls[-1]), gateway, model, key, notes, log)
        await stack.enter_async_context(here.http)
        yield here


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merged at every level, the later over the earlier."""
    result: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            old = result.get(name)
            both = isinstance(old, Mapping) and isinstance(value, Mapping)
            result[name] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def _defaults(url: str, models: Sequence[str], key: str | None) -> dict[str, Any]:
    keys = {"mode": "open"} if key is None else {"mode": "keys", "keys": [{"name": "tests", "key": key}]}
    upstream = {"base_url": url, "dialects": ["messages", "chat_completions"], "max_retries": 0}
    return {
        "server": {"drain_seconds": 0.2},
        "auth": keys,
        "upstreams": {"here": upstream},
        "models": [{"name": name, "upstream": "here"} for name in models],
    }


@contextlib.contextmanager
def _logged() -> Iterator[io.StringIO]:
    """The log as text; what was set up before comes back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    access = logging.getLogger("uvicorn.access").disabled
    log = io.StringIO()
    logs.configure(form="json", stream=log)
    try:
        yield log
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.getLogger("uvicorn.access").disabled = access
        structlog.reset_defaults()
