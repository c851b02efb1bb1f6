"""The HTTP surface as an OpenAPI document, kept by hand, and the endpoint that serves it. It needs no key.

Bodies are described as far as the gateway reads them: what it passes on is the provider's to describe. This file must
not know how a request is answered; `tests/fuzz/test_openapi.py` holds it against what is.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, get
from litestar.handlers import BaseRouteHandler

from loopway._version import __version__

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_REQUEST_ID: Schema = {"x-request-id": {"description": "The id of this exchange.", "schema": _STRING}}
_ERRORS: dict[str, str] = {
    "400": "The body or a header is wrong; the text begins with the JSON path.",
    "401": "No key, or one that is not known here.",
    "403": "The key is not for this model.",
    "404": "There is no such model.",
    "405": "Another method than POST.",
    "413": "The body is longer than server.max_body_bytes.",
    "431": "The head of the request is longer than 64 KiB.",
    "500": "A hook failed; the text names it and its phase.",
    "502": "The upstream cannot be reached, or its answer is none.",
    "503": "The gateway is full or shutting down; see retry-after.",
    "504": "The upstream is silent, or the request takes too long.",
    "529": "Full or shutting down, as Messages has it.",
}
_EXCHANGES: dict[str, tuple[str, str, bool, tuple[str, ...]]] = {
    "/v1/messages": ("messages", "Anthropic Messages", True, ("messages",)),
    "/v1/chat/completions": ("chat_completions", "OpenAI Chat Completions", True, ("messages",)),
    "/v1/messages/count_tokens": ("messages", "Count tokens; passed to the model's upstream", False, ()),
    "/v1/embeddings": ("chat_completions", "Embeddings; passed to the model's upstream", False, ()),
    "/v1/completions": ("chat_completions", "Completions; passed to the model's upstream", False, ()),
}
"""By path: dialect, what it is, whether hooks may see it, what a request needs beside its model."""


def _error(dialect: str) -> Schema:
    """The shape of an error."""
    members: Schema = {"type": _STRING, "message": _STRING}
    if dialect == "messages":
        error = {"type": "object", "properties": members, "required": ["type", "message"]}
        kind = {"type": "string", "const": "error"}
        shape = {"type": kind, "error": error, "request_id": _STRING}
        return {"type": "object", "properties": shape, "required": ["type", "error"]}
    members |= {"param": {"type": ["string", "null"]}, "code": {"type": ["string", "integer", "null"]}}
    error = {"type": "object", "properties": members, "required": ["message"]}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _answer(text: str, schema: Schema | None = None) -> Schema:
    return {"description": text} if schema is None else {"description": text, "content": _json(schema)}


def _exchange(dialect: str, summary: str, *, loop: bool, needs: tuple[str, ...]) -> Schema:
    body: Schema = {
        "type": "object",
        "required": ["model", *needs],
        "properties": {"model": {"type": "string", "minLength": 1, "description": "A configured name."}},
        "additionalProperties": True,
    }
    if loop:
        body["properties"] |= {
            "messages": {"type": "array", "items": {"type": "object"}},
            "stream": {"type": "boolean"},
            "tools": {"type": "array", "items": {"type": "object"}},
            "max_agentic_loops": {"type": "integer", "minimum": 0, "description": "Reruns; never sent upstream."},
        }
    name = "x-max-agentic-loops"
    headers = [
        {"name": name, "in": "header", "schema": {"type": "integer", "minimum": 0}},
        {"name": "x-loopway-stream", "in": "header", "schema": {"type": "string", "enum": ["merged", "appended"]}},
        {"name": "x-request-id", "in": "header", "schema": {**_STRING, "maxLength": 128}},
    ]
    good: Schema = {
        "description": "The answer, as the provider has it.",
        "headers": _REQUEST_ID,
        "content": _json({"type": "object"}),
    }
    if loop:
        good["content"]["text/event-stream"] = {}
    failed = {
        status: _answer(text, {"$ref": f"#/components/schemas/Error_{dialect}"}) for status, text in _ERRORS.items()
    }
    other = _answer("What the upstream answered: its own status and body.")
    return {
        "post": {
            "summary": summary,
            "parameters": headers if loop else headers[2:],
            "requestBody": {"required": True, "content": _json(body)},
            "responses": {"200": good, **failed, "default": other},
        }
    }


def _small(summary: str, answers: dict[str, Schema], *, method: str = "get", key: bool = False) -> Schema:
    shown: Schema = {"summary": summary, "responses": answers}
    if not key:
        shown["security"] = []
    return {method: shown}


def document() -> Schema:
    """The document, OpenAPI 3.1."""
    refused = {"401": _answer("No key, or one that is not known here.", {"type": "object"})}
    anybody = {"type": "object", "properties": {"status": _STRING}, "required": ["status"]}
    name = {"name": "model_id", "in": "path", "required": True, "schema": {**_STRING, "minLength": 1}}
    one = _small("One model", {
        "200": _answer("It, in the shape of the list.", {"type": "object", "required": ["id"]}),
        "404": _answer("There is none, or not for this key.", {"type": "object", "required": ["error"]}),
        **refused,
    }, key=True)  # fmt: skip
    one["get"]["parameters"] = [name]
    listed = {"type": "object", "required": ["data"], "properties": {"data": {"type": "array"}}}
    paths = {
        **{
            path: _exchange(dialect, summary, loop=loop, needs=needs)
            for path, (dialect, summary, loop, needs) in _EXCHANGES.items()
        },
        "/v1/models": _small("The models of this key", {
            "200": _answer("Anthropic's list with an anthropic-version header, else OpenAI's.", listed), **refused,
        }, key=True),
        "/v1/models/{model_id}": one,
        "/": {
            **_small("Name and version", {"200": _answer("Both.", {"type": "object"})}),
            **_small("Nothing", {"200": _answer("It is there.")}, method="head"),
        },
        "/healthz": _small("The process lives", {"200": _answer("It does.", anybody)}),
        "/readyz": _small("Requests are taken", {
            "200": _answer("They are.", anybody), "503": _answer("Not yet, or no more.", anybody),
        }),
        "/openapi.json": _small("This document", {"200": _answer("It.", {"type": "object"})}),
    }  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": "loopway", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "security": [{"key": []}, {"bearer": []}],
        "components": {
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
            "schemas": {f"Error_{dialect}": _error(dialect) for dialect in ("messages", "chat_completions")},
        },
    }


def openapi() -> BaseRouteHandler:
    """`GET /openapi.json`."""
    encoded = msgspec.json.encode(document())

    @get("/openapi.json", sync_to_thread=False)
    def described() -> Response[bytes]:
        return Response(encoded, media_type="application/json")

    return described
