"""The dialects by name: the one place that lists them.

This file must not know anything else about them.
"""

from __future__ import annotations

from loopway.dialects.base import Dialect, DialectName
from loopway.dialects.chat_completions import CHAT_COMPLETIONS
from loopway.dialects.messages import MESSAGES

DIALECTS: dict[DialectName, Dialect] = {MESSAGES.name: MESSAGES, CHAT_COMPLETIONS.name: CHAT_COMPLETIONS}
