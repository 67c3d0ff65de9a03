"""What the policies of a single queue share: the victim is the first in it that may go."""

from __future__ import annotations

from typing import Any

from pagedlab.core.errors import OutOfBlocks
from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, Entry, Eviction, Retention
from pagedlab.eviction.queue import Queue


class QueuedEviction(Eviction):
    """An option says what moves a key to the end of the queue. All is amortised O(1)."""

    def __init__(self, capacity: int, settings: Any = None, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._queue = Queue()

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self._queue.push(key)

    def offer(self, key: int) -> None:
        self._queue.offer(key)

    def withdraw(self, key: int) -> None:
        self._queue.withdraw(key)

    def forget(self, key: int) -> None:
        self._queue.remove(key)

    @property
    def num_offered(self) -> int:
        return self._queue.num_offered

    def evict(self) -> int:
        key = self.peek()
        self._queue.remove(key)
        return key

    def peek(self) -> int:
        key = self._queue.first()
        if key is None:
            raise OutOfBlocks("no block may be evicted")
        return key

    def audit(self) -> None:
        self._queue.audit()
