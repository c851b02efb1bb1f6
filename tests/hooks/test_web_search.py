"""The built-in `web_search`: its settings, its providers on their real wire, and what clients and models see of it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from inprocess import KEY, Run, gateway_over, request_body
from loopway import server_tool
from loopway.app import build
from loopway.dialects.sse import Reader
from loopway.errors import Problem
from loopway.hooks import registry
from loopway.hooks.tools import ToolContext, ToolResult
from loopway.hooks.web_search import own_docs, web_search
from loopway.hooks.web_search.blocks import shown, taken_back
from loopway.hooks.web_search.domains import Domains
from loopway.hooks.web_search.hits import Hit, SearchFailed, for_client, for_model, from_client
from loopway.hooks.web_search.local import LOOK_SECONDS, Local, passages
from loopway.hooks.web_search.providers import LARGEST_ANSWER, Brave, Location, Searxng, Tavily, Wish
from loopway.hooks.web_search.settings import read
from loopway.testing import Recorded, Reply, call, text, thinking
from streams import GRAMMAR

SECRET = "provider-key-77"
TYPED = {"type": "web_search_20250305", "name": "web_search"}
OSLO = Hit("Oslo weather", "https://weather.example/oslo", "Rain in Oslo.", "2 days ago")
BERGEN = Hit("Bergen", "https://other.example/bergen", "Rain in Bergen.")


# --- settings ---


@pytest.mark.parametrize(
    ("given", "path", "says"),
    [
        ({}, "provider", "missing"),
        ({"provider": "google"}, "provider", "searxng, tavily, brave or local"),
        ({"provider": "searxng"}, "base_url", "SearXNG"),
        ({"provider": "tavily"}, "api_key", "tavily gave you"),
        ({"provider": "brave"}, "api_key", "brave gave you"),
        ({"provider": "searxng", "base_url": "searxng:8080"}, "base_url", "no scheme"),
        ({"provider": "searxng", "base_url": "http://u:p@searxng"}, "base_url", "api_key"),
        ({"provider": "searxng", "base_url": "http://searxng/?q=1"}, "base_url", "behind its path"),
        ({"provider": "searxng", "base_url": "http://["}, "base_url", "no address"),
        ({"provider": "searxng", "base_url": "http://s", "folder": "docs"}, "folder", "searches no folder"),
        ({"provider": "local", "folder": "/no/such/folder"}, "folder", "no such folder"),
        ({"provider": "local", "api_key": "x"}, "api_key", "no key"),
        ({"provider": "local", "max_results": 0}, "max_results", "from 1 to 20"),
        ({"provider": "local", "max_uses": True}, "max_uses", "at least 1"),
        ({"provider": "local", "timeout_seconds": 0}, "timeout_seconds", "above 0"),
        ({"provider": "local", "tool_name": "a b"}, "tool_name", "letters"),
        ({"provider": "local", "models": "m"}, "models", "a list"),
        ({"provider": "local", "inject": "yes"}, "inject", "true or false"),
        ({"provider": "local", "allowed_domains": ["https://a.example"]}, "allowed_domains[0]", "no domain"),
        ({"provider": "local", "max_result": 3}, "max_result", "did you mean 'max_results'"),
    ],
)
def test_settings_that_cannot_work(given: dict[str, Any], path: str, says: str) -> None:
    """Each is refused with its key path and what to write."""
    problems: list[Problem] = []
    assert registry.built_in("web_search", given, "hooks[0]", problems) is None
    (problem,) = problems
    assert problem.path == f"hooks[0].web_search.{path}"
    assert says in problem.text


def test_every_problem_at_once_and_no_key_shown() -> None:
    """One bad setting does not hide another, and a key is in no message."""
    problems: list[Problem] = []
    registry.built_in("web_search", {"provider": "tavily", "api_key": [SECRET], "max_uses": 0}, "hooks[0]", problems)
    assert [one.path.rpartition(".")[2] for one in problems] == ["api_key", "max_uses"]
    assert SECRET not in str(problems)


def test_settings_repr_shows_no_key() -> None:
    """Settings may be logged."""
    assert SECRET not in repr(read({"provider": "tavily", "api_key": SECRET}))


# --- domains ---


@pytest.mark.parametrize(
    ("domains", "url", "passes"),
    [
        (Domains(), "https://a.example/x", True),
        (Domains(), "ftp://a.example/x", False),
        (Domains(), "//[", False),
        (Domains(("a.example",)), "https://a.example/x", True),
        (Domains(("a.example",)), "https://docs.A.example", True),
        (Domains(("docs.a.example",)), "https://a.example/", False),
        (Domains(("a.example",)), "https://bada.example/", False),
        (Domains(("a.example/blog",)), "https://a.example/blog/1", True),
        (Domains(("a.example/blog",)), "https://a.example/shop", False),
        (Domains(("a.example/*",)), "https://a.example/shop", True),
        (Domains(None, ("a.example",)), "https://docs.a.example/", False),
        (Domains(None, ("a.example/blog",)), "https://a.example/", True),
        (Domains(()), "https://a.example/", False),
    ],
)
def test_domains(domains: Domains, url: str, *, passes: bool) -> None:
    """A domain covers its subdomains, a path behind it is a prefix."""
    assert domains.lets(url) is passes


@pytest.mark.parametrize(
    ("ours", "theirs", "both"),
    [
        (None, ["a.example"], ("a.example",)),
        (("a.example",), None, ("a.example",)),
        (("a.example",), ["docs.a.example", "b.example"], ("docs.a.example",)),
        (("docs.a.example",), ["a.example"], ("docs.a.example",)),
        (("a.example",), ["b.example"], ()),
    ],
)
def test_the_narrower_domains_win(ours: Any, theirs: Any, both: Any) -> None:
    """What settings and client allow is what both allow."""
    assert Domains(ours).narrowed(theirs, ["x.example"]) == Domains(both, ("x.example",))


# --- providers ---


class Server:
    """A search server: what it was asked, and what it answers."""

    def __init__(self, answer: Callable[[web.Request], Any]) -> None:
        self.answer = answer
        self.asked: list[tuple[web.Request, Any]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request, await request.json() if request.method == "POST" else None))
        made = self.answer(request)
        if isinstance(made, web.StreamResponse):
            return made
        return web.json_response(await made if asyncio.iscoroutine(made) else made)


@asynccontextmanager
async def serving(answer: Any) -> AsyncIterator[Server]:
    server = Server(answer if callable(answer) else lambda _request: answer)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


SEARXNG = {
    "query": "q",
    "results": [
        {
            "url": OSLO.url,
            "title": OSLO.title,
            "content": OSLO.snippet,
            "engine": "x",
            "score": 1.5,
            "publishedDate": OSLO.age,
        },
        {"url": BERGEN.url, "title": BERGEN.title, "content": BERGEN.snippet, "publishedDate": None},
    ],
    "suggestions": [],
}
TAVILY = {
    "query": "q",
    "answer": None,
    "results": [
        {"title": OSLO.title, "url": OSLO.url, "content": OSLO.snippet, "score": 0.9, "published_date": OSLO.age},
        {"title": BERGEN.title, "url": BERGEN.url, "content": BERGEN.snippet, "score": 0.5},
    ],
    "response_time": 1.0,
}
BRAVE = {
    "type": "search",
    "web": {
        "results": [
            {"title": OSLO.title, "url": OSLO.url, "description": OSLO.snippet, "age": OSLO.age},
            {"title": BERGEN.title, "url": BERGEN.url, "description": "Rain in Bergen.", "extra_snippets": []},
        ]
    },
}
PROVIDERS = {"searxng": (Searxng, SEARXNG), "tavily": (Tavily, TAVILY), "brave": (Brave, BRAVE)}
every = pytest.mark.parametrize("name", PROVIDERS)


@asynccontextmanager
async def provider(name: str, answer: Any = None, **more: Any) -> AsyncIterator[tuple[Any, Server]]:
    kind, usual = PROVIDERS[name]
    async with serving(usual if answer is None else answer) as server:
        made = kind(read({"provider": name, "base_url": server.url, "api_key": SECRET, **more}))
        await made.start()
        try:
            yield made, server
        finally:
            await made.aclose()


@every
async def test_results_of_each_provider(name: str) -> None:
    """Title, address, passage and age are read from the provider's own names."""
    async with provider(name) as (made, _):
        assert await made.search("rain", Wish(5)) == [OSLO, BERGEN]


