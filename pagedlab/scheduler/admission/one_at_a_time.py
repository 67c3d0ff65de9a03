"""No batching across requests: the baseline against which batching is measured."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from pagedlab.core.request import Sequence
from pagedlab.core.wakeup import never
from pagedlab.scheduler.admission.base import ADMISSIONS, Admission


@ADMISSIONS.register("one_at_a_time")
class OneAtATime(Admission):
    """Admits only into an empty pool."""

    refuses_for_memory = False
    overcommits = False

    def allows(self, seq: Sequence, running: Seq[Sequence], freed: int = 0) -> bool:
        return not running and self.allocator.can_admit(seq, -freed)

    next_wakeup = never
