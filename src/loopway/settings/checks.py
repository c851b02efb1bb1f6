"""What only shows when settings are seen together, or need more than a type: names, addresses, keys, files.

This file must not know how a file is written.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args
from urllib.parse import urlsplit

import msgspec

from loopway.errors import Problem
from loopway.settings.shape import DialectName, KeySettings, ModelSettings, Secret, Settings, UpstreamSettings
from loopway.settings.source import REFUSED, join

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

T = TypeVar("T")

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_SHOWN = 10
"""Names that are proposed: enough to see the kind."""
_HEX = re.compile(r"[0-9A-Fa-f]{64}")
_OWN_HEADERS = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade",
     "proxy-connection", "accept-encoding", "content-encoding")
)  # fmt: skip


def good(items: Sequence[T]) -> Iterator[tuple[int, T]]:
    """The items that are good, with their places; none if the list itself is not."""
    if items is not REFUSED:
        yield from ((index, item) for index, item in enumerate(items) if item is not REFUSED)


def is_good(*values: object) -> bool:
    """Whether no value is `REFUSED`."""
    return all(value is not REFUSED for value in values)


class Checks:
    """What only shows when settings are seen together. Reads a `Settings` in which `REFUSED` may stand."""

    def __init__(self, settings: Settings, folder: Path, problems: list[Problem]) -> None:
        self._settings = settings
        self._folder = folder
        self._problems = problems

    def run(self) -> None:
        """Check everything; add to the problems."""
        self._server()
        self._upstreams()
        self._models()
        self._fallbacks()
        self._auth()
        self._state()

    def _state(self) -> None:
        state = self._settings.state
        if not is_good(state) or not isinstance(state.redis_url, Secret):
            return
        if not re.match(r"(rediss?://[^/\s]|unix://)", state.redis_url.reveal()):
            self._say("state.redis_url", "is no address of a Redis; write redis://host:6379/0 (rediss:// for TLS)")

    def _say(self, path: str, text: str) -> None:
        self._problems.append(Problem(path, text))

    def _server(self) -> None:
        server = self._settings.server
        if not is_good(server) or not is_good(server.port, server.admin_port):
            return
        if server.port and server.port == server.admin_port:
            self._say(
                "server.admin_port",
                f"is {server.port}, as server.port is; write another number, or null for the main port",
            )

    def _auth(self) -> None:
        auth = self._settings.auth
        if not is_good(auth) or not is_good(auth.keys):
            return
        if not auth.keys and auth.mode == "keys":
            self._say(
                "auth.keys",
                "there is no key, so nobody could call; write at least one, or auth.mode: open",
            )
        names: dict[str, int] = {}
        digests: dict[str, int] = {}
        for index, key in good(auth.keys):
            spot = f"auth.keys[{index}]"
            if is_good(key.name) and names.setdefault(key.name, index) != index:
                self._say(
                    f"{spot}.name",
                    f"is duplicate: auth.keys[{names[key.name]}] has the name {key.name!r}, too",
                )
            self._key(key, spot, digests, index)
            self._key_models(key, spot)

    def _key(self, key: KeySettings, spot: str, digests: dict[str, int], index: int) -> None:
        if not is_good(key.key, key.sha256):
            return
        if key.key is None and key.sha256 is None:
            self._say(spot, "has neither key nor sha256; write one of them, as key: ${NAME}")
        elif key.key is not None and key.sha256 is not None:
            self._say(spot, "has both key and sha256; write one of them")
        elif key.sha256 is not None and not _HEX.fullmatch(key.sha256):
            self._say(f"{spot}.sha256", "is not 64 hex digits; write the SHA-256 of the key, as sha256sum shows it")
        elif digests.setdefault(key.digest, index) != index:
            self._say(spot, f"is duplicate: auth.keys[{digests[key.digest]}] is the same key; write another one")

    def _key_models(self, key: KeySettings, spot: str) -> None:
        if not is_good(key.models):
            return
        if not key.models:
            self._say(f"{spot}.models", 'is an empty list, so the key could call nothing; write names, or ["*"]')
        names = self._names()
        for index, name in good(key.models):
            if name != "*" and names is not None and name not in names:
                self._say(f"{spot}.models[{index}]", f'{_no_model(name, names)}, or "*" for all')

    def _upstreams(self) -> None:
        upstreams = self._settings.upstreams
        if not is_good(upstreams):
            return
        if not upstreams:
            self._say("upstreams", "there is none; write at least one model server, with its base_url")
        for name, upstream in upstreams.items():
            if not is_good(upstream):
                continue
            spot = join("upstreams", name)
            if is_good(upstream.base_url):
                self._base_url(upstream.base_url, f"{spot}.base_url")
            self._dialects(upstream.dialects, f"{spot}.dialects")
            self._headers(upstream.headers, f"{spot}.headers")
            if isinstance(upstream.proxy, Secret):
                wrong = _url_problem(upstream.proxy.reveal(), credentials=True)
                if wrong:
                    self._say(f"{spot}.proxy", f"{wrong}; write http://host:port")
            if isinstance(upstream.ca_file, str):
                self._ca_file(upstream, f"{spot}.ca_file")

    def _base_url(self, url: str, spot: str) -> None:
        wrong = _url_problem(url)
        if not wrong and re.search(r"/v1/(messages|chat/completions)$", url):
            wrong = "is the address of one endpoint"
        if wrong:
            self._say(spot, f"{wrong}; write what stands before /v1, as https://host or http://host:8000")

    def _dialects(self, dialects: list[DialectName], spot: str) -> None:
        if not is_good(dialects):
            return
        if not dialects:
            self._say(spot, f"is an empty list; write what the server speaks, as [{get_args(DialectName)[0]}]")
        for index, name in good(dialects):
            if name in dialects[:index]:
                self._say(f"{spot}[{index}]", f"is duplicate: {name} stands there already; take one away")

    def _headers(self, headers: dict[str, Secret], spot: str) -> None:
        if not is_good(headers):
            return
        seen: dict[str, str] = {}
        for name in headers:
            here = join(spot, name)
            if not _TOKEN.fullmatch(name):
                self._say(here, "is no name of an HTTP header; write letters, digits and hyphens")
            elif name.lower() in _OWN_HEADERS:
                self._say(here, "is a header that the gateway sets itself; take it away")
            elif seen.setdefault(name.lower(), name) != name:
                self._say(here, f"is duplicate: {seen[name.lower()]} is the same header; keep one")

    def _ca_file(self, upstream: UpstreamSettings, spot: str) -> None:
        path = self._folder / Path(str(upstream.ca_file)).expanduser()
        wanted = "write the path of a PEM file with a certificate"
        try:
            text = path.read_bytes()
        except OSError as wrong:
            said = wrong.strerror or type(wrong).__name__
            self._say(spot, f"the file {str(upstream.ca_file)!r} cannot be read ({said}); {wanted}")
            return
        except ValueError:
            self._say(spot, f"is no path of a file; {wanted}")
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        with contextlib.suppress(ssl.SSLError, ValueError):
            context.load_verify_locations(cadata=text.decode("ascii", "ignore"))
        if not context.cert_store_stats()["x509"]:
            self._say(spot, f"the file {str(upstream.ca_file)!r} holds no certificate; {wanted}")
            return
        msgspec.structs.force_setattr(upstream, "ca_file", str(path))

    def _names(self) -> list[str] | None:
        """The model names, or None if not all of them are known."""
        models = self._settings.models
        if not is_good(models) or not all(is_good(model) and is_good(model.name) for model in models):
            return None
        return [model.name for model in models]

    def _models(self) -> None:
        models, upstreams = self._settings.models, self._settings.upstreams
        if is_good(models) and not models:
            self._say("models", "there is none; write at least one, with its name and its upstream")
        first: dict[str, int] = {}
        for index, model in good(models):
            spot = f"models[{index}]"
            if is_good(model.name) and first.setdefault(model.name, index) != index:
                text = f"is duplicate: models[{first[model.name]}] has the name {model.name!r}, too; rename one"
                self._say(f"{spot}.name", text)
            if model.name == "*":
                self._say(f"{spot}.name", 'is "*", but a name stands for one model; write what clients send')
            if is_good(upstreams, model.upstream) and upstreams and model.upstream not in upstreams:
                advice = _advice(model.upstream, list(upstreams))
                self._say(f"{spot}.upstream", f"there is no upstream {model.upstream!r}; {advice}")

    def _fallbacks(self) -> None:
        names = self._names()
        models: dict[str, ModelSettings] = {}
        for _, model in good(self._settings.models):
            if is_good(model.name):
                models.setdefault(model.name, model)
        for index, model in good(self._settings.models):
            if not isinstance(model.fallback, str) or not is_good(model.name):
                continue
            spot = f"models[{index}].fallback"
            if model.fallback not in models:
                if names is not None:
                    self._say(spot, _no_model(model.fallback, names))
                continue
            circle = _circle(model.name, models)
            if circle:
                self._say(spot, f"falls back in a circle ({' -> '.join(circle)}); let the last one have none")
                continue
            mine, other = self._spoken(model), self._spoken(models[model.fallback])
            if mine and other and not mine & other:
                self._say(
                    spot,
                    f"{model.fallback!r} speaks {', '.join(sorted(other))} and {model.name!r} "
                    f"{', '.join(sorted(mine))}, so it can never stand in; name another model",
                )

    def _spoken(self, model: ModelSettings) -> set[str]:
        """The dialects of a model's upstream; empty if they are not known."""
        upstreams = self._settings.upstreams
        upstream = upstreams.get(model.upstream, REFUSED) if is_good(upstreams, model.upstream) else REFUSED
        if not is_good(upstream) or not is_good(upstream.dialects, *upstream.dialects):
            return set()
        return set(upstream.dialects)


