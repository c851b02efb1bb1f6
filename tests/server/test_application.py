"""The short way to the endpoints of exchanges, and what Litestar answers for every other path."""

from __future__ import annotations

import json

import httpx
import pytest

from loopway.server.routes import read_head
from loopway.testing import Reply, text
from served import running

MESSAGE = {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/", "/v1//messages", "/v1/messages?beta=true"])
async def test_a_path_is_served_however_it_is_spelled(path: str) -> None:
    """The exact path goes past the router, the others through it; the answer is the same."""
    async with running(script=[Reply(text("here"))]) as served:
        got = await served.http.post(path, json=MESSAGE)
        assert (got.status_code, got.json()["content"][0]["text"]) == (200, "here")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/messages", "POST"),
        ("PUT", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/messages/", "POST"),
        ("GET", "/v1/embeddings", "POST"),
        ("POST", "/v1/models", "GET, OPTIONS"),
    ],
)
async def test_a_wrong_method_is_told_the_right_one(method: str, path: str, allow: str) -> None:
    """In the `allow` header (RFC 9110, section 15.5.6), in the shape of the path's dialect, and with an id."""
    async with running(script=[]) as served:
        got = await served.http.request(method, path)
        assert got.status_code == 405
        assert sorted(got.headers["allow"].split(", ")) == sorted(allow.split(", "))
        assert got.headers["x-request-id"]
        assert ("type" in got.json()) is path.startswith("/v1/messages")


async def test_two_requests_never_have_one_id() -> None:
    """An id that is made here is new each time, in the header and in the error's body."""
    async with running(script=[]) as served:
        answers: list[httpx.Response] = [await served.http.post("/v1/messages", content=b"") for _ in range(50)]
        ids = {one.headers["x-request-id"] for one in answers}
        assert len(ids) == 50
        assert {json.loads(one.content)["request_id"] for one in answers} == ids


def test_a_trace_state_in_two_lines_travels_whole() -> None:
    """Its lines are one list (RFC 9110, section 5.3), in their order."""
    lines = [(b"traceparent", b"00-1"), (b"tracestate", b"a=1"), (b"host", b"x"), (b"tracestate", b"b=2")]
    assert read_head(lines).trace == {"traceparent": "00-1", "tracestate": "a=1,b=2"}
