"""Where a request can reach: no field chooses a host, no spelling another model, no port or path what is not for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from faults.rawclient import raw, request
from inprocess import BOTH, KEY, PATHS, UPSTREAM_KEY, gateway_over, request_body
from loopway.testing import Reply, call, text
from puppets import Puppet
from upstream.conftest import Wire

CHEAP = "the-key-for-cheap-only"
LISTED = {"keys": [{"name": "tester", "key": KEY}, {"name": "cheap", "key": CHEAP, "models": ["cheap"]}]}


@pytest_asyncio.fixture
async def trap() -> AsyncIterator[Wire]:
    """A server that nobody has configured."""
    made = Wire()
    made.script(Wire.reply())
    await made.start()
    yield made
    await made.stop()


def _fields(url: str) -> dict[str, tuple[dict[str, str], dict[str, Any], str]]:
    host = url.removeprefix("http://")
    return {
        "model": ({}, {"model": f"{url}/m"}, ""),
        "model with a host in front": ({}, {"model": f"@{host}/m"}, ""),
        "host": ({"host": host}, {}, ""),
        "forwarded": ({"x-forwarded-host": host, "x-forwarded-proto": "http", "forwarded": f"host={host}"}, {}, ""),
        "rewritten": ({"x-original-url": url, "x-rewrite-url": url, "x-real-ip": host, "referer": url}, {}, ""),
        "providers' own": ({"anthropic-base-url": url, "openai-base-url": url, "openai-organization": url}, {}, ""),
        "query": ({}, {}, f"?base_url={url}&url={url}&@{host}"),
        "query with a fragment": ({}, {}, f"?a=b#@{host}/"),
        "query with slashes": ({}, {}, f"?//{host}/"),
        "query with a backslash": ({}, {}, f"?\\\\{host}"),
        "body": ({}, {"base_url": url, "api_base": url, "url": url, "upstream": url, "proxy": url}, ""),
        "LiteLLM's": ({}, {"litellm_params": {"api_base": url}, "api_base": url, "fallbacks": [url]}, ""),
        "metadata": ({}, {"metadata": {"base_url": url, "user_id": url}}, ""),
        "mcp_servers": ({}, {"mcp_servers": [{"type": "url", "url": url, "name": "x"}]}, ""),
        "an image": ({}, {"messages": [{"role": "user", "content": [{"type": "image", "source": {"url": url}}]}]}, ""),
        "a file": ({}, {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_url": url}}]}]}, ""),
        "proxy": ({"proxy": url, "proxy-connection": "keep-alive"}, {}, ""),
    }  # fmt: skip


@pytest.mark.parametrize("dialect", BOTH)
async def test_no_field_chooses_a_host(dialect: str, trap: Wire, subtests: pytest.Subtests) -> None:
    """Whatever a request says, the configured upstream is called at its own path, or nobody is."""
    async with gateway_over({"m": lambda _: Reply(text("fine"))}, [Puppet()]) as run:
        for name, (headers, more, query) in _fields(trap.url).items():
            with subtests.test(name):
                asked = len(run.model.requests)
                body = {**request_body(dialect), **more}
                path = PATHS[dialect] + query
                async with raw(run.url) as client:
                    lines = [f"{one}: {value}".encode() for one, value in headers.items()]
                    await client.send(request(*lines, body=json.dumps(body).encode(), path=path.encode()))
                    (status,) = await client.answers()
                assert status in (200, 400, 404)
                assert all(one.path == PATHS[dialect] for one in run.model.requests[asked:])
                assert len(run.model.requests) - asked == (status == 200)
        async with raw(run.url) as client:
            plain = json.dumps(request_body(dialect)).encode()
            await client.send(request(body=plain, path=(trap.url + PATHS[dialect]).encode()))
            assert await client.answers() == [200]
    assert trap.connections == 0


PATHS_THAT_ARE_NONE = (
    "/v1/messages/../../admin", "/v1/messages/%2e%2e/files", "/v1/messages%2f", "/v1/messages//", "/v1//messages",
    "/v1/files", "/v1/messages/batches", "/v1/organizations", "/V1/MESSAGES", "/v1/messages;a=b", "/v1/messages%00",
)  # fmt: skip


async def test_no_other_path_reaches_an_upstream(subtests: pytest.Subtests) -> None:
    """Only the documented paths are passed on, with the upstream's key: nobody uses it for files or batches."""
    async with gateway_over({"m": lambda _: Reply(text("fine"))}) as run:
        for path in PATHS_THAT_ARE_NONE:
            for method in (b"GET", b"POST", b"DELETE"):
                with subtests.test(f"{method.decode()} {path}"):
                    async with raw(run.url) as client:
                        await client.send(request(path=path.encode(), method=method))
                        assert await client.answers() in ([404], [405])
        assert run.model.requests == []


SPELLINGS: dict[str, bytes] = {
    "plainly": b'{"model":"dear"}',
    "twice": b'{"model":"cheap","model":"dear"}',
    "twice, the other way round": b'{"model":"dear","model":"cheap"}',
    "twice, once escaped": b'{"model":"cheap","mode\\u006c":"dear"}',
    "escaped": b'{"mode\\u006c":"dear"}',
    "the name escaped": b'{"model":"d\\u0065ar"}',
    "with a capital": b'{"model":"cheap","Model":"dear"}',
    "in capitals": b'{"MODEL":"dear","model":"cheap"}',
    "with an escaped capital": b'{"model":"cheap","\\u004dodel":"dear"}',
    "in a list": b'{"model":["cheap","dear"]}',
    "in an object": b'{"model":{"cheap":"dear"}}',
    "with a NUL": b'{"model":"dear\\u0000"}',
    "with spaces": b'{"model":" dear "}',
    "with the upstream's name": b'{"model":"very-dear"}',
    "in a second document": b'{"model":"cheap"}{"model":"dear"}',
    "behind a BOM": b'\xef\xbb\xbf{"model":"dear"}',
    "with a comment": b'{"model":"cheap"/*","model":"dear"*/}',
    "nested": b'{"a":{"model":"cheap"},"model":"dear"}',
    "empty": b'{"model":""}',
    "not at all": b"{}",
}


