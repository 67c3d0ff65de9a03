"""CLOCK, or FIFO with reinsertion: a block that was used gets another round (Corbato 1969; libCacheSim Clock)."""

from __future__ import annotations

from pagedlab.core.errors import OutOfBlocks
from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Eviction, Retention
from pagedlab.eviction.queued import QueuedEviction
from pagedlab.settings import ClockSettings


@EVICTIONS.register("clock")
class Clock(QueuedEviction):
    """A counter of `bits` bits counts uses. At the front of the queue a count above 0 is lowered and its block goes to
    the end; one of 0 goes. A block that is met while it may not go keeps its count and its place.

    Amortised O(1): each further round was paid for by a use.
    """

    peek = Eviction.peek  # the first of the queue may get another round

    def __init__(self, capacity: int, settings: ClockSettings, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._most = 2**settings.bits - 1
        self._count: dict[int, int] = {}

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self._count[key] = 0
        self._queue.push(key)

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        if self._count[key] < self._most:
            self._count[key] += 1

    def forget(self, key: int) -> None:
        super().forget(key)
        del self._count[key]

    def evict(self) -> int:
        while (key := self._queue.first()) is not None:
            if not self._count[key]:
                self.forget(key)
                return key
            self._count[key] -= 1
            self._queue.push(key)
        raise OutOfBlocks("no block may be evicted")
