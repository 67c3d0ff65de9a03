"""Recomputation (PagedAttention, SOSP 2023, section 4.5; the only way of vLLM V1)."""

from __future__ import annotations

from pagedlab.core.request import Sequence
from pagedlab.preemption.base import PREEMPTIONS, Preemption


@PREEMPTIONS.register("recompute")
class Recompute(Preemption):
    """Frees all blocks. When it runs again, prompt and generated tokens are fed as one longer prompt."""

    def preempt(self, seq: Sequence) -> tuple[int, int]:
        lost, seq.computed = seq.computed, 0
        return self.allocator.release(seq.id), lost
