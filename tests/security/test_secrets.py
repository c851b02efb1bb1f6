"""Keys and prompts: nothing that the gateway says to anybody holds one, however noisy the run."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from faults.rawclient import raw, request
from inprocess import BOTH, KEY, PATHS, Run, gateway_over, request_body
from loopway import ToolContext, server_tool
from loopway.server import auth
from loopway.server.auth import KeyHolder, Keys, digest_of
from loopway.testing import Reply, call, cut, text
from puppets import Puppet
from telemetry.collector import Collector, collecting

SECRETS = {
    "the client's key": KEY,
    "another client's key": "the-second-key-4711",
    "a key that is not known": "sk-stolen-somewhere-0815",
    "the upstream's key": "sk-ant-upstream-key-9999",
    "a header of the upstream": "tenant-secret-7777",
    "the password of a proxy": "proxy-password-6666",
}
PRIVATE = {
    "the prompt": "my salary is 12345 doubloons",
    "the answer": "the captain buried it under the palm",
    "an argument of a tool": "latitude-of-the-island",
    "a result of a tool": "seventeen-paces-north",
    "an argument of the client's own tool": "colour-of-the-parrot",
    "a part of the query": "treasure-map",
    "a cookie": "session-of-long-john",
}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        yield made


@server_tool
async def dig(where: str) -> str:
    """Digs."""
    if where == "nowhere":
        raise RuntimeError("no shovel")
    return PRIVATE["a result of a tool"]


def script(one: Any) -> Reply:
    """Loops, cuts, errors, and good answers, in turn."""
    match one.number % 6:
        case 0:
            return Reply(error=(500, "the model is ill"))
        case 1:
            return Reply(call("dig", {"where": PRIVATE["an argument of a tool"]}))
        case 2:
            return Reply(call("mine", {"n": 1}), call("theirs", {"x": PRIVATE["an argument of the client's own tool"]}))
        case 3:
            return Reply(text(PRIVATE["the answer"]), cut())
        case 4:
            return Reply(call("dig", {"where": "nowhere"}))
    return Reply(text(PRIVATE["the answer"]))


async def _noise(run: Run) -> list[str]:
    """Every kind of exchange, well and badly ended; what the clients were told of the errors."""
    told: list[str] = []
    for dialect in BOTH:
        for stream in (False, True):
            for model in ("m", "away", "unknown", "raises"):
                for key in (KEY, SECRETS["a key that is not known"], None):
                    for _ in range(6 if key == KEY and model == "m" else 1):
                        body = request_body(dialect, model, words=PRIVATE["the prompt"], stream=stream)
                        path = f"{PATHS[dialect]}?q={PRIVATE['a part of the query']}"
                        try:
                            answer = await run.post(
                                dialect, body, key=key, path=path, headers={"cookie": PRIVATE["a cookie"]}
                            )
                        except Exception as broken:
                            told.append(repr(broken))
                            continue
                        if answer.status_code >= 400:
                            told += [answer.text, str(answer.headers)]
    for odd in (
        b"{",
        b"[" * 5000,
        b'{"model":"m","model":"m"}',
        b'{"model":"m","messages":5}',
        json.dumps(PRIVATE).encode(),
    ):
        answer = await run.post("messages", odd)
        told += [answer.text, str(answer.headers)]
    async with raw(run.url) as client:
        await client.send(request(b"x-a: b\0", PRIVATE["a cookie"].encode()))
        told.append((await client.rest()).decode("latin-1"))
    return told


def _raises(given: dict[str, Any]) -> Any:
    if given["model"] == "raises":
        raise RuntimeError("it broke")
    return given["rerun"]


async def test_nothing_is_told(
    collector: Collector, capfd: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    """Errors, logs, metrics, spans, reprs, printed text: no key is in any, and no prompt in all but the first."""
    upstream = {
        "api_key": SECRETS["the upstream's key"],
        "headers": {"x-tenant": SECRETS["a header of the upstream"]},
    }
    proxied = {"base_url": "http://127.0.0.1:9", "dialects": list(BOTH), "max_retries": 0, "api_key": "sk-away-1",
               "proxy": f"http://user:{SECRETS['the password of a proxy']}@127.0.0.1:9"}  # fmt: skip
    keys = {"keys": [{"name": "tester", "key": KEY}, {"name": "second", "key": SECRETS["another client's key"]}]}
    raising = lambda _: Reply(call("mine", {"n": 1}))  # noqa: E731
    async with gateway_over(
        {"m": script, "raises": raising},
        [dig, Puppet(plan=_raises)],
        upstream=upstream,
        upstreams={"proxied": proxied},
        models=[{"name": "away", "upstream": "proxied"}],
        auth=keys,
    ) as run:
        told = await _noise(run)
        metrics = [(await run.client.get(f"{run.admin_url}/metrics", headers={"accept": accept})).text
                   for accept in ("", "application/openmetrics-text; version=1.0.0")]  # fmt: skip
        gateway = run.gateway
        shown = [repr(gateway.settings), str(gateway.settings), repr(gateway.upstreams), repr(gateway.router)]
        shown += [repr(one.target) for one in gateway.upstreams.values()]
        gateway.flush()
        spans = [str((one.name, one.attributes, one.events)) for one in collector.spans]
        models = (await run.client.get("/v1/models", headers={"x-api-key": KEY})).text
    printed = capfd.readouterr()
    said = {
        "errors": told,
        "log": run.log.getvalue().splitlines(),
        "metrics": metrics,
        "spans": spans,
        "reprs": shown,
        "models": [models],
        "printed": [printed.out, printed.err],
    }
    assert len(said["log"]) > 60
    assert len(spans) > 60
    for where, texts in said.items():
        forbidden = SECRETS if where == "errors" else {**SECRETS, **PRIVATE}
        for name, secret in forbidden.items():
            with subtests.test(f"{name} in {where}"):
                assert [
                    one for one in texts if secret in one or hashlib.sha256(secret.encode()).hexdigest() in one
                ] == []


class Nosy(Puppet):
    """Writes down all that it is given, in each of its phases."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[str]] = {}

    def _see(self, phase: str, *given: Any) -> None:
        self.seen.setdefault(phase, []).append(
            repr(given) + repr([vars(one) for one in given if hasattr(one, "__dict__")])
        )

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> Any:
        self._see("pre_call", user_api_key_dict, data, call_type)
        return data

    async def async_should_run_agentic_loop(self, **given: Any) -> Any:  # type: ignore[override]
        self._see("gate", given)
        return await super().async_should_run_agentic_loop(**given)

    async def async_build_agentic_loop_plan(self, **given: Any) -> Any:  # type: ignore[override]
        self._see("plan", given, given["logging_obj"])
        return await super().async_build_agentic_loop_plan(**given)

    async def async_post_agentic_loop_response_hook(self, response: Any, plan: Any, kwargs: dict[str, Any]) -> Any:
        self._see("post", response, plan, kwargs)
        return response

    async def async_agentic_loop_cleanup_hook(self, plan: Any, kwargs: dict[str, Any]) -> None:
        self._see("cleanup", plan, kwargs)


