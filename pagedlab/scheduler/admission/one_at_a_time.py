"""No batching across requests: the baseline against which batching is measured."""

from __future__ import annotations

from math import inf

from pagedlab.core.request import Sequence
from pagedlab.scheduler.admission.base import ADMISSIONS, Admission


@ADMISSIONS.register("one_at_a_time")
class OneAtATime(Admission):
    """Admits only into an empty pool."""

    refuses_for_memory = False

    def allows(self, seq: Sequence, pool_is_empty: bool) -> bool:
        return pool_is_empty and self.allocator.can_admit(seq)

    def next_wakeup(self, now: float) -> float:
        return inf
