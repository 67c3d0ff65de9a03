"""Full blocks by a chained hash (vLLM's automatic prefix caching, RFC vllm-project/vllm#2614)."""

from __future__ import annotations

from pagedlab.prefix_cache.base import PREFIX_CACHES, Match, Node, PrefixCache


@PREFIX_CACHES.register("hash_chain")
class HashChain(PrefixCache):
    """One look-up in a table for each block. Only full blocks are shared: up to block_size - 1 tokens are lost."""

    def find(self, parent: Node, key: int, tokens: bytes) -> Node | None:
        node = self.nodes.get(key)
        # Keys may collide: equal tokens behind the very same block are the same content.
        return node if node is not None and node.parent is parent and node.tokens == tokens else None

    def rest(self, node: Node, tokens: bytes) -> Match:
        _, common = node.nearest(tokens)
        return Match([], lost=common)
