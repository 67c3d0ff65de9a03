"""The latest arrived first (PagedAttention, SOSP 2023, section 4.5: the earliest requests are served first)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from pagedlab.core.request import Sequence
from pagedlab.preemption.victim.base import VICTIMS, Victim


@VICTIMS.register("last_arrived")
class LastArrived(Victim):
    """Ties go to the higher id. The earliest running request is never preempted while another runs: it always ends."""

    def choose(self, running: Seq[Sequence]) -> Sequence:
        return max(running, key=lambda seq: (seq.request.arrival_s, seq.id))
