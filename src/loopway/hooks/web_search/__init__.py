"""The built-in `web_search`: one tool over several search providers, for every client and every model.

It must not know the driver. `source.py` is the tool; the other files are what it is made of::

    source.py     the tool and its pre-call hook
    settings.py   keys, defaults, refusals
    declared.py   what clients declare: Anthropic's typed tool, Chat Completions' options
    blocks.py     the blocks that clients of the typed tool see, and their way back
    hits.py       a result, for the model and for the client
    domains.py    which addresses are let through
    providers.py  SearXNG, Tavily, Brave
    local.py      a folder
    own_docs.py   Loopway's own documentation
"""

from loopway.hooks.web_search.own_docs import own_docs
from loopway.hooks.web_search.source import WebSearch, web_search

__all__ = ["WebSearch", "own_docs", "web_search"]
