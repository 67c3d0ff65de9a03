"""ARC (Megiddo, Modha, FAST 2003): recency against frequency, and ghosts of both tell which of them needs more room."""

from __future__ import annotations

from typing import Any

from pagedlab.core.errors import InvariantError, OutOfBlocks
from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Eviction, Retention
from pagedlab.eviction.ghosts import Ghosts
from pagedlab.eviction.queue import Queue


@EVICTIONS.register("arc")
class Arc(Eviction):
    """T1 holds what was asked for once, T2 what was asked for again, both in LRU order; B1 and B2 are their ghosts.

    A miss that is found in B1 raises the target size p of T1, one found in B2 lowers it, and its content comes back
    into T2. The victim is of T1 when that is larger than p, or equal to it and the content missed last was in B2 (the
    room is taken to be for that); else of T2; of the other where that has nothing to give. T1 and B1 together
    remember as much as the cache holds, all four twice as much. (vLLM's `arc` is another: it trims both ghost lists to
    the capacity.) Amortised O(1).
    """

    def __init__(self, capacity: int, settings: Any = None, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._target = 0.0  # p of the paper
        self._once = Queue()
        self._again = Queue()
        self._once_ghosts = Ghosts(capacity)
        self._again_ghosts = Ghosts(2 * capacity)
        self._returning = Ghosts(capacity)  # were ghosts when they were missed, and may be cached soon
        self._missed_in_again = False

    def miss(self, key: int) -> None:
        once, again = len(self._once_ghosts), len(self._again_ghosts)
        self._missed_in_again = False
        if self._once_ghosts.discard(key):
            self._target = min(self._target + max(again / once, 1.0), self.capacity)
        elif self._again_ghosts.discard(key):
            self._target = max(self._target - max(once / again, 1.0), 0.0)
            self._missed_in_again = True
        else:
            return
        self._returning.add(key)

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        known = self._returning.discard(key)
        known |= self._once_ghosts.discard(key) or self._again_ghosts.discard(key)
        (self._again if known else self._once).push(key)
        self._trim()

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        if key in self._again:
            self._again.push(key)
        else:
            self._once.move(key, self._again)

    def free(self, key: int) -> None:
        self._queue_of(key).push(key)

    def offer(self, key: int) -> None:
        self._queue_of(key).offer(key)

    def withdraw(self, key: int) -> None:
        self._queue_of(key).withdraw(key)

    def forget(self, key: int) -> None:
        self._queue_of(key).remove(key)

    @property
    def num_offered(self) -> int:
        return self._once.num_offered + self._again.num_offered

    def evict(self) -> int:
        key = self.peek()
        (self._once_ghosts if key in self._once else self._again_ghosts).add(key)
        self.forget(key)
        return key

    def peek(self) -> int:
        size = len(self._once)
        of_once = size > self._target or (size == self._target and self._missed_in_again)
        for queue in (self._once, self._again) if of_once else (self._again, self._once):
            key = queue.first()
            if key is not None:
                return key
        raise OutOfBlocks("no block may be evicted")

    def audit(self) -> None:
        self._once.audit()
        self._again.audit()
        cached = {*self._once.keys(), *self._again.keys()}
        if len(cached) != len(self._once) + len(self._again):
            raise InvariantError("a key is both in T1 and in T2")
        ghosts = [*self._once_ghosts.keys(), *self._again_ghosts.keys(), *self._returning.keys()]
        if len(set(ghosts)) != len(ghosts) or cached & set(ghosts):
            raise InvariantError("a ghost is cached, or in two lists")
        if not 0 <= self._target <= self.capacity:
            raise InvariantError(f"the target of T1 is {self._target}, expected 0 to {self.capacity}")

    def _trim(self) -> None:
        """The paper trims before the eviction and spares its victim; after the insertion the same ghosts are left."""
        while len(self._once_ghosts) and len(self._once) + len(self._once_ghosts) > self.capacity:
            self._once_ghosts.drop_oldest()
        held = len(self._once) + len(self._again) + len(self._once_ghosts)
        while len(self._again_ghosts) and held + len(self._again_ghosts) > 2 * self.capacity:
            self._again_ghosts.drop_oldest()

    def _queue_of(self, key: int) -> Queue:
        return self._again if key in self._again else self._once
