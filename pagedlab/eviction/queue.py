"""Keys in an order, some of which may not be taken: the earliest of the others, exactly and without a search."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set
from heapq import heapify, heappop, heappush

from pagedlab.core.errors import InvariantError


class Queue:
    """Keys in the order of their last `push`; `first` is the earliest of those that are offered.

    A key that is met at the front while it may not be taken is set aside with its place (a stamp), so that it is met
    once and not at every call. Where it is offered again before it is pushed again, it waits in a heap by that place,
    and `first` takes the earlier of the heap's and the front. So all is amortised O(1), but for those that come back:
    O(log of their number).
    """

    __slots__ = ("_aside", "_clock", "_heaped", "_offered", "_order", "_returned")

    def __init__(self) -> None:
        self._clock = 0
        self._order: OrderedDict[int, int] = OrderedDict()  # key -> its place
        self._aside: dict[int, int] = {}  # the same of keys that were met at the front
        self._offered: set[int] = set()
        self._returned: list[tuple[int, int]] = []  # heap of (place, key) of those set aside and offered again
        self._heaped: dict[int, int] = {}  # key -> place, of what is in the heap: no key is in it twice with one place

    def __len__(self) -> int:
        return len(self._order) + len(self._aside)

    def __contains__(self, key: object) -> bool:
        return key in self._order or key in self._aside

    @property
    def num_offered(self) -> int:
        return len(self._offered)

    def is_offered(self, key: int) -> bool:
        return key in self._offered

    def push(self, key: int) -> None:
        """Put a key at the end, wherever it was; it stays offered if it was."""
        self._clock += 1
        if self._aside:
            self._aside.pop(key, None)
        self._order[key] = self._clock
        self._order.move_to_end(key)

    def offer(self, key: int) -> None:
        self._offered.add(key)
        if key in self._aside:
            self._return(key)

    def withdraw(self, key: int) -> None:
        self._offered.discard(key)

    def remove(self, key: int) -> None:
        """Take a key out, offered or not."""
        self._offered.discard(key)
        if self._order.pop(key, None) is None:
            del self._aside[key]

    def move(self, key: int, other: Queue) -> None:
        """Take a key out and put it at the end of another queue, where it is offered if it was here."""
        offered = key in self._offered
        self.remove(key)
        other.push(key)
        if offered:
            other.offer(key)

    def take(self, key: int) -> int:
        """Take a key out that may come back by `refill`: its place. It stays offered if it was."""
        place = self._order.pop(key, None)
        return self._aside.pop(key) if place is None else place

    def refill(self, order: OrderedDict[int, int], others: dict[int, int]) -> None:
        """Put keys back with their places: `order` has them in order, `others` in none. To be called when `first` has
        found nothing, so that all else has been set aside."""
        if self._order:
            raise InvariantError("a queue is refilled that has keys to go through")
        self._order = order
        for key, place in others.items():
            self._aside[key] = place
            if key in self._offered:
                self._return(key)

    def first(self) -> int | None:
        """The earliest offered key; None where none is offered, and then everything has been set aside."""
        returned = self._returned
        while returned:
            place, key = returned[0]
            if self._aside.get(key) == place and key in self._offered:
                break
            heappop(returned)
            if self._heaped.get(key) == place:
                del self._heaped[key]
        while self._order:
            front = next(iter(self._order))
            if returned and returned[0][0] < self._order[front]:
                break
            if front in self._offered:
                return front
            self._aside[front] = self._order.pop(front)
        return returned[0][1] if returned else None

    def keys(self) -> list[int]:
        """All keys in order, O(n log n)."""
        places = {**self._order, **self._aside}
        return sorted(places, key=places.__getitem__)

    def audit(self, taken: Set[int] = frozenset()) -> None:
        """Raise InvariantError unless the parts fit together. taken: keys that may come back."""
        if both := self._order.keys() & self._aside.keys():
            raise InvariantError(f"keys {sorted(both)} are both in the queue and set aside")
        if unknown := self._offered - self._order.keys() - self._aside.keys() - taken:
            raise InvariantError(f"keys {sorted(unknown)} are offered and not in the queue")
        places = list(self._order.values())
        if places != sorted(set(places)):
            raise InvariantError("the queue is not in the order of its places")
        if lost := {key for key in self._offered & self._aside.keys() if self._heaped.get(key) != self._aside[key]}:
            raise InvariantError(f"keys {sorted(lost)} are offered and would never be met")

    def _return(self, key: int) -> None:
        """A key that was set aside may be taken again."""
        place = self._aside[key]
        if self._heaped.get(key) == place:
            return
        self._heaped[key] = place
        heappush(self._returned, (place, key))
        if len(self._returned) > 2 * len(self._aside) + 64:  # half of it is there for no reason any more
            self._rebuild()

    def _rebuild(self) -> None:
        self._heaped = {key: place for key, place in self._aside.items() if key in self._offered}
        self._returned = [(place, key) for key, place in self._heaped.items()]
        heapify(self._returned)
