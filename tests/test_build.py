"""What is refused when everything is put together: nothing is passed over silently."""

from __future__ import annotations

from typing import Any

import pytest

from inprocess import KEY
from loopway import ConfigError, server_tool
from loopway.app import build
from puppets import Puppet


@server_tool(name="look")
async def one() -> str:
    """Looks."""
    return ""


@server_tool(name="look")
async def other() -> str:
    """Looks as well."""
    return ""


@server_tool(models=["nobody"])
async def elsewhere() -> str:
    """For another model."""
    return ""


PUPPET = Puppet()


@pytest.mark.parametrize(
    ("hooks", "more", "words"),
    [
        ([one, other], {}, "both offer a tool 'look'"),
        ([PUPPET, PUPPET], {}, "is there twice"),
        ([elsewhere], {}, "the model 'nobody'"),
        ([], {"state": {"redis_url": "foo"}}, "state.redis_url"),
        ([], {"state": {"redis_url": "http://x"}}, "redis://host:6379/0"),
    ],
    ids=["two tools of a name", "a hook twice", "a model unknown", "no redis", "an http url"],
)
def test_it_is_refused(hooks: list[Any], more: dict[str, Any], words: str) -> None:
    """With a sentence that says what and where."""
    config = {
        "auth": {"keys": [{"name": "a", "key": KEY}]},
        "upstreams": {"u": {"base_url": "http://127.0.0.1:9"}},
        "models": [{"name": "m", "upstream": "u"}],
        **more,
    }
    with pytest.raises(ConfigError, match=words):
        build(config, hooks)
