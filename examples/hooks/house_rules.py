"""Rules for requests, before any model sees them: one that rejects, one that changes.

Use it for what must hold for every client: words that may not leave the house, a cap on `max_tokens`, a sentence in
every system prompt. A pre-call hook needs no gate and no plan, and its requests stream as if it were not there.

    hooks: [house_rules.house_rules]
"""

from __future__ import annotations

import json
from typing import Any

from loopway import AgenticLoopHook, Rejected

Json = dict[str, Any]

TOKEN_FIELDS = ("max_tokens", "max_completion_tokens")


class HouseRules(AgenticLoopHook):
    """Rejects requests that hold a forbidden word, and caps their tokens.

    Args:
        forbidden: Words that no request may hold, in lower case.
        max_tokens: The most tokens that a request may ask for.
        free: Names of keys that the cap is not for.
    """

    def __init__(self, forbidden: tuple[str, ...], max_tokens: int, free: tuple[str, ...] = ()) -> None:
        self.forbidden = forbidden
        self.max_tokens = max_tokens
        self.free = free

    async def async_pre_call_hook(self, user_api_key_dict: Any, cache: Any, data: Json, call_type: str) -> Any:
        """Both dialects have `messages`; what else the body holds, `call_type` tells."""
        words = json.dumps(data.get("messages"), ensure_ascii=False).lower()
        if any(word in words for word in self.forbidden):
            raise Rejected("the request holds a word that may not leave this house")
        if user_api_key_dict.key_alias not in self.free:
            for name in TOKEN_FIELDS:
                if isinstance(data.get(name), int):
                    data[name] = min(data[name], self.max_tokens)
        return data


house_rules = HouseRules(forbidden=("project nightingale",), max_tokens=4096)
