"""What the log says of an exception in an author's code: what it was and where, and no more.

Its text may hold a prompt or a reply, so it is told only where the operator has switched such content on. This file
must not know whose code failed.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path

_SWITCH = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_ON = frozenset({"true", "span_only", "span_and_event"})  # as in telemetry/content.py


def told(raised: BaseException) -> str:
    """`ValueError at my_hooks.py:12`, and the exception's own text where content is switched on."""
    frames = traceback.extract_tb(raised.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    text = f": {raised}" if os.environ.get(_SWITCH, "").strip().lower() in _ON else ""
    return f"{type(raised).__name__}{where}{text}"
