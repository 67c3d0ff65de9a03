"""The largest holder first: the fewest preemptions for the blocks they free."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from pagedlab.core.request import Sequence
from pagedlab.preemption.victim.base import VICTIMS, Victim


@VICTIMS.register("most_blocks")
class MostBlocks(Victim):
    """Ties go to the latest arrived. A long request can be preempted again and again by a stream of short ones."""

    def choose(self, running: Seq[Sequence]) -> Sequence:
        return max(running, key=lambda seq: (self.allocator.held_by(seq), seq.request.arrival_s, seq.id))
