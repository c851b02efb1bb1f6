"""The small endpoints: health, metrics, the list of models, the front page.

This file must not know what an exchange is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from litestar import Request, Response, get, head, route
from litestar.handlers import BaseRouteHandler
from litestar.status_codes import HTTP_200_OK, HTTP_503_SERVICE_UNAVAILABLE
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from loopway._version import __version__
from loopway.dialects.base import Dialect
from loopway.errors import ExchangeError, NotFound
from loopway.server.admission import Admission
from loopway.server.auth import KeyHolder
from loopway.server.failures import answer
from loopway.server.routes import Door, Head, new_request_id, read_head

JsonRequest = Request[Any, Any, Any]
_LONGEST_PAGE = 1000
_CREATED = int(time.time())


def health(admission: Admission) -> list[BaseRouteHandler]:
    """`/healthz`: the process is alive. `/readyz`: it takes requests; 503 while it starts and while it drains."""

    @route("/healthz", http_method=["GET", "HEAD"], status_code=HTTP_200_OK)
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @route("/readyz", http_method=["GET", "HEAD"])
    async def readyz() -> Response[dict[str, str]]:
        if admission.ready and not admission.draining:
            return Response({"status": "ready"}, status_code=HTTP_200_OK)
        status = "draining" if admission.draining else "starting"
        return Response({"status": status}, status_code=HTTP_503_SERVICE_UNAVAILABLE)

    return [healthz, readyz]


def metrics(registry: Callable[[], CollectorRegistry]) -> BaseRouteHandler:
    """`/metrics`: Prometheus text, or OpenMetrics if the scraper asks for it.

    Args:
        registry: Gives what is scraped; with several workers a collector of all of them.
    """

    @get("/metrics", sync_to_thread=False)
    def scrape(request: JsonRequest) -> Response[bytes]:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        kind = content_type.removesuffix("; charset=utf-8") if content_type.startswith("text/") else content_type
        return Response(encode(registry()), media_type=kind)  # Litestar names the charset of texts

    return scrape


def front_page() -> list[BaseRouteHandler]:
    """`GET` and `HEAD /`: SDKs and load balancers look here."""
    body = {"name": "loopway", "version": __version__}

    @get("/", sync_to_thread=False)
    def front() -> dict[str, str]:
        return body

    @head("/", sync_to_thread=False)
    def front_head() -> None:
        return None

    return [front, front_head]


def models(names: Sequence[str], door: Door, shapes: tuple[Dialect, Dialect]) -> list[BaseRouteHandler]:
    """`GET /v1/models` and `/v1/models/{id}`, in Anthropic's shape if the request has `anthropic-version`.

    Args:
        names: The configured names.
        shapes: The dialects whose shape errors have: Anthropic's, OpenAI's.
    """

    @get("/v1/models")
    async def listed(request: JsonRequest) -> Response[Any]:
        head_, holder, refused = _caller(request, door)
        if holder is None:
            return _error(refused, shapes[0 if head_.anthropic else 1], head_)
        visible = [name for name in names if _may(holder, name)]
        if head_.anthropic:
            return _json(_anthropic_list(visible, request.query_params), head_)
        return _json({"object": "list", "data": [_openai_model(name) for name in visible]}, head_)

    @get("/v1/models/{model_id:path}")
    async def one(request: JsonRequest) -> Response[Any]:
        head_, holder, refused = _caller(request, door)
        shape = shapes[0 if head_.anthropic else 1]
        if holder is None:
            return _error(refused, shape, head_)
        name = str(request.path_params["model_id"]).lstrip("/")
        if name not in names or not _may(holder, name):
            return _error(NotFound(f"there is no model {name[:200]!r}", "$.model"), shape, head_)
        return _json(_anthropic_model(name) if head_.anthropic else _openai_model(name), head_)

    return [listed, one]


def _caller(request: JsonRequest, door: Door) -> tuple[Head, KeyHolder | None, ExchangeError]:
    head_ = read_head(request.scope["headers"])
    try:
        return head_, door.keys.holder(head_.keys), NotFound("")
    except ExchangeError as refused:
        return head_, None, refused


def _may(holder: KeyHolder, name: str) -> bool:
    return "*" in holder.models or name in holder.models


def _json(value: Any, head_: Head) -> Response[Any]:
    return Response(value, headers={"x-request-id": head_.request_id})


def _error(error: ExchangeError, shape: Dialect, head_: Head) -> Response[Any]:
    status, _, body = answer(error, shape, head_.request_id)
    return Response(
        msgspec.json.decode(body),
        status_code=status,
        headers={"x-request-id": head_.request_id or new_request_id()},
    )


def _openai_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": "loopway"}


def _anthropic_model(name: str) -> dict[str, Any]:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_CREATED))
    return {"type": "model", "id": name, "display_name": name, "created_at": created}


def _anthropic_list(names: Sequence[str], query: Any) -> dict[str, Any]:
    """A page as Anthropic cuts it: `limit` (at most 1000), `after_id`, `before_id`; all if none is asked for."""
    page = list(names)
    after, before = query.get("after_id"), query.get("before_id")
    if after in page:
        page = page[page.index(after) + 1 :]
    if before in page:
        page = page[: page.index(before)]
    limit = query.get("limit", "")
    most = max(len(page), 1)
    if limit.isascii() and limit.isdigit():
        digits = limit.lstrip("0")
        most = min(max(int(digits or "0"), 1), _LONGEST_PAGE) if len(digits) <= 4 else _LONGEST_PAGE  # noqa: PLR2004
    more = len(page) > most
    page = page[-most:] if before and not after else page[:most]
    return {
        "data": [_anthropic_model(name) for name in page],
        "has_more": more,
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
    }