def _circle(start: str, models: Mapping[str, ModelSettings]) -> list[str]:
    """The names from one back to itself by way of `fallback`; empty if it does not come back."""
    road = [start]
    while True:
        model = models.get(road[-1])
        if model is None or not isinstance(model.fallback, str):
            return []
        road.append(model.fallback)
        if model.fallback == start:
            return road
        if model.fallback in road[:-1]:
            return []  # a circle further on, which is told there


def _no_model(name: str, names: Sequence[str]) -> str:
    return f"there is no model {name!r}; {_advice(name, list(names))}"


def _advice(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = [name if name.isprintable() else repr(name) for name in known[:_SHOWN]]
    some = ", ".join(shown) + (", …" if len(known) > _SHOWN else "")
    return f"write one of these: {some}" if known else "there is none at all"


def _url_problem(url: str, *, credentials: bool = False) -> str:
    """What is wrong with a URL, without showing it; empty if nothing is."""
    if any(letter.isspace() for letter in url):
        return "has a space in it"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is no URL"
    if parts.scheme not in ("http", "https"):
        return "is no http:// or https:// URL"
    if not parts.hostname:
        return "names no host"
    if port == 0:
        return "has port 0"
    if not credentials and "@" in parts.netloc:
        return "has a user name or password in it, which belongs in api_key or headers"
    if "?" in url or "#" in url:
        return "has a query or a fragment (? or #)"
    return ""
