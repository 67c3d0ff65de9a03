"""Least frequently used first, of equals the least recently used (SGLang `lfu`, libCacheSim LFU)."""

from __future__ import annotations

from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Retention
from pagedlab.eviction.ranked import RankedEviction


@EVICTIONS.register("lfu")
class Lfu(RankedEviction):
    """The count is of the present stay: it begins anew for content that comes back, and it never ages, so a block that
    was popular once stays for long."""

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self._ranks[key] = (1, self._tick())

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        self._ranks[key] = (self._ranks[key][0] + 1, self._tick())

    def free(self, key: int) -> None:
        self._ranks[key] = (self._ranks[key][0], self._tick())
