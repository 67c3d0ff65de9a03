"""Greedy-Dual-Size-Frequency (Cherkasova, HP Labs 1998); with recompute cost that of RAGCache (arXiv 2404.12457)."""

from __future__ import annotations

from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Retention
from pagedlab.eviction.ranked import RankedEviction
from pagedlab.eviction.recompute_cost import recompute_cost
from pagedlab.settings import GdsfSettings


@EVICTIONS.register("gdsf")
class Gdsf(RankedEviction):
    """Rank: clock + uses x cost, where the clock is the rank of the last victim: what is not used again ages by it.

    cost: `uniform` (1, as libCacheSim) or `recompute`, of a block over that of a first block (`recompute_cost`, with
    `attention_tokens`). Blocks have one size. O(log n).
    """

    def __init__(self, capacity: int, settings: GdsfSettings, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._attention_tokens = settings.attention_tokens if settings.cost == "recompute" else None
        self._age = 0.0
        self._uses: dict[int, int] = {}
        self._costs: dict[int, float] = {}

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self._uses[key] = 0
        self._costs[key] = 1.0
        if self._attention_tokens is not None:
            first = recompute_cost(Entry(tokens=entry.tokens), self._attention_tokens)
            self._costs[key] = recompute_cost(entry, self._attention_tokens) / first
        self.hit(key)

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        self._uses[key] += 1
        self._ranks[key] = (self._age + self._uses[key] * self._costs[key], self._tick())

    def forget(self, key: int) -> None:
        super().forget(key)
        del self._uses[key], self._costs[key]

    def evict(self) -> int:
        key = self.peek()
        self._age = self._ranks[key][0]
        self.forget(key)
        return key
