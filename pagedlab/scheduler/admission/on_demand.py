"""Admit while the blocks needed now are free, less a watermark (vLLM's block manager)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from pagedlab.allocator.base import Allocator
from pagedlab.core.request import Sequence
from pagedlab.core.wakeup import never
from pagedlab.scheduler.admission.base import ADMISSIONS, Admission
from pagedlab.settings import SchedulerSettings


@ADMISSIONS.register("on_demand")
class OnDemand(Admission):
    """Leaves watermark x N blocks free for the growth of those that run; the first into an empty pool may use all."""

    def __init__(self, settings: SchedulerSettings, allocator: Allocator):
        super().__init__(settings, allocator)
        self.watermark_blocks = int(settings.watermark * allocator.pool.num_blocks)

    def allows(self, seq: Sequence, running: Seq[Sequence], freed: int = 0) -> bool:
        keep_free = self.watermark_blocks if running else 0
        return self.allocator.can_admit(seq, keep_free - freed)

    next_wakeup = never
