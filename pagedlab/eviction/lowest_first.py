"""Keys with ranks, some of which may not be taken: the lowest-ranked of the others, from a heap mended lazily."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from pagedlab.core.errors import InvariantError

# Ranks of one policy have one shape; their last number, a stamp, makes them differ.
Rank: TypeAlias = tuple[float, ...]


class LowestFirst:
    """`first` is the offered key of the lowest rank.

    The heap holds for each offered key one entry that counts, of a rank that is its own or lower. So a rank that rises
    (the common case: a use) costs nothing until its key is met at the top; one that falls is pushed at once. Entries
    that count no longer are dropped when met, or all together when they are half of the heap: amortised O(log n).
    """

    __slots__ = ("_heap", "_heaped", "_offered", "_ranks")

    def __init__(self) -> None:
        self._ranks: dict[int, Rank] = {}
        self._offered: set[int] = set()
        self._heap: list[tuple[Rank, int]] = []
        self._heaped: dict[int, Rank] = {}  # key -> the rank of its entry that counts

    def __contains__(self, key: object) -> bool:
        return key in self._ranks

    def __getitem__(self, key: int) -> Rank:
        return self._ranks[key]

    def __setitem__(self, key: int, rank: Rank) -> None:
        self._ranks[key] = rank
        if key in self._offered and rank < self._heaped[key]:
            self._push(key, rank)

    @property
    def num_offered(self) -> int:
        return len(self._offered)

    def offer(self, key: int) -> None:
        self._offered.add(key)
        rank, heaped = self._ranks[key], self._heaped.get(key)
        if heaped is None or rank < heaped:
            self._push(key, rank)

    def withdraw(self, key: int) -> None:
        self._offered.discard(key)

    def remove(self, key: int) -> None:
        """Take a key out, offered or not."""
        del self._ranks[key]
        self._offered.discard(key)
        self._heaped.pop(key, None)

    def first(self) -> int | None:
        """The offered key of the lowest rank, None where none is offered."""
        heap = self._heap
        while heap:
            rank, key = heap[0]
            if self._heaped.get(key) != rank:
                heappop(heap)
            elif key not in self._offered:
                heappop(heap)
                del self._heaped[key]
            elif rank != (now := self._ranks[key]):
                heapreplace(heap, (now, key))
                self._heaped[key] = now
            else:
                return key
        return None

    def audit(self) -> None:
        """Raise InvariantError unless the parts fit together."""
        if unknown := self._offered - self._ranks.keys():
            raise InvariantError(f"keys {sorted(unknown)} are offered and have no rank")
        entries = set(self._heap)
        for key in self._offered:
            heaped = self._heaped.get(key)
            if heaped is None or (heaped, key) not in entries or heaped > self._ranks[key]:
                raise InvariantError(f"key {key} of rank {self._ranks[key]} is in the heap with {heaped}")

    def _push(self, key: int, rank: Rank) -> None:
        self._heaped[key] = rank
        heappush(self._heap, (rank, key))
        if len(self._heap) > 2 * len(self._heaped) + 64:
            self._heap = [(rank, key) for key, rank in self._heaped.items()]
            heapify(self._heap)
