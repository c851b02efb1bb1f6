"""Every code block in the README and in docs/ is run or loaded, and every link leads somewhere.

Must not know what a page is about. A block that cannot be run needs its reason in a table here.

The blocks of one page run in order, in one folder. A block whose first line is a comment with a file's name is that
file from then on. `http://127.0.0.1:4000` is the demo's address.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
import yaml
from litestar.testing import TestClient

from loopway import cli, create_app, errors, settings
from loopway.compat import litellm
from loopway.dialects.base import status_of
from loopway.dialects.table import DIALECTS
from loopway.testing import Reply, ScriptedModel, call, text
from running import MODULE_SECONDS, Running, environment

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "config" / "README.md", *sorted((ROOT / "examples").rglob("*.md"))]
DEMO = "http://127.0.0.1:4000"

SHOWN = {
    "text": "an output or a drawing",
    "mermaid": "a drawing",
    "typescript": "needs Node.js and its packages",
    "javascript": "needs Node.js and its packages",
    "http": "bytes on a wire",
    "sse": "bytes on a wire",
    "nginx": "tests/life/test_nginx.py runs it",
    "yaml values": "tests/helm/test_deploy.py renders it",
    "shell": "needs a cluster or a container engine",
    "dockerfile": "needs an image of this project",
}
"""Languages that are not run, and why."""

NOT_RUN: dict[tuple[str, str], str] = {}
"""Blocks that are not run, by page and first line, and why."""

KEYS = {"TEAM_A_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "LOOPWAY_KEY"}
"""Variables that a configuration in a page may read."""


class Block(msgspec.Struct, frozen=True):
    """A fenced block."""

    page: str
    line: int
    language: str
    code: str

    @property
    def first(self) -> str:
        return next(iter(self.code.splitlines()), "")

    @property
    def file(self) -> str | None:
        """The file's name, if the first line says it."""
        found = re.fullmatch(r"(?:#|//) ([\w.-]+\.\w+)", self.first)
        return found[1] if found else None


