"""Recomputation (PagedAttention, SOSP 2023, section 4.5; the only way of vLLM V1)."""

from __future__ import annotations

from pagedlab.core.request import Sequence
from pagedlab.preemption.base import PREEMPTIONS, Preemption


@PREEMPTIONS.register("recompute")
class Recompute(Preemption):
    """Frees all blocks. When it runs again, prompt and generated tokens are fed as one longer prompt.

    With several outputs the prompt is fed once, then each of them what it has generated, also what beams shared.
    """

    def preempt(self, seq: Sequence) -> tuple[int, int]:
        lost = seq.feeding[0].computed + sum(part.computed - seq.computed for part in seq.feeding[1:])
        for part in (seq, *seq.feeding):
            part.computed = 0
        return sum(self.allocator.release(part.key) for part in seq.parts), lost
