"""Names of content: a block's key stands for its tokens and for all that came before them."""

from __future__ import annotations

import hashlib

import xxhash

HASHES = ("xxh3_128", "sha256")


class Digest:
    """Keys of 128 bits, chained: the key of a block is hash(key of the block before it, its tokens).

    name: xxh3_128 is fast and no secret; sha256 (its first half) withstands somebody who makes collisions on purpose.
    bits: how many of them are kept; fewer than 128 is for tests of collisions. Python's own hash is of no use here:
    hash(t) == hash(t + 2**61 - 1), and texts hash differently in each process.
    """

    def __init__(self, name: str = "xxh3_128", bits: int = 128):
        self._hash = xxhash.xxh3_128_digest if name == "xxh3_128" else _sha256
        self._mask = (1 << bits) - 1

    def root(self, identity: tuple[str, ...]) -> int:
        """The key before the first block. identity: all beside the tokens that a block's content depends on."""
        return self._key(b"".join(b"%d:%s" % (len(raw := text.encode()), raw) for text in identity))

    def next(self, parent: int, tokens: bytes) -> int:
        return self._key(parent.to_bytes(16, "big") + tokens)

    def _key(self, data: bytes) -> int:
        return int.from_bytes(self._hash(data), "big") & self._mask


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]
