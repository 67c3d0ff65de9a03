"""What the policies share in which a block's rank changes by itself when a time in seconds comes."""

from __future__ import annotations

from abc import abstractmethod
from heapq import heappop, heappush
from typing import Any

from pagedlab.core.errors import InvariantError
from pagedlab.eviction.ranked import RankedEviction


class ExpiringEviction(RankedEviction):
    """`_expire_at` sets the time for a key, `_expired` is called for it before the first victim is chosen after it."""

    def __init__(self, capacity: int, settings: Any = None, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._due: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []  # of (time, key); it counts where `_due` says the same

    @abstractmethod
    def _expired(self, key: int) -> None:
        """The time of `key` has come: set its new rank."""

    def _expire_at(self, key: int, seconds: float | None) -> None:
        """None: never, also where a time was set before."""
        if seconds is None:
            self._due.pop(key, None)
        elif self._due.get(key) != seconds:
            self._due[key] = seconds
            heappush(self._heap, (seconds, key))
            if len(self._heap) > 2 * len(self._due) + 64:
                self._heap = sorted((due, key) for key, due in self._due.items())

    def forget(self, key: int) -> None:
        super().forget(key)
        self._due.pop(key, None)

    def peek(self) -> int:
        while self._heap and self._heap[0][0] <= self.now_s:
            seconds, key = heappop(self._heap)
            if self._due.get(key) == seconds:
                del self._due[key]
                self._expired(key)
        return super().peek()

    def audit(self) -> None:
        super().audit()
        if lost := set(self._due.items()) - {(key, due) for due, key in self._heap}:
            raise InvariantError(f"(key, time) {sorted(lost)} would never come due")
        if unknown := [key for key in self._due if key not in self._ranks]:
            raise InvariantError(f"keys {unknown} are to expire and not cached")
