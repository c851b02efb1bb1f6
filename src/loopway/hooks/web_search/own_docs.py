"""Where Loopway's own documentation is: beside the sources, or in the installed package.

This file must not know who searches it.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[2]


def own_docs() -> Path:
    """The folder of Loopway's documentation.

    Raises:
        FileNotFoundError: This installation has none.
    """
    for folder in (_PACKAGE / "_docs", _PACKAGE.parents[1] / "docs"):
        if (folder / "configuration.md").is_file():
            return folder
    raise FileNotFoundError("this installation of Loopway holds no documentation")
