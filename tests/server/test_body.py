"""A body that is too long is refused as soon as it is, not when more of it comes."""

from __future__ import annotations

import asyncio
import json

import pytest

from faults.rawclient import raw, request
from inprocess import BOTH, gateway_over, request_body
from loopway.testing import Reply, text

LARGEST = 50_000
"""Bytes that a body may have here; one read of the gateway holds them and one more."""


@pytest.mark.parametrize("dialect", BOTH)
async def test_the_first_piece_counts(dialect: str) -> None:
    """A 413 although the client then says nothing more; it need not wait for `request_timeout_seconds` and a 504."""
    async with gateway_over({"m": lambda _: Reply(text("fine"))}, server={"max_body_bytes": LARGEST}) as run:
        body = json.dumps(request_body(dialect)).encode()
        piece = body[:-1] + b" " * (LARGEST + 1 - len(body)) + b"}"
        sent = request(b"transfer-encoding: chunked", body=b"%x\r\n%b\r\n" % (len(piece), piece), framed=False)
        async with raw(run.url) as client:
            client.dialect = dialect
            await client.send(sent)
            async with asyncio.timeout(2):
                assert await client.answers() == [413]