async def test_what_searxng_is_asked() -> None:
    """GET /search with q and format=json; the few allowed domains are in the query."""
    async with provider("searxng") as (made, server):
        await made.search("rain & snow", Wish(5, Domains(("a.example", "b.example/x"))))
    ((request, _),) = server.asked
    assert (request.method, request.path) == ("GET", "/search")
    assert dict(request.query) == {"q": "rain & snow site:a.example OR site:b.example", "format": "json"}


async def test_what_tavily_is_asked() -> None:
    """POST /search with a bearer key, the count and the domains."""
    async with provider("tavily") as (made, server):
        await made.search("rain", Wish(3, Domains(("a.example/x",), ("b.example", "c.example/path"))))
    ((request, body),) = server.asked
    assert (request.method, request.path) == ("POST", "/search")
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert body == {
        "query": "rain",
        "max_results": 3,
        "search_depth": "basic",
        "include_domains": ["a.example"],
        "exclude_domains": ["b.example"],
    }


async def test_what_brave_is_asked() -> None:
    """GET /res/v1/web/search with the token header, the country, and the place in headers."""
    async with provider("brave") as (made, server):
        await made.search("rain", Wish(3, location=Location("Oslo", "", "no", "Europe/Oslo")))
    ((request, _),) = server.asked
    assert (request.method, request.path) == ("GET", "/res/v1/web/search")
    assert request.headers["x-subscription-token"] == SECRET
    assert (request.query["q"], request.query["count"], request.query["country"]) == ("rain", "3", "NO")
    assert (request.headers["x-loc-city"], request.headers["x-loc-timezone"]) == ("Oslo", "Europe/Oslo")
    assert "x-loc-state-name" not in request.headers


FAILURES: list[tuple[str, Any, str, str]] = [
    ("searxng", lambda _: web.Response(status=403), "unavailable", "search.formats"),
    ("searxng", lambda _: web.Response(status=500), "unavailable", "status 500"),
    ("searxng", lambda _: web.Response(status=302, headers={"location": "/x"}), "unavailable", "status 302"),
    ("searxng", lambda _: web.Response(text="<html>"), "unavailable", "no JSON"),
    ("searxng", [1], "unavailable", "none"),
    ("searxng", lambda _: web.Response(body=b"x" * (LARGEST_ANSWER + 1)), "unavailable", "too large"),
    ("tavily", lambda _: web.Response(status=429), "too_many_requests", "later"),
    ("tavily", lambda _: web.Response(status=432), "too_many_requests", "later"),
    ("brave", lambda _: web.Response(status=401, text=SECRET), "unavailable", "status 401"),
]


