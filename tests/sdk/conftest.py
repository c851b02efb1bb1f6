"""The gateways that every SDK is tried against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sdk.loops import gateways


@pytest.fixture(scope="session")
def urls() -> Iterator[dict[str, str]]:
    """The addresses of three gateways, by their `interim_text`."""
    with gateways() as found:
        yield found
