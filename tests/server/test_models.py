"""`GET /v1/models?limit=`: any text that looks like a number is taken or passed over."""

from __future__ import annotations

import pytest

from inprocess import KEY, gateway_over

LIMITS = {"0": 1, "1": 1, "002": 2, "9" * 4: 3, "9" * 4301: 3, "9" * 60_000: 3, "-1": 3, "x": 3, "1e9": 3, "²": 3}


async def test_limit(subtests: pytest.Subtests) -> None:
    """The list comes, with the request's id; no number is too long for it."""
    async with gateway_over({"m": [], "n": [], "o": []}) as run:
        headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
        for limit, shown in LIMITS.items():
            with subtests.test(f"{limit[:4]}, {len(limit)} digits"):
                answer = await run.client.get("/v1/models", params={"limit": limit}, headers=headers)
                assert answer.status_code == 200, answer.text
                assert len(answer.json()["data"]) == shown
                assert answer.headers["x-request-id"]
