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
        self._ttl_s: dict[int, float | None] = {}

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self._ttl_s[key] = retention.ttl_s
        self._used(key, retention.priority)

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        self._ttl_s[key] = retention.ttl_s
        self._used(key, retention.priority)

    def free(self, key: int) -> None:
        self._used(key, self._ranks[key][0])

    def forget(self, key: int) -> None:
        super().forget(key)
        del self._ttl_s[key]

    def _used(self, key: int, priority: float) -> None:
        self._ranks[key] = (priority, self._tick())
        ttl_s = self._ttl_s[key]
        self._expire_at(key, None if ttl_s is None else self.now_s + ttl_s)

    def _expired(self, key: int) -> None:
        self._ranks[key] = (DEFAULT_PRIORITY, self._ranks[key][1])
