"""Who may call: keys to their names and models.

This file must not know where a key came from. Keys are kept as SHA-256 digests; comparison takes constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

import msgspec

from loopway.errors import Unauthorized


class KeyHolder(msgspec.Struct, frozen=True):
    """A caller.

    Attributes:
        name: The key's configured name.
        models: The model names that it may use; `*` for all.
    """

    name: str
    models: tuple[str, ...]


ANYBODY = KeyHolder("", ("*",))
"""Who calls where `auth.mode` is `open`."""


class Keys:
    """All keys that are configured.

    Args:
        keys: (SHA-256 digest, holder) per key.
        open_to_all: Whether a caller needs none.
    """

    def __init__(self, keys: Iterable[tuple[bytes, KeyHolder]], *, open_to_all: bool) -> None:
        self._keys = tuple(keys)
        self._open = open_to_all

    def __repr__(self) -> str:
        return f"Keys({[holder.name for _, holder in self._keys]})"

    def holder(self, presented: Sequence[bytes]) -> KeyHolder:
        """Whose keys these are; any one of them is enough. Raises `Unauthorized`."""
        for key in presented:
            if not key:
                continue
            digest = hashlib.sha256(key).digest()
            found: KeyHolder | None = None
            for known, holder in self._keys:  # all of them, whichever it is
                if hmac.compare_digest(known, digest):
                    found = holder
            if found is not None:
                return found
        if self._open:
            return ANYBODY
        if any(presented):
            raise Unauthorized(
                "the key is not known here; send a key of this gateway as x-api-key or as a Bearer token"
            )
        raise Unauthorized("no key was sent; send one as x-api-key or as Authorization: Bearer")


def digest_of(key: str) -> bytes:
    """The digest under which a key is kept."""
    return hashlib.sha256(key.encode()).digest()


def bearer(value: bytes) -> bytes:
    """The token of an `Authorization: Bearer` header, or nothing."""
    scheme, _, token = value.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""
