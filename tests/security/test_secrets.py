"""Keys and prompts: nothing that the gateway says to anybody holds one, however noisy the run."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any

import pytest

from faults.rawclient import raw, request
from inprocess import BOTH, KEY, PATHS, Run, gateway_over, request_body
from loopway import server_tool
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


async def test_clients_keys_never_travel(subtests: pytest.Subtests) -> None:
    """Neither header of a client's key reaches the upstream, nor a hook; the upstream's own never comes back."""
    seen: list[str] = []

    def plan(given: dict[str, Any]) -> Any:
        seen.append(repr(given))
        return given["rerun"]

    def says(one: Any) -> Reply:
        return Reply(call("mine", {"n": 1})) if one.number % 2 else Reply(text("fine"))

    own = {"api_key": SECRETS["the upstream's key"]}
    async with gateway_over({"m": says}, [Puppet(plan=plan)], upstream=own) as run:
        for dialect in BOTH:
            for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY, "cookie": KEY}):
                with subtests.test(f"{dialect} {sorted(headers)}"):
                    answer = await run.post(dialect, request_body(dialect), headers=headers, key=None)
                    assert answer.status_code == 200
                    assert own["api_key"] not in answer.text + str(answer.headers)
        sent = [str(one.headers) + one.raw.decode() for one in run.model.requests]
    assert len(sent) == 12
    assert [one for one in [*sent, *seen] if KEY in one] == []
    assert [one for one in seen if own["api_key"] in one] == []


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
