"""Recomputation (PagedAttention, SOSP 2023, section 4.5; the only way of vLLM V1)."""

from __future__ import annotations

from collections.abc import Mapping

from pagedlab.core.request import Sequence
from pagedlab.core.wakeup import never
from pagedlab.preemption.base import PREEMPTIONS, Preemption, Taken


@PREEMPTIONS.register("recompute")
class Recompute(Preemption):
    """Frees all blocks. When it runs again, prompt and generated tokens are fed as one longer prompt.

    With several outputs the prompt is fed once, then each of them what it has generated, also what beams shared.
    """

    def preempt(self, seq: Sequence, copied: Mapping[int, int]) -> Taken:
        return Taken(*self.recompute(seq))

    next_wakeup = never