@pytest.mark.parametrize("dialect", BOTH)
async def test_no_spelling_reaches_another_model(dialect: str, subtests: pytest.Subtests) -> None:
    """A key for `cheap` never has a call made for `dear`, on any path that is passed on."""
    other = {"messages": ["/v1/messages/count_tokens"], "chat_completions": ["/v1/embeddings", "/v1/completions"]}
    models = [{"name": "dear", "upstream": "scripted", "model": "very-dear"}]
    says = lambda _: Reply(error=(200, {"ok": True}))  # noqa: E731
    async with gateway_over({"cheap": says, "dear": says, "very-dear": says}, models=models, auth=LISTED) as run:
        for path in (PATHS[dialect], *other[dialect]):
            good = await run.post(dialect, b'{"model":"cheap"}', key=CHEAP, path=path)
            assert good.status_code == 200
            for name, body in SPELLINGS.items():
                with subtests.test(f"{name} {path}"):
                    answer = await run.post(dialect, body, key=CHEAP, path=path)
                    assert answer.status_code in (400, 403, 404)
            headers = {"model": "dear", "x-model": "dear", "anthropic-model": "dear"}
            query = f"{path}?model=dear"
            assert (
                await run.post(dialect, b'{"model":"cheap"}', key=CHEAP, headers=headers, path=query)
            ).status_code == 200
        assert {one.model for one in run.model.requests} == {"cheap"}
        listed = (await run.client.get("/v1/models", headers={"x-api-key": CHEAP})).json()
        assert [one["id"] for one in listed["data"]] == ["cheap"]
        assert (await run.client.get("/v1/models/dear", headers={"x-api-key": CHEAP})).status_code == 404


async def test_keys_that_are_none(subtests: pytest.Subtests) -> None:
    """No spelling of a wrong key is a good one; and none of them has its body read."""
    wrong = {
        "none": [],
        "empty": [b"x-api-key: ", b"authorization: Bearer "],
        "a prefix": [b"x-api-key: " + KEY[:-1].encode()],
        "more": [b"x-api-key: " + KEY.encode() + b"x"],
        "another case": [b"x-api-key: " + KEY.upper().encode()],
        "Basic": [b"authorization: Basic " + KEY.encode()],
        "no scheme": [b"authorization: " + KEY.encode()],
        "a list": [b"x-api-key: " + KEY.encode() + b", other"],
        "the upstream's": [b"x-api-key: " + UPSTREAM_KEY.encode()],
        "a wildcard": [b"x-api-key: *", b"authorization: Bearer *"],
        "the name": [b"x-api-key: tester"],
        "in a cookie": [b"cookie: x-api-key=" + KEY.encode()],
        "no UTF-8": [b"x-api-key: \xff\xfe"],
        "long": [b"x-api-key: " + b"k" * 50_000],
    }
    async with gateway_over({"m": []}) as run:
        for name, lines in wrong.items():
            with subtests.test(name):
                async with raw(run.url) as client:
                    await client.send(request(*lines, key=None, length=10_000_000, body=b""))
                    assert await client.answers() == [401]
        async with raw(run.url) as client:
            await client.send(request(key=None, path=f"/v1/messages?api_key={KEY}&key={KEY}".encode()))
            assert await client.answers() == [401]


async def test_the_admin_port(subtests: pytest.Subtests) -> None:
    """Metrics are not on the clients' port, exchanges not on the admin one, no secret and no prompt on either."""
    async with gateway_over({"m": lambda _: Reply(call("mine", {"n": 1}))}, [Puppet()]) as run:
        await run.post("messages", request_body("messages", words="a-private-word", metadata={"user_id": "a-user"}))
        assert (await run.client.get("/metrics")).status_code == 404
        for path in ("/v1/messages", "/v1/models", "/", "/openapi.json", "/debug", "/schema"):
            with subtests.test(path):
                got = await run.client.post(run.admin_url + path, json={}, headers={"x-api-key": KEY})
                assert got.status_code in (404, 405)
        metrics = await run.client.get(f"{run.admin_url}/metrics")
        assert metrics.status_code == 200
        told = metrics.text + str(metrics.headers)
        for word in (KEY, UPSTREAM_KEY, "a-private-word", "a-user", run.model.url, "uvicorn", "Litestar"):
            assert word not in told


async def test_waiting_pipelined_bodies_are_bounded() -> None:
    """Behind a request that is under way a connection holds a part of a megabyte of the next ones, not all of them."""
    release = asyncio.Event()

    async def waits(_: Any) -> Reply:
        await release.wait()
        return Reply(text("fine"))

    async with gateway_over({"m": waits}) as run, raw(run.url) as client:
        body = json.dumps(request_body("messages", tools=())).encode()
        client.writer.write(request(body=body) + request(body=body[:-1] + b" " * 20_000_000 + b"}"))
        await run.model.until(lambda: len(run.model.requests) == 1)
        await asyncio.sleep(0.2)  # time for all of it to come, if it were read
        (connection,) = run.serving._main.server_state.connections
        held = sum(len(cycle.body) for cycle, _ in connection.pipeline)  # type: ignore[union-attr,misc]
        assert held < 1_000_000
        assert client.writer.transport.get_write_buffer_size() > 10_000_000
        release.set()
