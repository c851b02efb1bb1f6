"""The OpenAPI document against the gateway that serves it: the same paths, and no answer that it does not describe.

Schemathesis is in the dependency group `fuzz`; without it the second half is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from litestar import Litestar
from litestar.testing import TestClient

from loopway import create_app
from loopway.demo import TOOL
from loopway.server.openapi import document
from loopway.testing import Recorded, Reply, ScriptedModel, call, text
from running import MODULE_SECONDS, Running

KEY = "the-key-of-the-document"
EXAMPLES = 25
"""Requests per operation."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


CONFIG = f"""
server: {{port: 0, admin_port: 0, drain_seconds: 1}}
auth: {{keys: [{{name: tester, key: {KEY}}}]}}
upstreams: {{up: {{base_url: "URL", dialects: [messages, chat_completions], max_retries: 0}}}}
models: [{{name: m, upstream: up}}]
hooks: [described_hook.hook]
"""
HOOK = "from loopway.demo import Weather\n\nhook = Weather()\n"


def _reply(request: Recorded) -> Reply:
    if request.dialect == "other":
        return Reply(error=(200, {"input_tokens": 1}))
    return Reply(call(TOOL, {"city": "Oslo"})) if request.number % 3 else Reply(text("fine"))


@pytest.fixture
def app() -> Litestar:
    """A gateway that is not served."""
    return create_app(yaml.safe_load(CONFIG.replace("URL", "http://127.0.0.1:1")) | {"hooks": []})


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a gateway with a hook that reruns, and a model `m`."""
    with ScriptedModel({"m": _reply}) as model:
        (tmp_path / "loopway.yaml").write_text(CONFIG.replace("URL", model.url))
        (tmp_path / "described_hook.py").write_text(HOOK)
        with Running("serve", cwd=tmp_path, seconds=MODULE_SECONDS) as running:
            address: str = running.ready()["url"]
            yield address
            assert running.end() == 0


def test_every_path_is_described(app: Litestar) -> None:
    """The document has the paths that are routed, and no other ones."""
    routed = {re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path) for route in app.routes}
    assert set(document()["paths"]) == routed


def test_the_document_is_served_to_anybody(app: Litestar) -> None:
    """No key is needed to read how a key is sent."""
    with TestClient(app) as client:
        answer = client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == document()


def test_no_answer_is_undescribed(url: str) -> None:
    """Whatever schemathesis thinks of: no 5xx, and only the statuses, types and shapes that the document has."""
    schemathesis = pytest.importorskip("schemathesis")
    known = pytest.importorskip("schemathesis.checks")
    known.load_all_checks()
    checks = known.CHECKS.get_by_names(CHECKS)
    described = document()
    for path in described["paths"].values():
        for operation in path.values():
            operation["responses"].pop("default", None)  # the upstream here has no errors of its own
    loaded = schemathesis.openapi.from_dict(described)
    tried = 0
    for result in loaded.get_all_operations():
        operation = result.ok()

        def ask(case: Any) -> None:
            nonlocal tried
            tried += 1
            headers = {**(case.headers or {}), "x-api-key": KEY}
            if isinstance(case.body, dict) and tried % 5:
                case.body["model"] = "m"
            answer = case.call(base_url=url, headers=headers)
            case.validate_response(answer, checks=checks, headers=headers)

        settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(given(case=operation.as_strategy())(ask))()
    assert tried > EXAMPLES
