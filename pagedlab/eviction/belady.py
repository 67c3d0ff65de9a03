"""Belady's MIN (IBM Systems Journal 1966): the block whose next use is farthest away. An oracle, for offline replay."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Retention
from pagedlab.eviction.ranked import RankedEviction


@EVICTIONS.register("belady")
class Belady(RankedEviction):
    """The most hits that are possible in a flat cache that takes in everything. Each hit and each miss uses up the next
    of the references that were foretold for its key; where they come in another order than foretold, by the order of
    a scheduler, the choice is no longer optimal. O(log n).
    """

    needs_future = True

    def __init__(self, capacity: int, settings: Any = None, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._uses: dict[int, list[int]] = {}  # key -> the times of its uses to come, the next one last

    def foretell(self, references: Iterable[int]) -> None:
        """All keys that will be asked for, in order."""
        for time, key in enumerate(references):
            self._uses.setdefault(key, []).append(time)
        for uses in self._uses.values():
            uses.reverse()

    def next_use(self, key: int) -> float:
        """The time of the key's next use; infinity where there is none."""
        uses = self._uses.get(key)
        return uses[-1] if uses else math.inf

    def miss(self, key: int) -> None:
        self._pass(key)

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self._ranks[key] = (-self.next_use(key), self._tick())

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        self._pass(key)
        self._ranks[key] = (-self.next_use(key), self._tick())

    def _pass(self, key: int) -> None:
        """A use of the key has come."""
        if uses := self._uses.get(key):
            uses.pop()
