"""Order: which waiting request is next."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from typing import Any

from pagedlab.allocator.base import Allocator
from pagedlab.core.registry import Registry
from pagedlab.core.request import Sequence
from pagedlab.settings import SchedulerSettings


class Order(ABC):
    """The queue of waiting sequences, preempted ones included. `peek` and `pop` agree; `remove` is for aborts.

    Keys are fixed while a sequence waits, but in `time`; ties go to the lower request id: the order is total and
    repeatable. An order that lets running requests yield to waiting ones (`preempts`) ranks those by the same key. It
    must not get better while they run, or two of them would take turns for ever.
    """

    needs_true_length = False
    """Whether it asks a predictor, which must know how long outputs will be."""
    preempts = False
    """Whether `scheduler.preemptive` makes sense of it."""
    watches = False
    """Whether it goes by what running requests are fed and generate, of which `served` tells it: they are then looked
    at in every step, also where they could advance together."""
    needs_prefix_cache = False
    """Whether it goes by what is cached."""
    starves = False
    """Whether a request can be overtaken without end, as long as others come. The docstring says why."""

    def __init__(self, settings: SchedulerSettings, allocator: Allocator, seed: int):
        self.settings = settings
        self.allocator = allocator
        self.seed = seed
        self._heap: list[tuple[Any, int, Sequence]] = []

    @abstractmethod
    def key(self, seq: Sequence) -> Any:
        """Smaller is sooner."""

    def next_wakeup(self, now: float) -> float:
        """Until when (seconds) it decides the same over and over, if nobody arrives, is admitted or ends, and free
        blocks only become fewer: steps may be skipped until then. `now`, the default, is never."""
        return now

    def rank(self, seq: Sequence) -> Any:
        """Of a running or waiting request: smaller is sooner."""
        return (self.key(seq), seq.id)

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

    # ---- what an order may want to know of those that run -----------------------------------------------------

    def time(self, now_s: float) -> None:  # noqa: B027 - of use to those that age or look again
        """A step is planned now_s seconds after the start. Here, and here alone, keys of waiting sequences may change,
        by `_rekey`."""

    def served(self, seq: Sequence, fed: int, generated: int) -> None:  # noqa: B027
        """A running request was fed so many tokens for the first time, or its sequences generated so many."""

    def ended(self, seq: Sequence) -> None:  # noqa: B027
        """A request that waited or ran will not come back."""

    def _rekey(self) -> None:
        self._heap = [(self.key(seq), seq.id, seq) for _, _, seq in self._heap]
        heapq.heapify(self._heap)


ORDERS: Registry[type[Order]] = Registry(
    "scheduler.order",
    "pagedlab.scheduler.order",
    ("fcfs", "priority", "sjf", "srtf", "lpm", "mlfq", "vtc", "random"),
)
