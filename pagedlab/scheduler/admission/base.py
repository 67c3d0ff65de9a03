"""Admission: whether the next waiting sequence may have its blocks now."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pagedlab.allocator.base import Allocator
from pagedlab.core.registry import Registry
from pagedlab.core.request import Sequence


class Admission(ABC):
    """Asked once for each candidate. Never says no to a candidate that fits an empty pool: it would wait for ever."""

    refuses_for_memory = True
    """Whether a refusal means that memory is short: free slots then count as external."""

    def __init__(self, allocator: Allocator, watermark: float):
        self.allocator = allocator
        self.watermark_blocks = int(watermark * allocator.pool.num_blocks)

    @abstractmethod
    def allows(self, seq: Sequence, pool_is_empty: bool) -> bool: ...

    def next_wakeup(self, now: float) -> float:
        """Until when (seconds) it decides the same over and over, if nobody arrives, is admitted or ends, and free
        blocks only become fewer: steps may be skipped until then. `now`, the default, is never."""
        return now


ADMISSIONS: Registry[type[Admission]] = Registry(
    "scheduler.admission", "pagedlab.scheduler.admission", ("on_demand", "one_at_a_time")
)
