"""Ids that tell exchanges apart. Nothing may depend on nobody guessing them.

They are drawn from a generator that the system seeds once: a system call for each id would cost more than all else that
is done for it. This file must not know what has the id.
"""

from __future__ import annotations

import os
import random

_drawn = random.Random()  # noqa: S311 - see above
os.register_at_fork(after_in_child=_drawn.seed)


def new_id(bits: int = 96) -> str:
    """A new id of so many bits, in hex digits."""
    return f"{_drawn.getrandbits(bits):0{bits // 4}x}"