async def test_clients_keys_never_travel(subtests: pytest.Subtests) -> None:
    """No key of a client reaches the upstream, any phase of a hook or a tool; the upstream's own never comes back."""
    hook, tools_saw = Nosy(), list[str]()

    @server_tool
    async def peek(context: ToolContext) -> str:
        """Looks at who calls."""
        tools_saw.append(repr(context) + str({name: getattr(context, name, None) for name in dir(context)}))
        return "seen"

    def says(one: Any) -> Reply:
        return Reply(call("mine", {"n": 1}), call("peek", {})) if one.number % 2 else Reply(text("fine"))

    own = {"api_key": SECRETS["the upstream's key"]}
    async with gateway_over({"m": says}, [hook, peek], upstream=own) as run:
        for dialect in BOTH:
            for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY, "cookie": KEY}):
                with subtests.test(f"{dialect} {sorted(headers)}"):
                    answer = await run.post(dialect, request_body(dialect), headers=headers, key=None)
                    assert answer.status_code == 200
                    assert own["api_key"] not in answer.text + str(answer.headers)
        sent = [str(one.headers) + one.raw.decode() for one in run.model.requests]
    assert len(sent) == 12
    assert {phase: len(seen) for phase, seen in hook.seen.items()} == {
        "pre_call": 6, "gate": 12, "plan": 6, "post": 6, "cleanup": 6,
    }  # fmt: skip
    assert len(tools_saw) == 6
    shown = [*itertools.chain.from_iterable(hook.seen.values()), *tools_saw]
    assert [one for one in [*sent, *shown] if KEY in one] == []
    assert [one for one in shown if own["api_key"] in one] == []


@pytest.mark.parametrize("presented", ["first-key", "last-key", "no-key", "first-key "])
def test_comparison_takes_constant_time(presented: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key is compared, by `hmac.compare_digest` over digests of one length, whichever it is that fits."""
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(auth.hmac, "compare_digest", compare)  # type: ignore[attr-defined]
    known = [(digest_of(f"{name}-key"), KeyHolder(name, ("*",))) for name in ("first", "middle", "last")]
    keys = Keys(known, open_to_all=True)
    monkeypatch.undo()
    monkeypatch.setattr(auth, "hmac", type("Spy", (), {"compare_digest": staticmethod(compare)}))
    holder = keys.holder([presented.encode()])
    assert holder.name == {"first-key": "first", "last-key": "last"}.get(presented, "")
    assert compared == [(32, 32)] * 3