def blocks_of(path: Path) -> list[Block]:
    page = path.relative_to(ROOT).as_posix()
    found: list[Block] = []
    language: str | None = None
    lines: list[str] = []
    began = 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = re.match(r"\s*```(.*)$", line)
        if fence is None:
            lines.append(line)
        elif language is None:
            language, lines, began = fence[1].strip(), [], number
        else:
            found.append(Block(page, began, language, "\n".join(lines) + "\n"))
            language = None
    assert language is None, f"{page}:{began} does not end"
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def named(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The demo, at a free port."""
    with Running("demo", "--port", "0", seconds=MODULE_SECONDS) as running:
        found = re.search(r"http://127\.0\.0\.1:\d+", running.line("gateway on"))
        assert found
        yield found[0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder per page, with the files that its blocks are."""
    made = {}
    for page in {block.page for block in BLOCKS}:
        made[page] = tmp_path_factory.mktemp("page")
        for block in BLOCKS:
            if block.page == page and block.file is not None:
                (made[page] / block.file).write_text(block.code)
    return made


# --- one test per language ---


def of(language: str) -> pytest.MarkDecorator:
    """The blocks of a language that are run."""
    chosen = [block for block in BLOCKS if block.language == language and (block.page, block.first) not in NOT_RUN]
    return pytest.mark.parametrize("block", chosen, ids=named)


RUN = {"python", "bash", "yaml", "json"}


@pytest.mark.parametrize("block", BLOCKS, ids=named)
def test_language(block: Block) -> None:
    """Each block says its language, and that one is run, or the table says why not."""
    assert block.language in RUN | set(SHOWN)


def test_tables() -> None:
    """Each exemption is for a block that is there."""
    assert set(NOT_RUN) <= {(block.page, block.first) for block in BLOCKS}


@of("python")
def test_python(block: Block, url: str, folders: dict[str, Path]) -> None:
    """It runs, beside the files of its page, against the demo."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block.code.replace(DEMO, url)],
        cwd=folders[block.page],
        env=environment(
            ANTHROPIC_BASE_URL=url,
            OPENAI_BASE_URL=f"{url}/v1",
            ANTHROPIC_API_KEY="none",
            OPENAI_API_KEY="none",
            PYTHONDONTWRITEBYTECODE="1",
        ),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if DEMO in block.code:
        assert "In Oslo it is 4 degrees and light rain." in done.stdout


WHOLE = {"upstreams": {"u": {"base_url": "http://h"}}, "models": [{"name": "m", "upstream": "u"}]}


@of("yaml")
def test_yaml(block: Block) -> None:
    """It is a good configuration, or a good part of one."""
    data = yaml.safe_load(block.code)
    if "model_list" not in data and not {"upstreams", "models"} <= set(data):
        data = {"auth": {"mode": "open"}, **WHOLE, **data}
    settings.from_mapping(data, named(block), dict.fromkeys(KEYS, "k"), translators=[litellm.translate])


@of("json")
def test_json(block: Block) -> None:
    """It parses."""
    json.loads(block.code)


TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@of("bash")
def test_bash(block: Block, url: str) -> None:
    """Each line is a request that the demo answers, a target of the Makefile, or a command as Loopway takes it."""
    lines = [line for line in block.code.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert lines
    for line in lines:
        words = shlex.split(line)
        match Path(words[0]).name:
            case "curl":
                assert request(words[1:], url).status_code == 200, line
            case "make":
                assert {word for word in words[1:] if "=" not in word} <= TARGETS, line
            case "loopway":
                cli._parser().parse_args(words[1:])
            case _:
                pytest.fail(f"{named(block)}: nobody runs {line!r}")


def request(words: list[str], url: str) -> httpx.Response:
    """What curl would get for these arguments."""
    headers: dict[str, str] = {}
    body = address = None
    rest = iter(words)
    for word in rest:
        if word in ("-H", "--header"):
            name, _, value = next(rest).partition(":")
            headers[name] = value.strip()
        elif word in ("-d", "--data"):
            body = next(rest)
        elif word.startswith("-"):
            assert set(word[1:]) <= set("siSN"), f"{word} is not known here"
        else:
            address = word
    assert address is not None
    assert address.startswith(DEMO)
    method = "GET" if body is None else "POST"
    return httpx.request(method, address.replace(DEMO, url), headers=headers, content=body, timeout=20)


# --- the README ---


@pytest.mark.parametrize("hook", ["weather.get_weather", "weather_hook.hook"])
def test_readme_hooks(
    hook: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The README's tool, hook and configuration answer a tool call that the client has not declared."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    request.addfinalizer(lambda: sys.modules.pop(hook.partition(".")[0], None))
    monkeypatch.setenv("TEAM_A_KEY", "team-a-key")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "upstream-key")
    script = [Reply(call("get_weather", {"city": "Oslo"})), Reply(text("Take an umbrella."))]
    with ScriptedModel({"claude-sonnet-4-5": script}) as model:
        config = folders["README.md"] / "loopway.yaml"
        local = config.with_name("local.yaml")
        written = config.read_text().replace("https://api.anthropic.com", model.url)
        local.write_text(re.sub(r"^  - weather\.get_weather .*$", f"  - {hook}", written, flags=re.MULTILINE))
        with TestClient(create_app(local)) as client:
            answer = client.post(
                "/v1/messages",
                headers={"x-api-key": "team-a-key"},
                json={"model": "claude", "max_tokens": 99, "messages": [{"role": "user", "content": "Oslo?"}]},
            )
    assert answer.headers["x-loopway-iterations"] == "2"
    assert answer.json()["content"] == [{"type": "text", "text": "Take an umbrella."}]
    first, second = model.requests
    assert first.headers["x-api-key"] == "upstream-key"
    (tool,) = first.body["tools"]
    assert tool["description"] == "Current weather in a city."
    assert list(tool["input_schema"]["properties"]) == ["city"]
    assert second.body["messages"][-1]["content"][0]["content"] == "It rains in Oslo."


def test_readme_begins() -> None:
    """The README says what it is in three lines, then gives two commands."""
    readme = (ROOT / "README.md").read_text()
    title, what, block = readme.split("\n\n")[:3]
    assert title == "# Loopway"
    assert len(what.splitlines()) == 3
    assert block == "```bash\nmake demo\nmake test\n```"


# --- links ---


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links(page: Path) -> None:
    """Each link into the repository leads to a file, and its anchor to a heading."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        to = (page.parent / name).resolve() if name else page
        assert to.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(to), f"{page.name}: {target}"


def test_index() -> None:
    """docs/README.md has a line for each page."""
    listed = set(re.findall(r"^\| \[[\w.-]+\]\(([\w.-]+)\)", (ROOT / "docs" / "README.md").read_text(), re.MULTILINE))
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}


