"""What the policies share that give each block a rank: the victim is the lowest-ranked that may go."""

from __future__ import annotations

from typing import Any

from pagedlab.core.errors import OutOfBlocks
from pagedlab.eviction.base import Eviction
from pagedlab.eviction.lowest_first import LowestFirst


class RankedEviction(Eviction):
    """An option sets `self._ranks[key]` when it is inserted, and again when that changes; it is forgotten here.

    A rank is a tuple of numbers that ends with a stamp of `_tick`: what is equal otherwise goes in the order of its
    last use. Amortised O(log n).
    """

    def __init__(self, capacity: int, settings: Any = None, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._ranks = LowestFirst()
        self._clock = 0

    def _tick(self) -> int:
        """The time, in events: a number higher than any before."""
        self._clock += 1
        return self._clock

    def offer(self, key: int) -> None:
        self._ranks.offer(key)

    def withdraw(self, key: int) -> None:
        self._ranks.withdraw(key)

    def forget(self, key: int) -> None:
        self._ranks.remove(key)

    @property
    def num_offered(self) -> int:
        return self._ranks.num_offered

    def evict(self) -> int:
        key = self.peek()
        self.forget(key)
        return key

    def peek(self) -> int:
        key = self._ranks.first()
        if key is None:
            raise OutOfBlocks("no block may be evicted")
        return key

    def audit(self) -> None:
        self._ranks.audit()