@pytest.mark.parametrize(("name", "answer", "code", "says"), FAILURES)
async def test_a_provider_that_fails(name: str, answer: Any, code: str, says: str) -> None:
    """Each failure has Anthropic's code, and words without the key or the address."""
    async with provider(name, answer) as (made, server):
        with pytest.raises(SearchFailed) as failed:
            await made.search("rain", Wish(5))
        assert len(server.asked) == 1
    assert failed.value.code == code
    assert says in str(failed.value)
    assert SECRET not in str(failed.value)
    assert "127.0.0.1" not in str(failed.value)


async def test_a_provider_that_is_silent() -> None:
    """The time-out is the configured one."""
    never = asyncio.Event()

    async def wait() -> None:
        await never.wait()

    async with provider("searxng", lambda _: wait(), timeout_seconds=0.05) as (made, _):
        with pytest.raises(SearchFailed, match=r"within 0\.05 seconds"):
            await made.search("rain", Wish(5))
        never.set()


async def test_a_provider_that_is_away() -> None:
    """No connection is a failed search."""
    made = Searxng(read({"provider": "searxng", "base_url": "http://127.0.0.1:1"}))
    with pytest.raises(SearchFailed, match="cannot be reached"):
        await made.search("rain", Wish(5))
    await made.aclose()


# --- hits and blocks ---

LINE = st.text(st.characters(exclude_categories=["Cs", "Zl", "Zp", "Cc", "Zs"]), min_size=1, max_size=50)
HITS = st.lists(
    st.builds(Hit, LINE, LINE, st.text(max_size=99).map(str.strip), st.one_of(st.just(""), LINE)), max_size=4
)


@given(HITS.filter(lambda hits: "\x1f" not in str(hits)))
def test_what_the_client_keeps_is_what_the_model_read(hits: list[Hit]) -> None:
    """An echo of the results makes the same text for the model, so a prompt cache still fits."""
    clean = from_client(for_client(hits))
    assert for_model(clean) == for_model(hits)


@pytest.mark.parametrize(
    "encoded", [None, 7, "", "EqgfCioIARgB", "loopway1.!", "loopway1./w==", "loopway1." + "A" * 99_999]
)
def test_results_that_cannot_be_read(encoded: Any) -> None:
    """Of a foreign or broken result title and address are left."""
    block = {"type": "web_search_result", "title": "T", "url": "https://a.example", "encrypted_content": encoded}
    assert from_client([block, 7, {"type": "other"}]) == [Hit("T", "https://a.example", "")]


STU, WSTR = shown("toolu_1", "rain", [OSLO])
STU2, WSTR2 = shown("call-2", "snow", "unavailable")
FOREIGN = {"type": "server_tool_use", "id": "srvtoolu_9", "name": "web_search", "input": {"query": "x"}}
FOREIGN_RESULT = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_9",
    "content": [{"type": "web_search_result", "title": "T", "url": "https://a.example", "encrypted_content": "Eq"}],
}
USE = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"query": "rain"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": for_model([OSLO])}
USE2 = {"type": "tool_use", "id": "call-2", "name": "search", "input": {"query": "snow"}}
RESULT2 = {
    "type": "tool_result", "tool_use_id": "call-2", "content": "The search failed: unavailable", "is_error": True,
}  # fmt: skip
USE9 = {"type": "tool_use", "id": "toolu_9", "name": "search", "input": {"query": "x"}}
A, B = {"type": "text", "text": "a"}, {"type": "text", "text": "b"}
THOUGHT = {"type": "thinking", "thinking": "t", "signature": "s"}
MINE = {"type": "tool_use", "id": "toolu_7", "name": "mine", "input": {}}
CODE = {"type": "server_tool_use", "id": "srvtoolu_5", "name": "code_execution", "input": {}}
MARK = {"cache_control": {"type": "ephemeral"}}


def me(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def you(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


Q = {"role": "user", "content": "q"}
SAID_Q = {"type": "text", "text": "q"}

BACK: dict[str, tuple[list[Any], list[Any]]] = {
    "no search": ([Q, me(A)], [Q, me(A)]),
    "one": ([Q, me(STU, WSTR, A), Q], [Q, me(USE), you(RESULT), me(A), Q]),
    "text and thinking around": (
        [me(THOUGHT, A, STU, WSTR, THOUGHT, B)],
        [me(THOUGHT, A, USE), you(RESULT), me(THOUGHT, B)],
    ),
    "side by side": ([me(STU, WSTR, STU2, WSTR2, A)], [me(USE, USE2), you(RESULT, RESULT2), me(A)]),
    "one behind the other": (
        [me(STU, WSTR, A, STU2, WSTR2, B)],
        [me(USE), you(RESULT), me(A, USE2), you(RESULT2), me(B)],
    ),
    "a call of the client behind it": (
        [me(STU, WSTR, MINE), you({"type": "tool_result", "tool_use_id": "toolu_7", "content": "1"})],
        [me(USE), you(RESULT), me(MINE), you({"type": "tool_result", "tool_use_id": "toolu_7", "content": "1"})],
    ),
    "nothing behind it": ([me(A, STU, WSTR), Q], [me(A, USE), you(RESULT, SAID_Q)]),
    "nothing behind it, blocks": ([me(STU, WSTR), you(B), Q], [me(USE), you(RESULT, B), Q]),
    "at the end": ([Q, me(STU, WSTR)], [Q, me(USE), you(RESULT)]),
    "a lost result": ([Q, me(STU, A)], [Q, me(A)]),
    "a lost call": ([Q, me(WSTR, A)], [Q, me(A)]),
    "nothing left": ([Q, me(STU), Q], [Q, Q]),
    "Anthropic's own": (
        [me(FOREIGN, FOREIGN_RESULT, A)],
        [
            me(USE9),
            you({"type": "tool_result", "tool_use_id": "toolu_9",
                 "content": for_model([Hit("T", "https://a.example", "")])}),
            me(A),
        ],
    ),
    "another server tool": ([me(CODE, STU, WSTR)], [me(CODE, USE), you(RESULT)]),
    "cache marks": ([me({**STU, **MARK}, {**WSTR, **MARK}, A)], [me({**USE, **MARK}), you({**RESULT, **MARK}), me(A)]),
    "a cited text": (
        [me(STU, WSTR, {**A, "citations": [{"type": "web_search_result_location", "url": "u"}]})],
        [me(USE), you(RESULT), me(A)],
    ),
    "a text cited elsewhere": (
        [me(STU, WSTR, {**A, "citations": [{"type": "page_location"}]})],
        [me(USE), you(RESULT), me({**A, "citations": [{"type": "page_location"}]})],
    ),
    "no blocks at all": ([{**Q, "role": "assistant"}, 7, {}], [{**Q, "role": "assistant"}, 7, {}]),
}  # fmt: skip


@pytest.mark.parametrize("case", BACK)
def test_blocks_come_back_clean(case: str) -> None:
    """What a client echoes becomes the calls and results that it was, in turns that pair."""
    given, wanted = BACK[case]
    assert taken_back(given, "search", every=True) == wanted


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([me(FOREIGN, FOREIGN_RESULT, A)], [me(FOREIGN, FOREIGN_RESULT, A)]),
        ([me(FOREIGN)], [me(FOREIGN)]),
        ([me(STU, WSTR, FOREIGN, FOREIGN_RESULT, A)], [me(USE), you(RESULT), me(FOREIGN, FOREIGN_RESULT, A)]),
    ],
)
def test_for_another_model_only_ours_come_back(given: Any, wanted: Any) -> None:
    """Where the provider's own search works, its blocks stay."""
    assert taken_back(given, "search", every=False) == wanted


