"""Swapping (PagedAttention, SOSP 2023, section 4.5; vLLM V0 for requests of several sequences)."""

from __future__ import annotations

from collections.abc import Mapping

from pagedlab.core.request import Sequence
from pagedlab.preemption.base import PREEMPTIONS, Preemption, Taken


@PREEMPTIONS.register("swap")
class Swap(Preemption):
    """Copies all that the victim has computed to host memory, and back before it runs again: no token is computed
    twice. Without room on the host it is recomputed, which is counted as a fallback.

    A victim that has computed nothing has nothing to be copied.
    """

    needs_host = True

    def preempt(self, seq: Sequence, copied: Mapping[int, int]) -> Taken:
        computed = any(part.computed for part in seq.feeding)
        if computed and (taken := self.swap(seq, copied)) is not None:
            return taken
        return Taken(*self.recompute(seq), fallback=computed)
