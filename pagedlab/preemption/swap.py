"""Swapping (PagedAttention, SOSP 2023, section 4.5; vLLM V0 for requests of several sequences)."""

from __future__ import annotations

from collections.abc import Mapping

from pagedlab.core.request import Sequence
from pagedlab.core.wakeup import never
from pagedlab.preemption.base import PREEMPTIONS, Preemption, Taken


@PREEMPTIONS.register("swap")
class Swap(Preemption):
    """Copies all that the victim has computed to host memory, and back before it runs again: no token is computed
    twice. Without room on the host it is recomputed, which is counted as a fallback.
    """

    needs_host = True

    def preempt(self, seq: Sequence, copied: Mapping[int, int]) -> Taken:
        return self.swap(seq, copied) or Taken(*self.recompute(seq), fallback=True)

    next_wakeup = never
