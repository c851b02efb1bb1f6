"""The composition root: settings to objects to Litestar. The only file that imports everything.

It must not decide anything: it builds, in this order: settings, hooks, upstreams, telemetry, the driver, the routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import litestar
from litestar import Litestar, Response
from litestar.exceptions import HTTPException
from litestar.exceptions import MethodNotAllowedException as LitestarMethodNotAllowed
from litestar.exceptions import NotFoundException as LitestarNotFound
from litestar.handlers import BaseRouteHandler
from prometheus_client import CollectorRegistry

from loopway.compat import litellm
from loopway.dialects.base import Dialect
from loopway.dialects.table import DIALECTS
from loopway.engine.limits import Limits
from loopway.engine.notes import Listener
from loopway.errors import ExchangeError, MethodNotAllowed, Problem
from loopway.exchange import Driver, LoopSettings
from loopway.hooks import registry
from loopway.hooks.chain import Chain
from loopway.hooks.kept import KeptHalves
from loopway.hooks.rules import Rule, Rules
from loopway.hooks.server_tools import ServerTool
from loopway.hooks.toolbox import Toolbox
from loopway.hooks.tools import KeepsTexts, ToolSource
from loopway.server import admin
from loopway.server.admission import Admission
from loopway.server.application import Application
from loopway.server.auth import KeyHolder, Keys
from loopway.server.failures import answer
from loopway.server.openapi import openapi
from loopway.server.routes import Door, exchange_route, new_request_id, not_found, read_head
from loopway.settings import Draft, Settings, read, read_mapping
from loopway.state import MemoryStore, RedisStore, Store
from loopway.telemetry import all_of, otel
from loopway.telemetry.logs import Logs
from loopway.telemetry.metrics import Metrics
from loopway.telemetry.tracing import Tracing
from loopway.upstream.client import Upstream
from loopway.upstream.pool import Target
from loopway.upstream.routing import Route, Router

Config = str | Path | Mapping[str, Any] | Settings
"""A configuration file, its content, or settings that were read before."""

PASSED_ON = (
    ("/v1/messages/count_tokens", "messages"),
    ("/v1/embeddings", "chat_completions"),
    ("/v1/completions", "chat_completions"),
)
"""Paths that go to the model's upstream untouched, and the dialect whose keys and errors they have."""


