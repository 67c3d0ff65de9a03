"""A tree searched by the tokens themselves, down to the single token (RadixAttention: SGLang, NeurIPS 2024)."""

from __future__ import annotations

from pagedlab.prefix_cache.base import PREFIX_CACHES, Match, Node, PrefixCache


@PREFIX_CACHES.register("radix")
class Radix(PrefixCache):
    """Full blocks are shared as they are. Of the block in which two sequences part, the tokens before are copied into a
    block of the newcomer's own; so are those of a last block that never became full. SGLang itself has pages of one
    token, so that nothing is ever copied."""

    keeps_tails = True

    def find(self, parent: Node, key: int, tokens: bytes) -> Node | None:
        return parent.child(tokens)

    def rest(self, node: Node, tokens: bytes) -> Match:
        partial, common = node.nearest(tokens)
        return Match([], partial, common)
