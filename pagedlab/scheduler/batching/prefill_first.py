"""Whole prompts first, in steps of their own, then decode (vLLM 2023)."""

from __future__ import annotations

from functools import partial

from pagedlab.core.plan import Entry, Plan
from pagedlab.core.request import Sequence
from pagedlab.core.wakeup import never
from pagedlab.scheduler.batching.base import BATCHINGS, Batching
from pagedlab.scheduler.scheduler import Scheduler


@BATCHINGS.register("prefill_first")
class PrefillFirst(Batching):
    """While somebody can be admitted a step holds prompts only, as many whole ones as the token limit allows.

    A prompt longer than the limit is fed over several such steps (vLLM refuses that configuration). Decode steps
    hold one token of every running sequence; with more of them than the limit the latest admitted wait. Who was swapped
    out comes back in one of these, before any new prompt (vLLM 2023).
    """

    def fill(self, plan: Plan, scheduler: Scheduler) -> None:
        for seq in scheduler.prefilling():
            if self.left(plan) == 0:
                break
            scheduler.prefill(plan, seq, self.left(plan))
        while (new := scheduler.admit_next(plan, partial(self._fits, scheduler, self.left(plan)))) is not None:
            scheduler.prefill(plan, new, self.left(plan))
        if plan.batch:
            return
        scheduler.decode_all(plan, self.max_tokens)
        while self.left(plan) > 0 and (back := scheduler.admit_next(plan, self._may_return)) is not None:
            scheduler.prefill(plan, back, self.left(plan))

    def enter(self, entry: Entry, scheduler: Scheduler) -> None:
        most = self.max_tokens
        for seq in scheduler.prefilling():
            if entry.total_tokens < most:
                scheduler.feed(entry, seq, most - entry.total_tokens)
        while scheduler.enter_next(entry, most - entry.total_tokens, whole=entry.total_tokens > 0):
            pass

    next_wakeup = never

    def _may_return(self, seq: Sequence) -> bool:
        """In a step of decodes."""
        return seq.swapped

    def _fits(self, scheduler: Scheduler, budget: int, seq: Sequence) -> bool:
        if seq.swapped:
            return False
        return seq.to_compute - scheduler.allocator.cached_tokens(seq) <= budget or budget == self.max_tokens