@given(st.lists(st.sampled_from([STU, WSTR, STU2, WSTR2, FOREIGN, FOREIGN_RESULT, A, THOUGHT, MINE, CODE]), max_size=9))
def test_whatever_comes_back_pairs(content: list[Any]) -> None:
    """No block of a search is left, and each result stands right behind the turn of its call."""
    made = taken_back([Q, me(*content), Q], "search", every=True)
    assert "web_search" not in json.dumps(made)
    for before, turn in itertools.pairwise(made):
        if isinstance(turn["content"], list):
            results = {one["tool_use_id"] for one in turn["content"] if one["type"] == "tool_result"}
            calls = {one["id"] for one in before["content"] if isinstance(one, dict) and one["type"] == "tool_use"} - {
                "toolu_7"
            }
            assert results == (calls if turn["role"] == "user" else set())


# --- through the gateway ---


def searches(*queries: str, **more: Any) -> Any:
    """A model that makes these calls at once, then answers."""

    def decide(request: Recorded) -> Reply:
        if request.number == 1:
            return Reply(
                thinking("Hm."), text("Let me look."), *(call("web_search", {"query": one}) for one in queries)
            )
        return Reply(text("It rains."), **more)

    return decide


@asynccontextmanager
async def searching(
    scripts: Any, answer: Any = SEARXNG, settings: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[tuple[Run, Server]]:
    hooks = more.pop("hooks", [])
    async with serving(answer) as server:
        hook = web_search({"provider": "searxng", "base_url": server.url, **(settings or {})})
        async with gateway_over({"m": scripts} if callable(scripts) else scripts, [hook, *hooks], **more) as run:
            yield run, server


def native(run: Run) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=run.url, api_key=KEY, max_retries=0)


async def ask(run: Run, *, stream: bool, messages: list[Any] | None = None, **more: Any) -> Any:
    """One question through Anthropic's SDK, with the typed tool."""
    given: dict[str, Any] = {
        "model": "m",
        "max_tokens": 500,
        "messages": messages or [{"role": "user", "content": "Rain?"}],
        "tools": [{**TYPED, **more.pop("typed", {})}],
        **more,
    }
    async with native(run) as client:
        if not stream:
            return await client.messages.create(**given)
        async with client.messages.stream(**given) as events:
            return await events.get_final_message()


both_ways = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


@both_ways
async def test_a_client_of_the_typed_tool(*, stream: bool) -> None:
    """It gets the blocks that Anthropic's own search gives, and the count; the model a plain function."""
    async with searching(searches("rain in Oslo")) as (run, server):
        message = await ask(run, stream=stream)
    first, second = run.model.requests
    (tool,) = first.body["tools"]
    assert (tool["name"], tool["input_schema"]["required"], "type" in tool) == ("web_search", ["query"], False)
    result = second.body["messages"][-1]["content"]
    assert [(one["type"], one["content"]) for one in result] == [("tool_result", for_model([OSLO, BERGEN]))]
    kinds = [block.type for block in message.content]
    assert kinds[-3:] == ["server_tool_use", "web_search_tool_result", "text"]
    assert kinds[:-3] == (["thinking", "text"] if stream else [])
    used, found, said = message.content[-3:]
    assert (used.name, used.input) == ("web_search", {"query": "rain in Oslo"})
    assert found.tool_use_id == used.id
    assert [(one.type, one.url, one.title, one.page_age) for one in found.content] == [
        ("web_search_result", OSLO.url, OSLO.title, OSLO.age),
        ("web_search_result", BERGEN.url, BERGEN.title, None),
    ]
    assert said.text == "It rains."
    assert message.stop_reason == "end_turn"
    assert message.usage.server_tool_use.web_search_requests == 1
    assert message.usage.input_tokens == 20
    assert len(server.asked) == 1


