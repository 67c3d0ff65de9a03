"""Chunked prefill mixed with decode under a token budget (Sarathi-Serve, OSDI 2024; vLLM V1)."""

from __future__ import annotations

from pagedlab.core.plan import Plan
from pagedlab.core.wakeup import never
from pagedlab.scheduler.batching.base import BATCHINGS, Batching
from pagedlab.scheduler.scheduler import Scheduler


@BATCHINGS.register("chunked")
class Chunked(Batching):
    """All decodes first, one token each; what is left of the budget goes to prompts, begun ones before new ones.

    With more decodes than budget the latest admitted wait for a free place.
    """

    def fill(self, plan: Plan, scheduler: Scheduler) -> None:
        scheduler.decode_all(plan, self.max_tokens)
        for seq in scheduler.prefilling():
            if self.left(plan) == 0:
                break
            scheduler.prefill(plan, seq, self.left(plan))
        while self.left(plan) > 0 and (new := scheduler.admit_next(plan)) is not None:
            scheduler.prefill(plan, new, self.left(plan))

    next_wakeup = never