class Gateway:
    """A gateway with all its parts, not yet listening.

    Attributes:
        app: The main application.
        admin: The application of the admin port.
        admission: The door; `draining` and `ready` are read from it.
        settings: What it was built from.
        hooks: The names of the hooks, in order.
    """

    def __init__(
        self,
        settings: Settings,
        hooks: Sequence[tuple[str, object]],
        rules: tuple[Sequence[tuple[str, Rule]], Sequence[tuple[str, Rule]]] = ((), ()),
        *,
        listeners: Sequence[Listener] = (),
        scraped: Callable[[], CollectorRegistry] | None = None,
        spans: otel.Export | None = None,
    ) -> None:
        self.settings = settings
        self.hooks = [name for name, _ in hooks]
        self.admission = Admission(settings.server.max_concurrent_requests)
        self.upstreams = {name: _upstream(name, settings) for name in settings.upstreams}
        self.metrics = Metrics(
            models=[model.name for model in settings.models],
            hooks=self.hooks,
            upstreams=list(settings.upstreams),
            tools=registry.names_of([hook for _, hook in hooks]),
            provider=_provider_of,
            upstream_models=[model.sent_as for model in settings.models],
            exchanges=[
                (dialect, model.name)
                for model in settings.models
                for dialect in settings.upstreams[model.upstream].dialects
            ],
        )
        self.tracing: Tracing | None = None
        if spans is not None or otel.given_provider() is not None:
            self.tracing = Tracing(service_name=settings.telemetry.service_name, provider_of=_provider_of, where=spans)
        # Tracing comes first: the others read the trace id.
        traced = [self.tracing] if self.tracing is not None else []
        listener = all_of([*traced, self.metrics, Logs(), *listeners])
        self.router = Router(
            [_route(model, settings, self.upstreams) for model in settings.models],
            {model.name: model.fallback for model in settings.models if model.fallback},
        )
        deciding = [(name, hook) for name, hook in hooks if registry.decides(hook)]
        self.chain = Chain(deciding, timeout_seconds=settings.loop.hook_timeout_seconds, listener=listener)
        self.toolbox = Toolbox(
            [(name, hook) for name, hook in hooks if isinstance(hook, ToolSource)],
            timeout_seconds=settings.loop.hook_timeout_seconds,
            listener=listener,
        )
        self.store = _store(settings)
        for _, hook in hooks:
            if isinstance(hook, KeepsTexts):
                hook.bind_store(self.store)
        driver = Driver(
            router=self.router,
            chain=self.chain,
            toolbox=self.toolbox,
            kept=KeptHalves(self.store),
            rules=Rules(*rules, listener=listener),
            settings=_loop(settings),
            listener=listener,
            background=self.admission.background,
        )
        door = Door(
            keys=_keys(settings),
            admission=self.admission,
            listener=listener,
            timeout_seconds=settings.server.request_timeout_seconds,
            max_body_bytes=settings.server.max_body_bytes,
        )
        scrape = admin.metrics(scraped or (lambda: self.metrics.registry))
        health = admin.health(self.admission)
        shapes = (DIALECTS["messages"], DIALECTS["chat_completions"])
        main: list[BaseRouteHandler] = [
            *(exchange_route(dialect, door, driver) for dialect in DIALECTS.values()),
            *(exchange_route(DIALECTS[name], door, driver, path=path, loop=False) for path, name in PASSED_ON),  # type: ignore[index]
            *admin.models(self.router.names(), door, shapes),
            *admin.front_page(),
            openapi(),
            *health,
        ]
        if settings.server.admin_port is None:
            main.append(scrape)
        self.app = _litestar(main, on_startup=[self._start], on_shutdown=[self._stop])
        self.admin = _litestar([scrape, *admin.health(self.admission)])

    def flush(self) -> None:
        """Send off what telemetry still holds; may block for some seconds."""
        if self.tracing is not None:
            self.tracing.stop()

    async def _start(self) -> None:
        if self.tracing is not None:
            self.tracing.start()
        self.metrics.start(self.settings.server.max_concurrent_requests)
        await self.toolbox.start()
        self.admission.ready = True

    async def _stop(self) -> None:
        self.admission.ready = False
        await self.toolbox.aclose()
        await self.store.aclose()
        for upstream in self.upstreams.values():
            await upstream.aclose()


def create_app(config: Config, hooks: Sequence[object] = ()) -> Litestar:
    """The gateway as a Litestar application, to be mounted, tested or served by anyone.

    Args:
        config: A path, a mapping or a settings object.
        hooks: Hook instances, asked after those of the configuration.

    Raises:
        ConfigError: The configuration cannot work; every problem at once.
    """
    gateway = build(config, hooks)

    async def flush() -> None:
        await asyncio.to_thread(gateway.flush)

    gateway.app.on_shutdown.append(flush)  # `serving.serve` does it itself, when all else is over
    return gateway.app


def build(
    config: Config,
    hooks: Sequence[object] = (),
    *,
    adjust: Callable[[Settings], Settings] = lambda settings: settings,
    listeners: Sequence[Listener] = (),
    scraped: Callable[[], CollectorRegistry] | None = None,
) -> Gateway:
    """Read and check everything, and put it together. Raises `ConfigError` with every problem at once.

    Args:
        config: A path, a mapping or a settings object.
        hooks: Hook instances, asked after those of the configuration.
        adjust: Changes the settings last (the command line's flags).
        listeners: Told every note, beside metrics and logs.
        scraped: What `/metrics` shows, if not this process alone.
    """
    litellm.install_import_names()
    if isinstance(config, Settings):
        draft = Draft(source="settings", folder=Path.cwd(), settings=config, hooks=_entries(config))
    elif isinstance(config, Mapping):
        draft = read_mapping(config, translators=[litellm.translate])
    else:
        draft = read(Path(config), translators=[litellm.translate])
    problems: list[Problem] = []
    found = _load_hooks(draft, problems)
    for number, instance in enumerate(hooks):
        try:
            found.append((_name_of(instance), registry.checked(litellm.adapted(instance), f"hooks[{number}] in code")))
        except registry.Unusable as wrong:
            problems.append(Problem(f"hooks[{number}] in code", str(wrong)))
    spans: otel.Export | None = None
    try:
        spans = otel.export()
    except otel.Unusable as wrong:
        problems.append(Problem(wrong.variable, str(wrong)))
    _check_tools(found, draft, problems)
    rules = _load_rules(draft, problems)
    settings = adjust(draft.checked(problems))
    return Gateway(settings, _distinct(found), rules, listeners=listeners, scraped=scraped, spans=spans)