# --- docs/http.md ---

HTTP = (ROOT / "docs" / "http.md").read_text()

FAILURES: list[errors.ExchangeError] = [
    errors.BadRequest("", "$"),
    errors.ThreadUnsupported(),
    errors.Rejected(""),
    errors.Unauthorized(""),
    errors.NotAllowed(""),
    errors.NotFound(""),
    errors.MethodNotAllowed("", ""),
    errors.TooLarge(""),
    errors.HookFailed("", "gate", ""),
    errors.RuleFailed(""),
    errors.ExchangeError(""),
    errors.Unreachable("", ""),
    errors.Broken("", ""),
    errors.Silent("", ""),
    errors.OutOfTime(1),
    errors.Full(),
    errors.Draining(),
]
NOT_IN_THE_TABLE = {errors.RequestError, errors.UpstreamError, errors.LimitReached, errors.Refused, errors.Reported}
"""Roots of families, and errors that come back as the upstream's own."""


def descendants(kind: type[errors.ExchangeError]) -> set[type[errors.ExchangeError]]:
    return {kind}.union(*(descendants(child) for child in kind.__subclasses__()))


def test_error_table() -> None:
    """docs/http.md has the row of every error, in order: status, types and code as they are sent."""
    ours = {kind for kind in descendants(errors.ExchangeError) if kind.__module__ == errors.__name__}
    assert {type(failure) for failure in FAILURES} == ours - NOT_IN_THE_TABLE
    rows = [line.split(" | ")[1:] for line in HTTP.splitlines() if re.match(r"\| .* \| \d{3}[^|]* \| `", line)]
    assert [row_of(failure) for failure in FAILURES] == [
        [cells[0].partition(",")[0], *(cell.strip(" |`") for cell in cells[1:])] for cells in rows
    ]


def row_of(failure: errors.ExchangeError) -> list[str]:
    theirs, ours = DIALECTS["messages"], DIALECTS["chat_completions"]
    statuses = [str(status_of(failure, theirs)), str(status_of(failure, ours))]
    one = statuses[0] if len(set(statuses)) == 1 else f"{statuses[0]}; Chat {statuses[1]}"
    shown = json.loads(ours.error_body(failure, "r"))["error"]
    return [one, json.loads(theirs.error_body(failure, "r"))["error"]["type"], shown["type"], shown["code"] or ""]


def test_paths() -> None:
    """docs/http.md has every path that the gateway answers, and no other."""
    listed = {path for _, path in re.findall(r"`(GET|POST|HEAD) (/[\w/{}.]*)`", HTTP)}
    config = {"auth": {"mode": "open"}, **WHOLE, "server": {"admin_port": None}}
    served = {re.sub(r"\{\w+:path\}", "{id}", route.path) for route in create_app(config).routes}
    assert listed == served
