"""SIEVE (Zhang et al., NSDI 2024): a queue that nothing moves in, and a hand that passes by what was used."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from pagedlab.core.errors import InvariantError, OutOfBlocks
from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Eviction, Retention
from pagedlab.eviction.queue import Queue


@EVICTIONS.register("sieve")
class Sieve(Eviction):
    """The hand goes from the oldest block to the newest and begins again. A block that was used since it last came by
    is passed, once; one that was not is the victim. New content enters at the end, which the hand reaches last.

    What the hand meets while it may not go is neither passed nor changed: the hand comes to it when it may go again,
    in its place if the lap is not over, else in the next lap. Amortised O(1): each passing was paid for by a use.
    """

    def __init__(self, capacity: int, settings: Any = None, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._ahead = Queue()  # of the hand, in order of insertion
        self._behind: OrderedDict[int, int] = OrderedDict()  # passed in this lap, with their places in that order
        self._late: dict[int, int] = {}  # the same of those that were passed later than their place says
        self._used: set[int] = set()

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self._ahead.push(key)

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        self._used.add(key)

    def offer(self, key: int) -> None:
        self._ahead.offer(key)

    def withdraw(self, key: int) -> None:
        self._ahead.withdraw(key)

    def forget(self, key: int) -> None:
        self._used.discard(key)
        if self._behind.pop(key, None) is None and self._late.pop(key, None) is None:
            self._ahead.remove(key)
        else:
            self._ahead.withdraw(key)

    @property
    def num_offered(self) -> int:
        return self._ahead.num_offered

    def evict(self) -> int:
        if not self.num_offered:
            raise OutOfBlocks("no block may be evicted")
        while (key := self._met()) in self._used:
            self._used.remove(key)
            self._pass(key)
        self._ahead.remove(key)
        if self.num_offered:
            self._met()  # the lap ends here, not at the next call: what is inserted between is not of the old one
        return key

    def audit(self) -> None:
        passed = self._behind.keys() | self._late.keys()
        self._ahead.audit(taken=passed)
        if list(self._behind.values()) != sorted(self._behind.values()):
            raise InvariantError("what the hand has passed is not in order")
        if not self._used <= passed | set(self._ahead.keys()):
            raise InvariantError("uses are noted of what is not cached")

    def _pass(self, key: int) -> None:
        place = self._ahead.take(key)
        in_order = not self._behind or next(reversed(self._behind.values())) < place
        (self._behind if in_order else self._late)[key] = place

    def _met(self) -> int:
        """The block that the hand comes to next. At least one is offered."""
        key = self._ahead.first()
        if key is None:
            self._ahead.refill(self._behind, self._late)
            self._behind, self._late = OrderedDict(), {}
            key = self._ahead.first()
        if key is None:
            raise InvariantError("blocks are offered and the hand meets none")
        return key