def warnings_of(config: str | Path) -> list[str]:
    """What a file says that is not honoured but changes no answer."""
    draft = read(Path(config), translators=[litellm.translate])
    return [f"{draft.source}: {warning.path}: {warning.text}" for warning in draft.warnings]


def _entries(settings: Settings) -> tuple[tuple[str, Any], ...]:
    return tuple((f"hooks[{number}]", hook) for number, hook in enumerate(settings.hooks))


def _load_hooks(draft: Draft, problems: list[Problem]) -> list[tuple[str, object]]:
    """The hooks of a configuration, and those that its modules put into `litellm.callbacks`."""
    found: list[tuple[str, object]] = []
    for path, entry in draft.hooks:
        if entry.builtin is not None:
            built = registry.built_in(entry.builtin, entry.settings, path, problems)
            if built is not None:
                found.append((entry.builtin, built))
            continue
        try:
            found.append((entry.path or "", registry.load(entry.path or "", draft.folder, litellm.adapted)))
        except registry.Unusable as wrong:
            problems.append(Problem(path, str(wrong)))
    there = {id(instance) for _, instance in found}
    for number, instance in enumerate(litellm.callbacks_in_code()):
        adapted = litellm.adapted(instance)
        if id(adapted) in there:
            continue
        try:
            found.append((_name_of(instance), registry.checked(adapted, f"litellm.callbacks[{number}]")))
        except registry.Unusable as wrong:
            problems.append(Problem(f"litellm.callbacks[{number}]", str(wrong)))
    return found


def _check_tools(found: Sequence[tuple[str, object]], draft: Draft, problems: list[Problem]) -> None:
    """Refuse what would be passed over silently: a hook that is there twice, two tools of one name, a model unknown."""
    models = {model.name for model in draft.settings.models} if draft.settings is not None else None
    hooks: dict[int, str] = {}
    tools: dict[str, str] = {}
    for name, hook in found:
        if id(hook) in hooks:
            problems.append(Problem("hooks", f"{name!r} is there twice (as {hooks[id(hook)]!r}); name it once"))
            continue
        hooks[id(hook)] = name
        for tool in hook.tools() if isinstance(hook, ToolSource) else ():
            if tool.name in tools:
                text = f"{name!r} and {tools[tool.name]!r} both offer a tool {tool.name!r}; give one another name"
                problems.append(Problem("hooks", text))
            tools[tool.name] = name
            unknown = sorted(tool.models - models) if tool.models and models is not None else []
            texts = [f"{name!r} is for the model {model!r}, which is not configured" for model in unknown]
            problems += [Problem("hooks", text) for text in texts]


def _load_rules(draft: Draft, problems: list[Problem]) -> tuple[list[tuple[str, Rule]], list[tuple[str, Rule]]]:
    found: dict[str, list[tuple[str, Rule]]] = {"pre_call": [], "post_call": []}
    if draft.settings is None:
        return found["pre_call"], found["post_call"]
    for kind, names in (("pre_call", draft.settings.rules.pre_call), ("post_call", draft.settings.rules.post_call)):
        for number, dotted in enumerate(names):
            try:
                found[kind].append((dotted, registry.load_rule(dotted, draft.folder)))
            except registry.Unusable as wrong:
                problems.append(Problem(f"rules.{kind}[{number}]", str(wrong)))
    return found["pre_call"], found["post_call"]


def _name_of(instance: object) -> str:
    if isinstance(instance, ServerTool):
        return f"{instance.__module__}.{instance.tool.name}"
    return f"{type(instance).__module__}.{type(instance).__qualname__}"


