"""Scheduling at each iteration: whole prompts beside decodes (Orca, Yu et al., OSDI 2022)."""

from __future__ import annotations

from functools import partial

from pagedlab.core.plan import Plan
from pagedlab.core.request import Sequence
from pagedlab.core.wakeup import never
from pagedlab.scheduler.batching.base import BATCHINGS, Batching
from pagedlab.scheduler.scheduler import Scheduler


@BATCHINGS.register("iteration")
class Iteration(Batching):
    """All decodes, one token each, and as many whole prompts as the rest of the token limit allows.

    Nothing is chunked: a prompt that does not fit beside the decodes waits until it does, and one longer than the limit
    is fed over several steps, each with what the decodes leave (Orca limits sequences, and knows no token limit).
    """

    def fill(self, plan: Plan, scheduler: Scheduler) -> None:
        scheduler.decode_all(plan, self.max_tokens)
        for seq in scheduler.prefilling():
            if self.left(plan) == 0:
                break
            scheduler.prefill(plan, seq, self.left(plan))
        while (left := self.left(plan)) > 0:
            new = scheduler.admit_next(plan, partial(self._fits, scheduler, left))
            if new is None:
                break
            scheduler.prefill(plan, new, self.left(plan))

    next_wakeup = never

    def _fits(self, scheduler: Scheduler, budget: int, seq: Sequence) -> bool:
        whole = sum(part.to_compute for part in seq.feeding) - scheduler.allocator.cached_tokens(seq)
        return whole <= budget or whole > self.max_tokens
