"""A whole batch until its longest request ends (FasterTransformer; the baseline of Orca, OSDI 2022)."""

from __future__ import annotations

from math import inf

from pagedlab.core.plan import Entry, Plan
from pagedlab.core.request import Sequence
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.batching.prefill_first import PrefillFirst
from pagedlab.scheduler.scheduler import Scheduler


@BATCHINGS.register("static")
class Static(PrefillFirst):
    """As prefill_first, but from its first decode step on a batch lets nobody in before all of it have ended.

    Those that have ended do not feed padding, and give their blocks back at once: both would only make it worse. One
    that is preempted waits for the next batch, also where it was swapped out.
    """

    answers_together = True

    def __init__(self, max_tokens: int):
        super().__init__(max_tokens)
        self._open = True

    @property
    def closed(self) -> bool:
        return not self._open

    def fill(self, plan: Plan, scheduler: Scheduler) -> None:
        self._open = self._open or not scheduler.running
        super().fill(plan, scheduler)
        self._open = self._open and bool(plan.admitted or scheduler.prefilling())

    def enter(self, entry: Entry, scheduler: Scheduler) -> None:
        """Never: whoever enters opens or closes the batch."""

    def next_wakeup(self, now: float) -> float:
        """In an open batch the next step may be the one that closes it; a closed one stays so while anybody runs."""
        return now if self._open else inf

    def _may_return(self, seq: Sequence) -> bool:
        return self._open and super()._may_return(seq)

    def _fits(self, scheduler: Scheduler, budget: int, seq: Sequence) -> bool:
        return self._open and super()._fits(scheduler, budget, seq)
