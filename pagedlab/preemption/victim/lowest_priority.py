"""The least urgent first (vLLM's policy `priority`)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from pagedlab.core.request import Sequence
from pagedlab.preemption.victim.base import VICTIMS, Victim


@VICTIMS.register("lowest_priority")
class LowestPriority(Victim):
    """The highest priority number; ties go to the latest arrived. The most urgent that runs, of those the earliest, is
    never preempted while another runs: it always ends."""

    def choose(self, running: Seq[Sequence]) -> Sequence:
        return max(running, key=lambda seq: (seq.request.priority, seq.request.arrival_s, seq.id))
