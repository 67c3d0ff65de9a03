"""A random victim: the control that a policy must beat. No history at all."""

from __future__ import annotations

from typing import Any

from pagedlab.core.errors import InvariantError, OutOfBlocks
from pagedlab.core.mixing import uniform
from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Eviction, Retention


@EVICTIONS.register("random")
class Random(Eviction):
    """Every offered block is as likely as any other; the n-th draw depends on the seed and n alone. O(1)."""

    def __init__(self, capacity: int, settings: Any = None, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._seed = seed
        self._draws = 0
        self._keys: list[int] = []  # the offered, in no order
        self._places: dict[int, int] = {}

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        """Nothing to remember."""

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        """Nothing to remember."""

    def offer(self, key: int) -> None:
        self._places[key] = len(self._keys)
        self._keys.append(key)

    def withdraw(self, key: int) -> None:
        """The last one takes the place of the one that leaves."""
        place = self._places.pop(key)
        last = self._keys.pop()
        if last != key:
            self._keys[place] = last
            self._places[last] = place

    def forget(self, key: int) -> None:
        if key in self._places:
            self.withdraw(key)

    @property
    def num_offered(self) -> int:
        return len(self._keys)

    def evict(self) -> int:
        key = self.peek()
        self._draws += 1
        self.withdraw(key)
        return key

    def peek(self) -> int:
        if not self._keys:
            raise OutOfBlocks("no block may be evicted")
        return self._keys[int(uniform(self._seed, self._draws) * len(self._keys))]

    def audit(self) -> None:
        if self._places != {key: place for place, key in enumerate(self._keys)}:
            raise InvariantError("the places of the offered blocks are not where they are")
