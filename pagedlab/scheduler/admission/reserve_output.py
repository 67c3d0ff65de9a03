"""Admit what can run to its end without anybody being preempted (TGI; TensorRT-LLM's GUARANTEED_NO_EVICT)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from pagedlab.core.request import Sequence
from pagedlab.core.wakeup import never
from pagedlab.scheduler.admission.base import ADMISSIONS, Admission


@ADMISSIONS.register("reserve_output")
class ReserveOutput(Admission):
    """While the blocks for prompt and max_tokens of all that run, and of the candidate, are no more than there are.

    Blocks are still taken on demand, so this reserves nothing: it counts. Where requests end before their max_tokens,
    or share prefixes, blocks lie free that an admission on demand would use.
    """

    overcommits = False
    needs_paging = True

    def allows(self, seq: Sequence, running: Seq[Sequence], freed: int = 0) -> bool:
        most = sum(self.allocator.max_blocks(other.request) for other in (*running, seq))
        return most <= self.allocator.max_run and self.allocator.can_admit(seq, -freed)

    next_wakeup = never
