"""Order: which waiting request is next."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from typing import Any

from pagedlab.core.registry import Registry
from pagedlab.core.request import Sequence


class Order(ABC):
    """The queue of waiting sequences, preempted ones included. `peek` and `pop` agree; `remove` is for aborts.

    Keys are fixed while a sequence waits, ties go to the lower request id: the order is total and repeatable.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self._heap: list[tuple[Any, int, Sequence]] = []

    @abstractmethod
    def key(self, seq: Sequence) -> Any:
        """Smaller is sooner."""

    def next_wakeup(self, now: float) -> float:
        """Until when (seconds) it decides the same over and over, if nobody arrives, is admitted or ends, and free
        blocks only become fewer: steps may be skipped until then. `now`, the default, is never."""
        return now

    def push(self, seq: Sequence) -> None:
        heapq.heappush(self._heap, (self.key(seq), seq.id, seq))

    def peek(self) -> Sequence | None:
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Sequence:
        return heapq.heappop(self._heap)[2]

    def remove(self, seq: Sequence) -> None:
        self._heap = [entry for entry in self._heap if entry[2] is not seq]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def sequences(self) -> list[Sequence]:
        return [seq for _, _, seq in self._heap]


ORDERS: Registry[type[Order]] = Registry("scheduler.order", "pagedlab.scheduler.order", ("fcfs", "random"))
