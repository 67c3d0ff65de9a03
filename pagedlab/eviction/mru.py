"""Most recently used first (SGLang `mru`, LMCache): a foil for scans longer than the cache, of which LRU keeps none."""

from __future__ import annotations

from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Retention
from pagedlab.eviction.ranked import RankedEviction


@EVICTIONS.register("mru")
class Mru(RankedEviction):
    """The block of the latest use goes. As a sequence lets go of its first block last, only leaf-first keeps it."""

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self._ranks[key] = (-self._tick(),)

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        self._ranks[key] = (-self._tick(),)

    def free(self, key: int) -> None:
        self._ranks[key] = (-self._tick(),)