@both_ways
async def test_what_the_client_echoes_comes_back_clean(*, stream: bool) -> None:
    """The next request's upstream sees the call and its result, as they were in the loop."""

    def decide(request: Recorded) -> Reply:
        return searches("rain")(request) if request.number < 3 else Reply(text("Yes."))

    question = {"role": "user", "content": "Rain?"}
    async with searching(decide) as (run, _):
        message = await ask(run, stream=stream)
        again = [question, {"role": "assistant", "content": message.content}, {"role": "user", "content": "Sure?"}]
        await ask(run, stream=stream, messages=again)
    _, second, third = run.model.requests
    history = third.body["messages"]
    assert "server_tool_use" not in third.raw.decode()
    assert "web_search_tool_result" not in third.raw.decode()
    assert [one["role"] for one in history] == ["user", "assistant", "user", "assistant", "user"]
    assert history[2] == second.body["messages"][2]
    in_loop = second.body["messages"][1]["content"]
    assert history[1]["content"] == (in_loop if stream else in_loop[-1:])


async def test_every_search_of_every_iteration_is_counted() -> None:
    """Three searches in two iterations, and the stream is one valid message."""

    def decide(request: Recorded) -> Reply:
        if request.number == 1:
            return Reply(call("web_search", {"query": "a"}), call("web_search", {"query": "b"}))
        return Reply(text("Hm."), call("web_search", {"query": "c"})) if request.number == 2 else Reply(text("So."))

    async with searching(decide) as (run, _):
        async with run.stream("messages", request_body("messages", tools=()) | {"tools": [TYPED]}) as answer:
            raw = await answer.aread()
        message = await ask(run, stream=False)  # a fresh exchange of the same model: number 4
    assert GRAMMAR["messages"].breaches(Reader().feed(raw), ended=True) == []
    ending = next(json.loads(one.data or b"") for one in Reader().feed(raw) if one.event == b"message_delta")
    assert ending["usage"]["server_tool_use"] == {"web_search_requests": 3}
    assert ending["delta"]["stop_reason"] == "end_turn"
    assert message.usage.server_tool_use is None


@pytest.mark.parametrize("interim", ["always", "never"])
async def test_the_same_message_both_ways(interim: str) -> None:
    """With interim text always or never, JSON and stream say the same, searches in their places."""

    def decide(request: Recorded) -> Reply:
        number = (request.number - 1) % 3
        if number < 2:
            return Reply(text(f"Look {number}."), call("web_search", {"query": f"q{number}"}, id=f"toolu_{number}"))
        return Reply(text("So."))

    async with searching(decide, loop={"interim_text": interim}) as (run, _):
        whole = await ask(run, stream=False)
        streamed = await ask(run, stream=True)
    said = [block.model_dump(exclude_none=True) for block in whole.content]
    assert said == [block.model_dump(exclude_none=True) for block in streamed.content]
    search = ["server_tool_use", "web_search_tool_result"]
    front = ["text"] if interim == "always" else []
    assert [one["type"] for one in said] == [*front, *search, *front, *search, "text"]
    assert whole.usage == streamed.usage


@both_ways
@pytest.mark.parametrize(
    ("settings", "typed", "most"), [({}, {"max_uses": 2}, 2), ({"max_uses": 1}, {"max_uses": 9}, 1)]
)
async def test_the_smaller_max_uses_is_kept(settings: Any, typed: Any, most: int, *, stream: bool) -> None:
    """Calls of one reply count one by one; those over the limit are error results, and the provider is not asked."""
    async with searching(searches("a", "b", "c"), settings=settings) as (run, server):
        message = await ask(run, stream=stream, typed=typed)
    results = run.model.requests[1].body["messages"][-1]["content"]
    assert [one.get("is_error", False) for one in results] == [False] * most + [True] * (3 - most)
    assert "max_uses_exceeded" in results[-1]["content"]
    codes = [
        getattr(block.content, "error_code", None)
        for block in message.content
        if block.type == "web_search_tool_result"
    ]
    assert codes == [None] * most + ["max_uses_exceeded"] * (3 - most)
    assert message.usage.server_tool_use.web_search_requests == most
    assert len(server.asked) == most


@pytest.mark.parametrize("dialect", ["messages", "chat_completions"])
async def test_max_uses_without_a_declaration(dialect: str) -> None:
    """The setting counts for clients that declared no search, and each exchange begins anew."""

    def decide(request: Recorded) -> Reply:
        return searches("a", "b")(request) if request.number < 3 else Reply(call("web_search", {"query": "c"}))

    async with searching(decide, settings={"max_uses": 1}, loop={"max_agentic_loops": 1}) as (run, server):
        await run.post(dialect, request_body(dialect))
        assert len(server.asked) == 1
        assert run.model.requests[1].raw.decode().count("max_uses_exceeded") == 1
        await run.post(dialect, request_body(dialect))
        assert len(server.asked) == 2


async def test_max_uses_is_of_one_exchange() -> None:
    """Exchanges under way at the same time do not count each other's searches."""
    together = asyncio.Barrier(2)

    async def answer() -> Any:
        async with asyncio.timeout(5):
            await together.wait()
        return SEARXNG

    def decide(request: Recorded) -> Reply:
        if len(request.body["messages"]) == 1:
            return Reply(call("web_search", {"query": "a"}))
        return Reply(text("So."))

    async with searching(decide, lambda _: answer(), {"max_uses": 1}) as (run, _):
        messages = await asyncio.gather(ask(run, stream=False), ask(run, stream=True))
    assert [one.usage.server_tool_use.web_search_requests for one in messages] == [1, 1]


