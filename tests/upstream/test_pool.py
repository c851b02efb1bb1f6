"""Certificates, proxies and what is refused at start."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest

from loopway.errors import ConfigError, Unreachable
from loopway.upstream.client import Upstream
from loopway.upstream.pool import Target, proxy_of

if TYPE_CHECKING:
    from pathlib import Path

    from upstream.conftest import Made, Wire

SECRET = "sk-very-secret"


async def ask(one: Upstream) -> bytes:
    response = await one.send("/v1/messages", "a=1", (), b"{}", auth="bearer")
    return await response.read(1000)


async def secure(certificate: tuple[Path, Path], wire: Wire) -> str:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    await wire.stop()
    await wire.start(context)
    return wire.url


async def test_private_authority(wire: Wire, upstream: Made, certificate: tuple[Path, Path]) -> None:
    """A server with a self-signed certificate is trusted if ca_file says so."""
    url = await secure(certificate, wire)
    assert await ask(upstream(base_url=url, ca_file=str(certificate[0]))) == b'{"ok":true}'


async def test_unknown_authority(wire: Wire, upstream: Made, certificate: tuple[Path, Path]) -> None:
    """Without it the key is not sent, and the text names ca_file."""
    url = await secure(certificate, wire)
    with pytest.raises(Unreachable, match="ca_file"):
        await ask(upstream(base_url=url))
    assert not wire.calls


async def test_another_host(wire: Wire, upstream: Made, certificate: tuple[Path, Path]) -> None:
    """A trusted certificate of another host is no certificate."""
    url = await secure(certificate, wire)
    with pytest.raises(Unreachable, match="certificate"):
        await ask(upstream(base_url=url.replace("127.0.0.1", "localhost"), ca_file=str(certificate[0])))


async def test_explicit_proxy(wire: Wire, upstream: Made) -> None:
    """The call goes to the proxy, with the whole address and the proxy's own password."""
    proxy = wire.url.replace("http://", "http://user:word@")
    assert await ask(upstream(base_url="http://far.invalid/api", proxy=proxy)) == b'{"ok":true}'
    assert wire.calls[0].line == "POST http://far.invalid/api/v1/messages?a=1 HTTP/1.1"
    assert wire.calls[0].headers["host"] == "far.invalid"
    assert wire.calls[0].headers["proxy-authorization"] == "Basic dXNlcjp3b3Jk"
    assert wire.calls[0].headers["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
async def test_proxy_of_the_environment(
    wire: Wire, upstream: Made, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """The standard variables are read at construction, and not later."""
    monkeypatch.setenv(variable, wire.url)
    one = upstream(base_url="http://far.invalid")
    monkeypatch.delenv(variable)
    assert await ask(one) == b'{"ok":true}'
    assert wire.calls[0].target.startswith("http://far.invalid/")


async def test_no_proxy(wire: Wire, upstream: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host in NO_PROXY is called directly."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    await ask(upstream())
    assert wire.calls[0].target == "/v1/messages?a=1"


async def test_proxy_that_is_down(upstream: Made, unused_tcp_port: int) -> None:
    """A dead proxy is named as such."""
    with pytest.raises(Unreachable, match="proxy"):
        await ask(upstream(base_url="http://far.invalid", proxy=f"http://127.0.0.1:{unused_tcp_port}"))


async def test_proxy_that_refuses(wire: Wire, upstream: Made) -> None:
    """A proxy that denies the tunnel is named as such; the key never went out."""
    wire.script(wire.reply(b"", 403))
    with pytest.raises(Unreachable, match="proxy"):
        await ask(upstream(base_url="https://far.invalid", proxy=wire.url))
    assert wire.calls[0].line == "CONNECT far.invalid:443 HTTP/1.1"
    assert SECRET not in repr(wire.calls)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"base_url": "nonsense"}, "base_url"),
        ({"base_url": "ftp://host"}, "base_url"),
        ({"base_url": "https://"}, "base_url"),
        ({"base_url": "https://host:port"}, "base_url"),
        ({"base_url": "https://user:word@host"}, "base_url"),
        ({"proxy": "socks5://host:1"}, "proxy"),
        ({"proxy": "http://host:port"}, "proxy"),
        ({"headers": {"content-length": "5"}}, "headers.content-length"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "headers.Transfer-Encoding"),
        ({"headers": {"a b": "c"}}, "headers.a b"),
        ({"headers": {"a": "b\r\nc: d"}}, "headers.a"),
        ({"headers": {"a": "é"}}, "headers.a"),
        ({"ca_file": "/no/such/file.pem"}, "ca_file"),
    ],
)
def test_refused_at_start(values: dict[str, Any], key: str) -> None:
    """What cannot work is an error of the configuration that names the key, and shows no secret."""
    given = {"name": "far", "base_url": "http://host", "api_key": SECRET, **values}
    with pytest.raises(ConfigError) as caught:
        Upstream(Target(**given))
    assert [problem.path for problem in caught.value.problems] == [f"upstreams.far.{key}"]
    assert "word" not in str(caught.value)


def test_ca_file_that_is_none(tmp_path: Path) -> None:
    """A file without certificates is refused."""
    file = tmp_path / "empty.pem"
    file.write_text("nothing")
    with pytest.raises(ConfigError, match="ca_file"):
        Upstream(Target(name="far", base_url="https://host", ca_file=str(file)))


@pytest.mark.parametrize(
    ("environment", "base", "proxy"),
    [
        ({}, "https://host", None),
        ({"https_proxy": "http://p:1"}, "https://host", "http://p:1"),
        ({"https_proxy": "http://p:1"}, "http://host", None),
        ({"http_proxy": "p:1"}, "http://host", "http://p:1"),
        ({"all_proxy": "http://p:1", "no_proxy": "host"}, "https://host", None),
        ({"all_proxy": "http://p:1", "no_proxy": ".host"}, "https://a.host:8443", None),
        ({"all_proxy": "http://p:1", "no_proxy": "a.host:1"}, "https://a.host:2", "http://p:1"),
        ({"all_proxy": "http://p:1", "no_proxy": "*"}, "https://host", None),
    ],
)
def test_which_proxy(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], base: str, proxy: str | None
) -> None:
    """The variables mean what they mean to urllib."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_of(Target(name="far", base_url=base)) == proxy


def test_no_secret_in_its_repr() -> None:
    """Neither the key nor a header nor a password is ever shown."""
    target = Target(
        name="far", base_url="http://host", api_key=SECRET, headers={"x": SECRET}, proxy=f"http://u:{SECRET}@p"
    )
    for shown in (repr(target), str(target), repr(Upstream(target))):
        assert SECRET not in shown
        assert "far" in shown
