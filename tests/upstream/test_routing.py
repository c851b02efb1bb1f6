"""Which upstream answers for a name, and when the next one is asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from loopway.errors import BadRequest, Broken, NotFound, Silent, Unreachable
from loopway.upstream.client import Try, Upstream
from loopway.upstream.pool import Target
from loopway.upstream.routing import Outgoing, Route, Router, call

if TYPE_CHECKING:
    from upstream.conftest import Call, Link, Made, Wire

NOWHERE = Upstream(Target(name="nowhere", base_url="http://nowhere.invalid"))
BOTH = frozenset({"messages", "chat_completions"})
MESSAGES = frozenset({"messages"})


def route(model: str, dialects: frozenset[str] = BOTH, upstream: Upstream = NOWHERE) -> Route:
    return Route(model=model, upstream=upstream, upstream_model=f"far-{model}", dialects=dialects)


ROUTER = Router(
    [route("a"), route("b", MESSAGES), route("c"), route("lonely"), route("self"), route("narrow", MESSAGES)],
    {"a": "b", "b": "c", "c": "a", "self": "self"},
)


@pytest.mark.parametrize(
    ("model", "dialect", "names"),
    [
        ("a", "messages", ["a", "b", "c"]),
        ("b", "messages", ["b", "c", "a"]),
        ("a", "chat_completions", ["a", "c"]),
        ("lonely", "messages", ["lonely"]),
        ("self", "messages", ["self"]),
    ],
)
def test_routes(model: str, dialect: str, names: list[str]) -> None:
    """The model's own, then its fallbacks that speak the dialect, each once."""
    for _ in range(2):
        assert [one.model for one in ROUTER.routes(model, dialect)] == names


@pytest.mark.parametrize("model", ["absent", "", "A", "x" * 100_000])
def test_unknown_model(model: str) -> None:
    """An unknown name is a 404 that names it, at a length that fits in an error."""
    with pytest.raises(NotFound) as caught:
        ROUTER.routes(model, "messages")
    assert caught.value.path == "$.model"
    assert repr(model)[:20] in caught.value.text
    assert len(caught.value.text) < 300


def test_wrong_dialect() -> None:
    """A model in another dialect is a 400 that says which ones it speaks."""
    with pytest.raises(BadRequest, match="served in messages, not in chat_completions") as caught:
        ROUTER.routes("narrow", "chat_completions")
    assert caught.value.path == "$.model"


def test_names() -> None:
    """The names come in the order of the configuration."""
    assert ROUTER.names() == ["a", "b", "c", "lonely", "self", "narrow"]


@pytest.mark.parametrize(
    ("models", "fallbacks"), [(["a", "a"], {}), (["a"], {"a": "absent"}), (["a"], {"absent": "a"})]
)
def test_refused(models: list[str], fallbacks: dict[str, str]) -> None:
    """A name twice and a fallback to nowhere are refused at once."""
    with pytest.raises(ValueError, match="model"):
        Router([route(name) for name in models], fallbacks)


def outgoing(one: Route) -> Outgoing:
    return Outgoing(path="/v1/messages", body=one.upstream_model.encode(), auth="bearer")


async def reset(_: Call, link: Link) -> None:
    link.reset()


async def garbage(_: Call, link: Link) -> None:
    await link.send(b"\x00\x01\x02\r\n\r\n")
    await link.gone()


async def stall(_: Call, link: Link) -> None:
    await link.gone()


FAILURES: list[Any] = [reset, garbage, stall, 408, 429, 500, 502, 503, 504, 529]


@pytest.mark.parametrize("failure", FAILURES)
async def test_the_next_route_is_asked(wire: Wire, upstream: Made, failure: Any) -> None:
    """Behind each failure before the first byte the fallback answers, with its own model's name."""
    wire.script(wire.reply(b"", failure) if isinstance(failure, int) else failure, wire.reply(b"second"))
    one = upstream(read_timeout=0.05)
    told: list[str | int] = []

    def asked(which: Route) -> Outgoing:
        told.append(which.model)
        return outgoing(which)

    def tried(what: Try) -> None:
        told.append(what.status)

    answered, response = await call([route("a", upstream=one), route("b", upstream=one)], asked, tried=tried)
    assert answered.model == "b"
    assert await response.read(100) == b"second"
    assert [request.body for request in wire.calls] == [b"far-a", b"far-b"]
    assert told == ["a", failure if isinstance(failure, int) else 0, "b", 200]


async def test_a_busy_answer_is_dropped_before_the_next_route(wire: Wire, upstream: Made) -> None:
    """The body of an answer that is not taken is not waited for."""

    async def endless(_: Call, link: Link) -> None:
        await link.send(wire.reply(b"half", 503, length=100))
        await link.gone()

    wire.script(endless, wire.reply())
    one = upstream()
    _, response = await call([route("a", upstream=one), route("b", upstream=one)], outgoing)
    await wire.until(lambda: wire.open == 1)
    await response.aclose()


async def test_retries_come_before_the_fallback(wire: Wire, upstream: Made) -> None:
    """An upstream is given its own tries first."""
    wire.script(wire.reply(b"", 503), wire.reply(b"", 503), wire.reply())
    await call([route("a", upstream=upstream(max_retries=1)), route("b", upstream=upstream())], outgoing)
    assert [request.body for request in wire.calls] == [b"far-a", b"far-a", b"far-b"]


@pytest.mark.parametrize("status", [200, 400, 401, 404, 413])
async def test_an_answer_is_an_answer(wire: Wire, upstream: Made, status: int) -> None:
    """Any other status is not a matter for a fallback."""
    wire.script(wire.reply(b"", status))
    answered, response = await call([route("a", upstream=upstream()), route("b", upstream=upstream())], outgoing)
    await response.aclose()
    assert (answered.model, response.status) == ("a", status)


@pytest.mark.parametrize(("failure", "kind"), [(reset, Unreachable), (garbage, Broken), (stall, Silent)])
async def test_the_last_failure_is_raised(wire: Wire, upstream: Made, failure: Any, kind: type[Exception]) -> None:
    """With every route failed the last one's error comes."""
    wire.script(wire.reply(b"", 503), failure)
    one = upstream(read_timeout=0.05)
    with pytest.raises(kind):
        await call([route("a", upstream=one), route("b", upstream=one)], outgoing)


async def test_the_last_status_comes_back(wire: Wire, upstream: Made) -> None:
    """With every route failed the last one's status and body come."""
    wire.script(reset, wire.reply(b"full", 529))
    one = upstream()
    answered, response = await call([route("a", upstream=one), route("b", upstream=one)], outgoing)
    assert (answered.model, response.status, await response.read(10)) == ("b", 529, b"full")


async def test_leaving_asks_no_other_route(wire: Wire, upstream: Made) -> None:
    """Cancellation is not a failure of the upstream."""
    wire.script(stall)
    one = upstream()
    task = asyncio.create_task(call([route("a", upstream=one), route("b", upstream=one)], outgoing))
    await wire.until(lambda: len(wire.calls) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wire.until(lambda: wire.open == 0)
    assert len(wire.calls) == 1
