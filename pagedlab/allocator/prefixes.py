"""Beginnings that requests have in common: found in the index, held in the pool, put there when they are computed."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from pagedlab.allocator.caching_pool import CachingPool
from pagedlab.allocator.tiers import Tiers
from pagedlab.core.errors import InvariantError
from pagedlab.core.request import Sequence
from pagedlab.eviction.base import Entry, Retention
from pagedlab.prefix_cache.base import Match, Node, PrefixCache

# Of the blocks that were evicted so many are remembered, should they be asked for again: at least, and times the pool.
_REMEMBERED = 65536
_REMEMBERED_POOLS = 16


@dataclass(slots=True)
class PrefixCounts:
    """Sums since the start, of an empty cache. queried, hit: tokens known at each admission, and how many of them were
    cached and used. lost: cached and of no use, because blocks are shared whole and one token is to be computed.
    copied: of those hit, copied out of a block that is not shared. below: of those hit, brought up, by tier. evictions:
    blocks that left the cache. regretted: blocks asked for that had been evicted since they were last cached, and are
    in no tier."""

    queried: int = 0
    hit: int = 0
    lost: int = 0
    copied: int = 0
    evictions: int = 0
    regretted: int = 0
    below: Counter[str] = field(default_factory=Counter)


class Prefixes:
    """Binds an index of content to the pool that holds it. A request that is admitted takes what is cached of its
    tokens, all of it or nothing; what it computes is cached block by block, once a step is over and its keys and values
    are final. So requests of one batch that begin alike do not wait for each other: each computes its own, and the
    first to have a block is the one whose block is found from then on."""

    def __init__(self, index: PrefixCache, pool: CachingPool, pin_blocks: int = 0):
        self.index = index
        self.tiers = Tiers([])
        """Where evicted blocks go."""
        self.worth: Callable[[int, int, Seq[str]], int] | None = None
        """(tokens of a request, its blocks that are on the device, the tiers of those behind them) -> how many of the
        latter are worth to be brought up; None: all."""
        self.pool = pool
        self.pin_blocks = pin_blocks
        self.counts = PrefixCounts()
        self._evicted: OrderedDict[int, None] = OrderedDict()  # the last so many, the latest at the end
        self._memo: tuple[Sequence | None, int, int, int, Match] = (None, -1, -1, -1, Match([]))
        pool.evicted = self._on_evicted

    def match(self, seq: Sequence) -> Match:
        """What a request would find now. The same question is answered once: a scheduler asks it again and again."""
        known = (seq, self.index.version, self.tiers.version, seq.num_tokens)
        if self._memo[0] is not seq or self._memo[1:4] != known[1:]:
            self._memo = (*known, self._matched(seq))
        return self._memo[4]

    def _matched(self, seq: Sequence) -> Match:
        match, below = self.index.match(seq), []
        if not self.tiers.levels:
            return match
        size, last = self.index.block_size, seq.num_tokens - 1  # one token is to be computed
        for block in range(len(match.nodes), last // size):
            tier = self.tiers.find(self.index.key(seq, block))
            if tier is None:
                break
            below.append(tier.name)
        if below and self.worth is not None:
            below = below[: self.worth(seq.num_tokens, len(match.nodes), below)]
        # A whole block is more than what could be copied of it.
        return replace(match, partial=None, copied=0, lost=0, below=tuple(below)) if below else match

    def idle(self, match: Match) -> int:
        """How many of the blocks that a match would hold count as available as long as nobody takes them."""
        nodes = [*match.nodes, match.partial] if match.partial else match.nodes
        return sum(map(self.pool.may_go, [node.block for node in nodes]))

    def take(self, seq: Sequence, match: Match) -> list[int]:
        """Hold what was matched. Returns the shared blocks."""
        retention = self._retention(seq)
        blocks = [node.block for node in match.nodes]
        self.pool.hold(blocks, retention)
        try:
            self._taken(seq, match, blocks, retention)
        except BaseException:  # the policy's
            self.pool.release(blocks)
            raise
        return blocks

    def _taken(self, seq: Sequence, match: Match, blocks: list[int], retention: Retention) -> None:
        request, counts = seq.request, self.counts
        if match.partial is not None:
            self.pool.fence(match.partial.block)
            self.pool.eviction.hit(match.partial.key, retention)
        size = self.index.block_size
        for block in range(len(blocks), seq.num_tokens // size):
            key = self.index.key(seq, block)
            self.tiers.asked(key)
            if block < len(blocks) + len(match.below):
                self.tiers.remove(key)
            else:
                counts.regretted += key in self._evicted and self.tiers.find(key) is None
            if key not in self.index.nodes:  # as the last block of a text that is cached whole
                self.pool.eviction.miss(key)
        chain = self.index.chain(seq)
        chain.nodes = list(match.nodes)
        counts.queried += seq.num_tokens
        counts.hit += match.num_tokens(size)
        counts.copied += match.copied
        counts.lost += match.lost
        for name in match.below:
            counts.below[name] += size
        if request.pin_tokens:
            self._pin(request.pin_tokens, match.nodes)

    def attach(self, seq: Sequence, nodes: list[Node]) -> None:
        """A sequence that comes back holds these again, its first blocks. It was counted when it was admitted."""
        self.pool.hold([node.block for node in nodes], self._retention(seq))
        self.index.chain(seq).nodes = list(nodes)

    def publish(self, seq: Sequence, table: list[int]) -> bool:
        """What the sequence has computed is final: its full blocks can be found from now on, up to the first whose
        content lies in another block as well. Behind that one only `settle` goes on: a block that is in use must not be
        behind one that is not. Returns whether it came to the last."""
        index = self.index
        chain = index.chain(seq)
        nodes = chain.nodes
        full = seq.computed // index.block_size
        while len(nodes) < full:
            block = len(nodes)
            node = self._cache(seq, nodes[-1] if nodes else chain.root, block, table[block])
            if node is None or node.block != table[block]:
                return False
            nodes.append(node)
        return True

    def settle(self, seq: Sequence, table: list[int], tail: bool) -> None:
        """The sequence is about to let go of its table: all that it has computed stays as it is, to be found behind
        blocks of others too, but for what others go on using or writing to."""
        index, size = self.index, self.index.block_size
        chain = index.chain(seq)
        node: Node | None = chain.nodes[-1] if chain.nodes else chain.root
        end = seq.computed if tail and index.keeps_tails else seq.computed // size * size
        for block in range(len(chain.nodes), -(-end // size)):
            if node is None or self.pool.ref[table[block]] > 1:
                return
            node = self._cache(seq, node, block, table[block])

    def _cache(self, seq: Sequence, parent: Node, block: int, place: int) -> Node | None:
        """The node of the content of the sequence's `block`, which lies in the pool at `place`: that of an equal one
        that is cached already, else its own from now on. None where it cannot be cached."""
        index = self.index
        tokens = index.tokens(seq, block, seq.computed)
        known = parent.child(tokens)
        if known is not None:
            return known
        full = (block + 1) * index.block_size <= seq.computed
        key = index.key(seq, block) if full else index.digest.next(parent.key, tokens)
        node = index.insert(key, parent, tokens, place)
        if node is None:
            return None
        self._evicted.pop(key, None)
        self.tiers.remove(key)  # computed again, as a block before it was nowhere
        end = node.depth * index.block_size + node.num_tokens
        pinned = end <= seq.request.pin_tokens and self.pool.num_pinned < self.pin_blocks
        try:
            self.pool.cache(place, key, _entry(node), self._retention(seq), pinned and self._parent_pinned(parent))
        except BaseException:  # the policy's
            index.remove(node)
            raise
        return node

    def _parent_pinned(self, parent: Node) -> bool:
        return parent.depth < 0 or self.pool.is_pinned(parent.block)

    def _pin(self, tokens: int, nodes: list[Node]) -> None:
        """Cached before, by a request that did not pin it."""
        for node in nodes[: tokens // self.index.block_size]:
            if not self.pool.is_pinned(node.block):
                if self.pool.num_pinned >= self.pin_blocks:
                    return
                self.pool.pin([node.block])

    def _retention(self, seq: Sequence) -> Retention:
        return Retention(seq.request.cache_priority, seq.request.cache_ttl_s)

    def _on_evicted(self, key: int) -> list[int]:
        nodes = self.index.remove(self.index.nodes[key])
        gone = [node.key for node in nodes]
        self.counts.evictions += len(gone)
        if self.tiers.levels:
            for node in reversed(nodes):  # the deepest first, as they are let go of
                if node.num_tokens == self.index.block_size:
                    self.tiers.put(node.key, _entry(node))
        for left in gone:
            self._evicted[left] = None
        while len(self._evicted) > max(_REMEMBERED, _REMEMBERED_POOLS * self.pool.num_blocks):
            self._evicted.popitem(last=False)
        return gone

    def audit(self) -> None:
        self.index.audit()
        for key, node in self.index.nodes.items():
            if self.pool.key_of(node.block) != key:
                raise InvariantError(
                    f"block {node.block} is indexed as {key}, the pool has {self.pool.key_of(node.block)}"
                )
        if len(self.index.nodes) != self.pool.num_cached:
            raise InvariantError(f"{len(self.index.nodes)} blocks are indexed, {self.pool.num_cached} cached")
        if self.pool.num_pinned > self.pin_blocks:
            raise InvariantError(f"{self.pool.num_pinned} blocks are pinned, at most {self.pin_blocks} may be")
        self.tiers.audit(self.index.nodes.keys())


def _entry(node: Node) -> Entry:
    parent = node.parent
    return Entry(parent.key if parent is not None and parent.depth >= 0 else None, node.depth, node.num_tokens)