@both_ways
async def test_a_search_that_fails(*, stream: bool) -> None:
    """The model gets an error result, the client the error block and no count, and the exchange goes on."""
    async with searching(searches("a"), lambda _: web.Response(status=429)) as (run, _):
        message = await ask(run, stream=stream)
    (result,) = run.model.requests[1].body["messages"][-1]["content"]
    assert result["is_error"]
    block = next(one for one in message.content if one.type == "web_search_tool_result")
    assert block.content.type == "web_search_tool_result_error"
    assert block.content.error_code == "too_many_requests"
    assert message.usage.server_tool_use is None
    assert message.content[-1].text == "It rains."


@pytest.mark.parametrize(
    ("arguments", "code"),
    [({}, "invalid_tool_input"), ({"query": 7}, "invalid_tool_input"), ({"query": " "}, "invalid_tool_input"),
     ({"query": "x" * 401}, "query_too_long")],
)  # fmt: skip
async def test_a_query_that_cannot_be_asked(arguments: Any, code: str) -> None:
    """It costs no use and reaches no provider."""

    def decide(request: Recorded) -> Reply:
        return Reply(call("web_search", arguments)) if request.number == 1 else Reply(text("So."))

    async with searching(decide) as (run, server):
        message = await ask(run, stream=False)
    assert message.content[1].content.error_code == code
    assert not server.asked


async def test_domains_of_the_client_are_kept() -> None:
    """Results of other domains reach neither model nor client."""
    async with searching(searches("a"), settings={"blocked_domains": ["x.example"]}) as (run, _):
        message = await ask(run, stream=False, typed={"allowed_domains": ["other.example"]})
    assert [one.url for one in message.content[1].content] == [BERGEN.url]
    assert OSLO.url not in run.model.requests[1].raw.decode()


async def test_domains_with_nothing_in_common() -> None:
    """Nothing is asked where settings and client allow nothing together."""
    async with searching(searches("a"), settings={"allowed_domains": ["a.example"]}) as (run, server):
        message = await ask(run, stream=False, typed={"allowed_domains": ["b.example"]})
    assert message.content[1].content == []
    assert not server.asked


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        ({"max_uses": 0}, "$.tools[0].max_uses"),
        ({"max_uses": "3"}, "$.tools[0].max_uses"),
        ({"allowed_domains": "a.example"}, "$.tools[0].allowed_domains"),
        ({"allowed_domains": ["https://a.example"]}, "$.tools[0].allowed_domains[0]"),
        ({"allowed_domains": ["a.example"], "blocked_domains": ["b.example"]}, "$.tools[0]"),
        ({"user_location": "Oslo"}, "$.tools[0].user_location"),
    ],
)
async def test_a_declaration_that_is_wrong(typed: Any, path: str) -> None:
    """It is a 400 with its JSON path, and no model is called."""
    async with searching({"m": []}) as (run, _):
        with pytest.raises(anthropic.BadRequestError, match="invalid_request_error") as refused:
            await ask(run, stream=False, typed=typed)
    assert f"{path}:" in str(refused.value)
    assert not run.model.requests


async def test_place_cache_mark_choice_and_location_are_kept() -> None:
    """The function stands where the typed tool stood, under our name, and the model is told where the user is."""
    tools = [
        {"name": "mine", "input_schema": {"type": "object"}},
        {**TYPED, **MARK, "user_location": {"type": "approximate", "city": "Oslo", "country": "NO"}},
        {"name": "last", "input_schema": {"type": "object"}},
    ]
    body = request_body("messages", tools=()) | {"tools": tools}
    body["tool_choice"] = {"type": "tool", "name": "web_search"}
    async with searching({"m": [Reply(text("So."))]}, settings={"tool_name": "look"}) as (run, _):
        assert (await run.post("messages", body)).status_code == 200
    sent = run.model.requests[0].body
    assert [one["name"] for one in sent["tools"]] == ["mine", "look", "last"]
    assert sent["tools"][1]["cache_control"] == MARK["cache_control"]
    assert sent["tools"][1]["description"].endswith("The user is in Oslo, NO.")
    assert sent["tool_choice"] == {"type": "tool", "name": "look"}


@both_ways
async def test_a_client_that_declared_no_search(*, stream: bool) -> None:
    """The tool is offered behind its own tools, and it sees nothing of the search."""
    async with searching(searches("a")) as (run, _), native(run) as client:
        given: dict[str, Any] = request_body("messages", tools=("theirs",))
        if stream:
            async with client.messages.stream(**given) as events:
                message = await events.get_final_message()
        else:
            message = await client.messages.create(**given)
    assert [one["name"] for one in run.model.requests[0].body["tools"]] == ["theirs", "web_search"]
    assert {block.type for block in message.content} <= {"thinking", "text"}
    assert message.usage.server_tool_use is None


@pytest.mark.parametrize("dialect", ["messages", "chat_completions"])
@pytest.mark.parametrize("settings", [{"inject": False}, {"models": ["other"]}])
async def test_where_it_is_not_offered(dialect: str, settings: dict[str, Any]) -> None:
    """A request without a search, or for another model, goes on unchanged."""
    body = json.dumps(request_body(dialect), indent=1).encode()
    async with searching({"m": [Reply(text("So."))], "other": []}, settings=settings) as (run, _):
        assert (await run.post(dialect, body)).status_code == 200
    assert run.model.requests[0].raw == body


async def test_another_model_keeps_the_provider_search() -> None:
    """Where the built-in does not work, the typed tool and its options go upstream as they are."""
    body = request_body("messages", tools=()) | {"tools": [{**TYPED, "max_uses": "nonsense"}]}
    async with searching({"m": [Reply(text("So."))], "other": []}, settings={"models": ["other"]}) as (run, _):
        assert (await run.post("messages", body)).status_code == 200
    assert run.model.requests[0].body["tools"] == body["tools"]


