"""Priority for a duration (TensorRT-LLM's LRUEvictionPolicy and KvCacheRetentionConfig)."""

from __future__ import annotations

from typing import Any

from pagedlab.eviction.base import ASKS_NOTHING, DEFAULT_PRIORITY, ENTRY, EVICTIONS, Entry, Retention
from pagedlab.eviction.expiring import ExpiringEviction


@EVICTIONS.register("priority_ttl")
class PriorityTtl(ExpiringEviction):
    """Lowest priority first, of equals the least recently used. A block has the priority of its last request: for the
    `ttl_s` that this request asked for, counted from the block's last use, or for ever where it asked for none. Then
    it has the default, 35, and keeps its place by last use (in TensorRT-LLM it joins the end of that level). O(log n).
    """

    def __init__(self, capacity: int, settings: Any = None, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._asked: dict[int, Retention] = {}

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self.hit(key, retention)

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        self._asked[key] = retention
        self.free(key)

    def free(self, key: int) -> None:
        asked = self._asked[key]
        self._ranks[key] = (asked.priority, self._tick())
        self._expire_at(key, None if asked.ttl_s is None else self.now_s + asked.ttl_s)

    def forget(self, key: int) -> None:
        super().forget(key)
        del self._asked[key]

    def _expired(self, key: int) -> None:
        self._ranks[key] = (DEFAULT_PRIORITY, self._ranks[key][1])
