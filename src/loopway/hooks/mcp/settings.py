"""The settings of the `mcp` hook: what an operator may write about each server, and every refusal.

This file must not know the SDK, nor what a server offers. No message shows a value that may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

MOST_CHARACTERS = 100_000
"""Default of `max_result_chars`."""

_SERVER = re.compile(r"[a-zA-Z0-9_-]{1,32}")
_PREFIX = re.compile(r"[a-zA-Z0-9_-]{0,40}")
_TOOL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

_Seconds = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(gt=0)]
_Words = Annotated[list[str], msgspec.Meta(min_length=1)]


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One MCP server. Either `command` or `url` is set.

    Attributes:
        command: Starts a server that speaks over its standard input and output: the program and its arguments.
        env: Environment variables of that program, beside the few that every program needs (`PATH`, `HOME`, …); it
            gets none of the gateway's own.
        cwd: Folder that it is started in; the gateway's own by default.
        url: A server that is reached over streamable HTTP.
        headers: Added to every request to `url`.
        prefix: Stands before the name of each tool; the server's name and `_` by default, `""` for none.
        rename: New names of tools, by the server's own names. They get no prefix.
        allow: The only tools that are offered, by the server's own names; `*`, `?` and `[…]` as in file names.
        deny: Tools that are not offered, in the same way; wins over `allow`.
        ask_first: Tools that somebody wants to be asked for. They never run by themselves: they are not offered.
        models: The model names for which the tools are offered; all by default.
        timeout_seconds: Longest call; `loop.hook_timeout_seconds` by default.
        max_result_chars: Longest result in characters of text; a longer one is cut, and says so.
    """

    command: _Words | None = None
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    prefix: str | None = None
    rename: dict[str, str] = {}
    allow: list[str] | None = None
    deny: list[str] = []
    ask_first: list[str] = []
    models: list[str] | None = None
    timeout_seconds: _Seconds | None = None
    max_result_chars: _Count = MOST_CHARACTERS

    def __repr__(self) -> str:
        return "ServerSettings(…)"  # commands, variables, headers and addresses may hold secrets


_WANTED = {
    "command": "a list of words, as [python, server.py]",
    "env": 'a mapping of texts, as {MODE: "1"}',
    "cwd": "a folder",
    "url": "an address, as https://host/mcp",
    "headers": 'a mapping of texts, as {authorization: "Bearer ${TOKEN}"}',
    "prefix": 'letters, digits, _ and -, at most 40, or "" for none',
    "rename": "a mapping of the server's names to new ones, as {search: search_docs}",
    "allow": "a list of the server's tool names, as [search, read_*]",
    "deny": "a list of the server's tool names, as [delete_*]",
    "ask_first": "a list of the server's tool names, as [send_mail]",
    "models": "a list of model names, as [claude]",
    "timeout_seconds": "a number of seconds greater than 0",
    "max_result_chars": "a whole number greater than 0",
}
_FIELDS = {field.name: field for field in msgspec.structs.fields(ServerSettings)}


def read(settings: Mapping[str, Any]) -> dict[str, ServerSettings]:
    """The servers by name, in the configured order. Raises `ValueError` with every problem, each with its key path."""
    problems = [_unknown("", key, ["servers"]) for key in settings if key != "servers"]
    servers = settings.get("servers")
    made: dict[str, ServerSettings] = {}
    if not isinstance(servers, Mapping) or not servers:
        what = "is missing" if "servers" not in settings else f"is {_found(servers)}"
        problems.append(f"servers {what}; write a mapping of names to servers, as {{docs: {{url: https://host/mcp}}}}")
        servers = {}
    for name, given in servers.items():
        path = f"servers.{name}"
        if not isinstance(name, str) or not _SERVER.fullmatch(name):
            problems.append(f"{path} is no name for a server; write letters, digits, _ and -, at most 32")
        if not isinstance(given, Mapping):
            problems.append(f"{path} is {_found(given)}; write a mapping with command or url")
            continue
        before = len(problems)
        server = _server(path, given, problems)
        if len(problems) == before:
            problems += _beside(path, server)
        made[str(name)] = server
    if problems:
        raise ValueError("; ".join(problems))
    return made


def _server(path: str, given: Mapping[str, Any], problems: list[str]) -> ServerSettings:
    """One server's settings, key by key, so that one bad key hides no other."""
    good: dict[str, Any] = {}
    for key, value in given.items():
        field = _FIELDS.get(key)
        if field is None:
            problems.append(_unknown(f"{path}.", key, list(_FIELDS)))
            continue
        try:
            good[key] = msgspec.convert(_plain(value), field.type)
        except msgspec.ValidationError:
            problems.append(f"{path}.{key} is {_found(value)}; write {_WANTED[key]}")
    return ServerSettings(**good)


def _beside(path: str, server: ServerSettings) -> list[str]:
    """What does not fit together, or not into its place."""
    wrong: list[str] = []
    if (server.command is None) == (server.url is None):
        has = "neither command nor url" if server.command is None else "both command and url"
        wrong.append(f"{path} has {has}; write command: {_WANTED['command']}, or url: {_WANTED['url']}")
    elif server.url is None:
        if server.headers:
            wrong.append(f"{path}.headers is for a server with url; use env, or leave it out")
    else:
        wrong += [
            f"{path}.{key} is for a server with command; leave it out" for key in ("env", "cwd") if getattr(server, key)
        ]
    if server.command is not None and not server.command[0]:
        wrong.append(f"{path}.command begins with an empty text; write {_WANTED['command']}")
    if server.command is not None and any(
        "\0" in word for word in (*server.command, *server.env, *server.env.values())
    ):
        wrong.append(f"{path} has a zero byte in command or env; leave it out")
    if server.url is not None and not _is_address(server.url):
        wrong.append(f"{path}.url is no address; write {_WANTED['url']}")
    for header, value in server.headers.items():
        if not _HEADER.fullmatch(header):
            wrong.append(f"{path}.headers.{header} is no header name; write one, as authorization")
        if not _HEADER_VALUE.fullmatch(value):
            wrong.append(f"{path}.headers.{header} has a character that no header can carry; write one line of text")
    if server.prefix is not None and not _PREFIX.fullmatch(server.prefix):
        wrong.append(f"{path}.prefix cannot stand in a tool's name; write {_WANTED['prefix']}")
    seen: dict[str, str] = {}
    for old, new in server.rename.items():
        if not _TOOL.fullmatch(new):
            wrong.append(f"{path}.rename.{old} is no name for a tool; write letters, digits, _ and -, at most 64")
        elif new in seen:
            wrong.append(f"{path}.rename.{old} gives the name of {seen[new]}, {new!r}, again; write another one")
        seen.setdefault(new, old)
    return wrong


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and not re.search(r"\s", url)


def _unknown(above: str, key: object, known: list[str]) -> str:
    close = get_close_matches(str(key), known, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{above}{key} is no key{hint} (there are: {', '.join(known)})"


def _plain(value: Any) -> Any:
    """The same in plain types: what the environment gave is a text of its own kind."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def _found(value: object) -> str:
    """What kind of thing stands there."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    if isinstance(value, (int, float)):
        return f"{value:g}"
    return "a text" if isinstance(value, str) else f"a {type(value).__name__}"
