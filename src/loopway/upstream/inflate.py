"""Undoes a content-encoding that an upstream used although it was asked for none, in bounded pieces.

This file must not know where the bytes come from. Only gzip and deflate: an upstream that answers
`accept-encoding: identity` with anything else is misconfigured.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEFLATE = 8

LARGEST_PIECE = 64 * 1024
"""Bytes that one piece of the output may have, so that a small input cannot fill the memory at once."""


def _gzip_engine() -> zlib._Decompress:
    return zlib.decompressobj(zlib.MAX_WBITS | 16)


class InflateError(ValueError):
    """The bytes are not what their content-encoding says, or end too early."""


class Inflater:
    """Feed it encoded bytes, get the plain ones in pieces of at most `LARGEST_PIECE` bytes."""

    def __init__(self, encoding: bytes) -> None:
        self._known = encoding in {b"gzip", b"x-gzip", b"deflate"}
        self._gzip = encoding != b"deflate"
        self._engine = _gzip_engine() if self._gzip else zlib.decompressobj()
        self._start = b""
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces that these bytes give. Raises `InflateError`."""
        if not self._known:
            raise InflateError("an unknown content-encoding")
        data = self._begin(data)
        while data:
            if self._engine.eof:
                if not self._gzip:
                    return  # what follows a deflate stream means nothing
                self._engine = _gzip_engine()  # RFC 1952, section 2.2: several members
            while True:
                piece, data = self._step(data)
                if not piece:
                    break
                yield piece

    def _begin(self, data: bytes) -> bytes:
        """Hold the first byte back until a second one says whether deflate comes in its zlib frame."""
        if self._begun or not data:
            return data
        data = self._start + data
        if len(data) == 1:
            self._start = data
            return b""
        self._begun = True
        framed = data[0] & 0x0F == _DEFLATE and int.from_bytes(data[:2], "big") % 31 == 0  # RFC 1950, section 2.2
        if not self._gzip and not framed:
            self._engine = zlib.decompressobj(-zlib.MAX_WBITS)
        return data

    def _step(self, data: bytes) -> tuple[bytes, bytes]:
        if self._engine.eof:
            return b"", data
        try:
            piece = self._engine.decompress(data, LARGEST_PIECE)
        except zlib.error as error:
            raise InflateError(str(error)) from error
        return piece, self._engine.unconsumed_tail or self._engine.unused_data

    def end(self) -> None:
        """No more bytes come. Raises `InflateError` if the encoded stream was not complete."""
        if (self._begun or self._start) and not self._engine.eof:
            raise InflateError("the encoded stream is not complete")
