"""Recompute cost and age (after Marconi, MLSys 2025, arXiv 2411.19379)."""

from __future__ import annotations

from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Retention
from pagedlab.eviction.ranked import RankedEviction
from pagedlab.eviction.recompute_cost import recompute_cost
from pagedlab.settings import CostAwareSettings


@EVICTIONS.register("cost_aware")
class CostAware(RankedEviction):
    """Rank: time of the last use + `alpha` x capacity x cost. alpha 0 is LRU; with 1, a block that costs one first
    block more than another (`recompute_cost`, with `attention_tokens`) goes when it is older by as many uses as the
    cache has blocks.

    Marconi scales cost and 1/age to the range of all candidates at each eviction, which takes a scan of them. Here age
    counts linearly: all blocks age alike, so their order does not change with time and a heap holds it. O(log n).
    """

    def __init__(self, capacity: int, settings: CostAwareSettings, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._weight = settings.alpha * capacity
        self._attention_tokens = settings.attention_tokens
        self._bonus: dict[int, float] = {}

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        first = recompute_cost(Entry(tokens=entry.tokens), self._attention_tokens)
        self._bonus[key] = self._weight * recompute_cost(entry, self._attention_tokens) / first
        self.free(key)

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        self.free(key)

    def free(self, key: int) -> None:
        now = self._tick()
        self._ranks[key] = (now + self._bonus[key], now)

    def forget(self, key: int) -> None:
        super().forget(key)
        del self._bonus[key]