@pytest.mark.parametrize("dialect", ["messages", "chat_completions"])
async def test_a_function_of_the_client_with_the_same_name(dialect: str) -> None:
    """It is the client's: its call comes out, nothing is searched."""
    body = request_body(dialect, tools=("web_search",))
    async with searching({"m": [Reply(call("web_search", {"query": "a"}))]}) as (run, server):
        answer = await run.post(dialect, body)
    assert run.model.requests[0].body["tools"] == body["tools"]
    assert '"web_search"' in answer.text
    assert not server.asked


@both_ways
@pytest.mark.parametrize(("size", "count"), [("low", 1), ("medium", 1), ("high", 2), (None, 1)])
async def test_web_search_options(size: str | None, count: int, *, stream: bool) -> None:
    """They never go upstream; the tool is offered, and the answer is a plain one."""
    options: dict[str, Any] = {"user_location": {"type": "approximate", "approximate": {"city": "Oslo"}}}
    if size:
        options["search_context_size"] = size
    given: dict[str, Any] = request_body("chat_completions", tools=("theirs",), web_search_options=options)
    async with (
        searching(searches("a"), settings={"inject": False, "max_results": 1}) as (run, _),
        openai.AsyncOpenAI(base_url=run.url + "/v1", api_key=KEY, max_retries=0) as client,
    ):
        if stream:
            chunks = [chunk async for chunk in await client.chat.completions.create(**given, stream=True)]
            said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        else:
            said = (await client.chat.completions.create(**given)).choices[0].message.content or ""
    first, second = run.model.requests
    assert "web_search_options" not in first.raw.decode()
    assert [one["function"]["name"] for one in first.body["tools"]] == ["theirs", "web_search"]
    assert "Oslo" in first.body["tools"][1]["function"]["description"]
    assert second.body["messages"][-1]["content"] == for_model([OSLO, BERGEN][:count])
    assert said.endswith("It rains.")


@pytest.mark.parametrize(
    ("options", "path"),
    [("x", "$.web_search_options"), ({"search_context_size": "huge"}, "$.web_search_options.search_context_size"),
     ({"user_location": {"approximate": 3}}, "$.web_search_options.user_location")],
)  # fmt: skip
async def test_options_that_are_wrong(options: Any, path: str) -> None:
    """They are a 400 with their JSON path."""
    async with searching({"m": []}) as (run, _):
        answer = await run.post("chat_completions", request_body("chat_completions", web_search_options=options))
    assert answer.status_code == 400
    assert f"{path}:" in answer.json()["error"]["message"]


