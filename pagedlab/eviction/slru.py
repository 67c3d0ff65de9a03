"""Segmented LRU (Karedla, Love, Wherry, IEEE Computer 1994): what was used again is protected."""

from __future__ import annotations

from collections import Counter

from pagedlab.core.errors import InvariantError, OutOfBlocks
from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Eviction, Retention
from pagedlab.eviction.queue import Queue
from pagedlab.settings import SlruSettings


@EVICTIONS.register("slru")
class Slru(Eviction):
    """Two LRU queues: content enters the probationary one, victims leave from there, and after `promote_hits` hits it
    is protected. The protected one holds `protected_fraction` of the cache; of more than that, the least recently used
    that may go falls back to the end of the probationary one. SGLang's `slru` is promote_hits=2,
    protected_fraction=1. Amortised O(1).
    """

    def __init__(self, capacity: int, settings: SlruSettings, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._most_protected = int(capacity * settings.protected_fraction)
        self._promote_hits = settings.promote_hits
        self._hits: Counter[int] = Counter()  # of what is on probation
        self._probation = Queue()
        self._protected = Queue()

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self._probation.push(key)

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        if key in self._protected:
            self._protected.push(key)
            return
        self._hits[key] += 1
        if self._hits[key] < self._promote_hits:
            self._probation.push(key)
            return
        del self._hits[key]
        self._probation.move(key, self._protected)
        while len(self._protected) > self._most_protected:
            demoted = self._protected.first()
            if demoted is None:
                break
            self._protected.move(demoted, self._probation)

    def free(self, key: int) -> None:
        self._queue_of(key).push(key)

    def offer(self, key: int) -> None:
        self._queue_of(key).offer(key)

    def withdraw(self, key: int) -> None:
        self._queue_of(key).withdraw(key)

    def forget(self, key: int) -> None:
        self._queue_of(key).remove(key)
        self._hits.pop(key, None)

    @property
    def num_offered(self) -> int:
        return self._probation.num_offered + self._protected.num_offered

    def evict(self) -> int:
        key = self.peek()
        self.forget(key)
        return key

    def peek(self) -> int:
        for queue in (self._probation, self._protected):
            key = queue.first()
            if key is not None:
                return key
        raise OutOfBlocks("no block may be evicted")

    def audit(self) -> None:
        self._probation.audit()
        self._protected.audit()
        if both := set(self._probation.keys()) & set(self._protected.keys()):
            raise InvariantError(f"keys {sorted(both)} are in both segments")
        if not self._hits.keys() <= set(self._probation.keys()):
            raise InvariantError("hits are counted of what is not on probation")

    def _queue_of(self, key: int) -> Queue:
        return self._protected if key in self._protected else self._probation
