"""Admit while the blocks needed now are free, less a watermark (vLLM's block manager)."""

from __future__ import annotations

from math import inf

from pagedlab.core.request import Sequence
from pagedlab.scheduler.admission.base import ADMISSIONS, Admission


@ADMISSIONS.register("on_demand")
class OnDemand(Admission):
    """Leaves watermark x N blocks free for the growth of those that run; the first into an empty pool may use all."""

    def allows(self, seq: Sequence, pool_is_empty: bool) -> bool:
        return self.allocator.can_admit(seq, keep_free=0 if pool_is_empty else self.watermark_blocks)

    def next_wakeup(self, now: float) -> float:
        return inf