@both_ways
async def test_a_search_beside_a_call_of_the_client(*, stream: bool) -> None:
    """The search waits until the client has answered its call; then the history is whole, and nothing stands twice."""

    def decide(request: Recorded) -> Reply:
        if request.number == 1:
            return Reply(text("First."), call("web_search", {"query": "a"}, id="toolu_a"))
        if request.number == 2:
            search = call("web_search", {"query": "b"}, id="toolu_b")
            return Reply(text("Then."), search, call("mine", {"n": 1}, id="toolu_mine"))
        return Reply(text("So."))

    mine = {"name": "mine", "input_schema": {"type": "object"}}
    question = {"role": "user", "content": "Rain?"}
    async with searching(decide) as (run, server):
        message = await ask(run, stream=stream, tools=[TYPED, mine])
        assert [one.name for one in message.content if one.type == "tool_use"] == ["mine"]
        assert len(server.asked) == 1
        result = {"type": "tool_result", "tool_use_id": "toolu_mine", "content": "7"}
        again = [question, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        await ask(run, stream=stream, messages=again, tools=[TYPED, mine])
    assert len(server.asked) == 2
    _, second, third = run.model.requests
    history = third.body["messages"]
    assert history[:3] == second.body["messages"]
    assert [block["id"] for block in history[3]["content"] if block["type"] == "tool_use"] == ["toolu_b", "toolu_mine"]
    assert [block["tool_use_id"] for block in history[4]["content"]] == ["toolu_b", "toolu_mine"]
    assert len(history) == 5


@pytest.mark.parametrize("dialect", ["messages", "chat_completions"])
@both_ways
async def test_what_any_tool_shows(dialect: str, *, stream: bool) -> None:
    """`ToolResult.usage` is counted in both dialects; `shown` is seen where the dialect has blocks."""

    @server_tool
    async def count() -> ToolResult:
        """Counts."""
        block = {"type": "x_counted", "n": 1}
        return ToolResult(content="1", shown=(block,), usage={"x_counts": 1, "server_tool_use": {"n": 2}})

    def decide(request: Recorded) -> Reply:
        return Reply(text("Hm."), call("count", {})) if request.number < 3 else Reply(text("So."))

    body = request_body(dialect, tools=())
    if dialect == "chat_completions" and stream:
        body["stream_options"] = {"include_usage": True}

    def once(request: Recorded) -> Reply:
        return decide(request) if request.number != 2 else Reply(text("So."))

    async with gateway_over({"m": once}, [count]) as run:
        if not stream:
            answer = (await run.post(dialect, body)).json()
            usage, shown_ = answer["usage"], json.dumps(answer)
        else:
            async with run.stream(dialect, body) as response:
                raw = await response.aread()
            frames = Reader().feed(raw)
            assert GRAMMAR[dialect].breaches(frames, ended=True) == []
            told = [json.loads(one.data) for one in frames if one.data and one.data != b"[DONE]"]
            usage = [one["usage"] for one in told if one.get("usage")][-1]
            shown_ = raw.decode()
    assert usage["x_counts"] == 1
    assert usage["server_tool_use"] == {"n": 2}
    assert ("x_counted" in shown_) is (dialect == "messages")


async def test_it_is_built_from_the_configuration() -> None:
    """A configuration's `web_search` is in the gateway, with its tool."""
    config = {
        "auth": {"mode": "open"},
        "upstreams": {"u": {"base_url": "http://127.0.0.1:1", "dialects": ["messages"]}},
        "models": [{"name": "m", "upstream": "u"}],
        "hooks": [{"web_search": {"provider": "searxng", "base_url": "http://127.0.0.1:2"}}],
    }
    gateway = build(config)
    assert gateway.hooks == ["web_search"]
    assert list(gateway.toolbox.offers("m")) == ["web_search"]


# --- local ---


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


PAGE = """\
Before any heading.

# Streams

A stream is one valid message.

## Keep-alive & pings

```sh
# no heading
ping
```

Silence is broken after fifteen seconds.
"""


def test_passages_of_a_page() -> None:
    """A page is cut at its headings, not in code; a passage has the headings above it and the anchor."""
    found = list(passages("a.md", PAGE))
    assert [(one.title, one.anchor) for one in found] == [
        ("a.md", ""), ("Streams", "streams"), ("Streams > Keep-alive & pings", "keep-alive--pings"),
    ]  # fmt: skip
    assert "# no heading" in found[2].text


@given(st.text(alphabet="#a \n`", max_size=80))
def test_no_text_is_lost_in_passages(page: str) -> None:
    """Every letter outside of headings is in one passage."""
    kept = "".join(one.text for one in passages("a.md", page)).count("a")
    titles = sum(line.count("a") for line in page.splitlines() if line.startswith("#"))
    assert page.count("a") - titles <= kept <= page.count("a")


async def found(local: Local, query: str, most: int = 5) -> list[str]:
    return [one.url for one in await local.search(query, Wish(most))]


@asynccontextmanager
async def searched(folder: Path, address: str = "") -> AsyncIterator[tuple[Local, Clock]]:
    clock = Clock()
    local = Local(folder, address, clock)
    await local.start()
    try:
        yield local, clock
    finally:
        await local.aclose()


async def test_local_finds_the_passage(tmp_path: Path) -> None:
    """The best passage comes first, with its file, anchor and text; CJK text is found by its parts."""
    (tmp_path / "sub dir").mkdir()
    (tmp_path / "a.md").write_text(PAGE)
    (tmp_path / "sub dir" / "b.txt").write_text("Tools run on the server.")
    (tmp_path / "c.md").write_text("# 工具\n\n伺服器工具會在閘道上執行。")
    (tmp_path / "d.py").write_text("silence = 'fifteen'")
    (tmp_path / ".hidden.md").write_text("silence")
    async with searched(tmp_path) as (local, _):
        first = (await local.search('How long is "silence" (seconds)?', Wish(5)))[0]
        assert first.url == "a.md#keep-alive--pings"
        assert "fifteen seconds" in first.snippet
        assert first.title == "Streams > Keep-alive & pings"
        assert await found(local, "running tool") == ["sub%20dir/b.txt"]
        assert (await found(local, "閘道"))[0].startswith("c.md")
        assert await found(local, "nothing-of-this-kind") == []
        assert await found(local, '" OR * NEAR( ') == []
    async with searched(tmp_path, "https://docs.example/x/") as (local, _):
        assert await found(local, "tools", 1) == ["https://docs.example/x/sub%20dir/b.txt"]


async def test_local_follows_the_files(tmp_path: Path) -> None:
    """New, changed and deleted files count at the next look, and it does not look all the time."""
    page = tmp_path / "a.md"
    page.write_text("apples")
    async with searched(tmp_path) as (local, clock):
        page.write_text("pears and plums")
        (tmp_path / "b.md").write_text("cherries")
        assert await found(local, "apples") == ["a.md"]
        clock.now += LOOK_SECONDS
        assert await found(local, "apples") == []
        assert await found(local, "plums") == ["a.md"]
        assert await found(local, "cherries") == ["b.md"]
        page.unlink()
        clock.now += LOOK_SECONDS
        assert await found(local, "plums") == []


async def test_local_stays_in_its_folder(tmp_path: Path) -> None:
    """Links to files and folders are not read."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "secret.md").write_text("secret words")
    (inside / "link.md").symlink_to(outside / "secret.md")
    (inside / "folder").symlink_to(outside)
    async with searched(inside) as (local, _):
        assert await found(local, "secret words") == []


async def test_local_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files behind the most are not read, and of a large file its beginning is."""
    monkeypatch.setattr("loopway.hooks.web_search.local.MOST_FILES", 2)
    monkeypatch.setattr("loopway.hooks.web_search.local.LARGEST_FILE", 10)
    for name in "abc":
        (tmp_path / f"{name}.md").write_text("beginning and the end")
    async with searched(tmp_path) as (local, _):
        assert sorted(await found(local, "beginning")) == ["a.md", "b.md"]
        assert await found(local, "end") == []


async def test_own_documentation() -> None:
    """Without a folder, `local` searches Loopway's own pages."""
    assert (own_docs() / "configuration.md").is_file()
    hook = web_search({"provider": "local"})
    await hook.start()
    context = ToolContext(
        request_id="r", call_id="c", tool="web_search", model="m", dialect="messages", depth=0, key_name="k"
    )
    try:
        result = await hook.call("web_search", {"query": "drain_seconds open exchanges SIGTERM"}, context)
    finally:
        await hook.aclose()
    assert ".md" in str(result.content)
    assert not result.error
