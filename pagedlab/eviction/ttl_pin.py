"""A pin with a time limit for the KV of a conversation that may go on (Continuum, arXiv 2511.02230)."""

from __future__ import annotations

from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Retention
from pagedlab.eviction.expiring import ExpiringEviction
from pagedlab.settings import TtlPinSettings

_UNPINNED, _PINNED = 0, 1


@EVICTIONS.register("ttl_pin")
class TtlPin(ExpiringEviction):
    """LRU among the blocks whose time is over. A block is pinned for a while after its last use: for its request's
    `ttl_s`, or the setting's where the request asks for none; Continuum derives the time from reload cost and
    queueing. Where everything is pinned, the pin that ends first is broken: a policy must have a victim. O(log n).
    """

    def __init__(self, capacity: int, settings: TtlPinSettings, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._default_s = settings.ttl_s
        self._ttl_s: dict[int, float] = {}

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self.hit(key, retention)

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        self._ttl_s[key] = self._default_s if retention.ttl_s is None else retention.ttl_s
        self.free(key)

    def free(self, key: int) -> None:
        ends_s = self.now_s + self._ttl_s[key]
        self._ranks[key] = (_PINNED, ends_s, self._tick())
        self._expire_at(key, ends_s)

    def forget(self, key: int) -> None:
        super().forget(key)
        del self._ttl_s[key]

    def _expired(self, key: int) -> None:
        self._ranks[key] = (_UNPINNED, self._ranks[key][-1])
