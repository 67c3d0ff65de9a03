"""Lowest priority first, of equals the least recently used (SGLang `priority`)."""

from __future__ import annotations

from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Retention
from pagedlab.eviction.ranked import RankedEviction


@EVICTIONS.register("priority")
class Priority(RankedEviction):
    """A block has the highest priority of the requests that used it in its present stay. O(log n)."""

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self._ranks[key] = (retention.priority, self._tick())

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        self._ranks[key] = (max(self._ranks[key][0], retention.priority), self._tick())

    def free(self, key: int) -> None:
        self._ranks[key] = (self._ranks[key][0], self._tick())