def _distinct(hooks: Sequence[tuple[str, object]]) -> list[tuple[str, object]]:
    """Names that tell hooks apart: the second of one name gets a number."""
    counts: dict[str, int] = {}
    named: list[tuple[str, object]] = []
    for name, instance in hooks:
        counts[name] = counts.get(name, 0) + 1
        named.append((name if counts[name] == 1 else f"{name}#{counts[name]}", instance))
    return named


def _provider_of(dialect: str) -> str:
    return DIALECTS[dialect].provider if dialect in DIALECTS else ""


def _upstream(name: str, settings: Settings) -> Upstream:
    given = settings.upstreams[name]
    return Upstream(
        Target(
            name=name,
            base_url=given.base_url,
            api_key=given.api_key.reveal() if given.api_key is not None else None,
            headers={header: value.reveal() for header, value in given.headers.items()},
            connect_timeout=given.connect_timeout_seconds,
            read_timeout=given.read_timeout_seconds,
            max_retries=given.max_retries,
            ca_file=given.ca_file,
            proxy=given.proxy.reveal() if given.proxy is not None else None,
            forward_client_auth=given.forward_client_auth,
        )
    )


def _route(model: Any, settings: Settings, upstreams: Mapping[str, Upstream]) -> Route:
    return Route(
        model=model.name,
        upstream=upstreams[model.upstream],
        upstream_model=model.sent_as,
        dialects=frozenset(settings.upstreams[model.upstream].dialects),
        max_agentic_loops=model.max_agentic_loops,
    )


def _loop(settings: Settings) -> LoopSettings:
    loop = settings.loop
    return LoopSettings(
        limits=Limits(
            loops=loop.max_agentic_loops,
            ceiling=loop.max_agentic_loops_ceiling,
            seconds=loop.max_seconds,
            tool_calls=loop.max_tool_calls,
            on_limit=loop.on_limit,
            on_repeat=loop.on_repeat,
        ),
        stream=loop.stream,
        interim_text=loop.interim_text,
        usage=loop.usage,
        keepalive_seconds=loop.keepalive_seconds,
    )


def _store(settings: Settings) -> Store:
    state = settings.state
    if state.redis_url is not None:
        return RedisStore(state.redis_url.reveal(), seconds=state.keep_seconds)
    return MemoryStore(most_bytes=state.max_bytes, seconds=state.keep_seconds)


def _keys(settings: Settings) -> Keys:
    keys = [(bytes.fromhex(key.digest), KeyHolder(key.name, tuple(key.models))) for key in settings.auth.keys]
    return Keys(keys, open_to_all=settings.auth.mode == "open")


def _litestar(handlers: Sequence[BaseRouteHandler], **more: Any) -> Litestar:
    return Application(
        handlers,
        openapi_config=None,
        logging_config=None,
        exception_handlers={HTTPException: _failed},
        after_request=_with_request_id,
        **more,
    )


def _with_request_id(response: Response[Any]) -> Response[Any]:
    """Every answer has an id; those of exchanges and errors have their own already."""
    response.headers.setdefault("x-request-id", new_request_id())
    return response


def _failed(request: litestar.Request[Any, Any, Any], failure: HTTPException) -> Response[bytes]:
    """What Litestar refuses itself (no such path, not this method), in the shape of the path's dialect."""
    head = read_head(request.scope["headers"])
    path = request.scope["path"]
    error: ExchangeError
    if isinstance(failure, LitestarNotFound):
        error = not_found(path)
    elif isinstance(failure, LitestarMethodNotAllowed):
        allow = (failure.headers or {}).get("allow", "")
        error = MethodNotAllowed(f"{request.method} is not for {path[:200]!r}; write one of {allow}", allow)
    else:
        error = ExchangeError("the gateway failed; its log says why")
        error.status = failure.status_code
    status, headers, body = answer(error, _dialect_of(path, anthropic=head.anthropic), head.request_id)
    shown = {name.decode(): value.decode() for name, value in headers if name != b"content-type"}
    shown["x-request-id"] = head.request_id or new_request_id()
    return Response(body, status_code=status, media_type="application/json", headers=shown)


def _dialect_of(path: str, *, anthropic: bool) -> Dialect:
    return DIALECTS["messages" if anthropic or path.startswith("/v1/messages") else "chat_completions"]
