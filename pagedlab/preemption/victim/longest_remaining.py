"""The one that would hold its memory longest: an oracle."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from pagedlab.allocator.oracle import oracle_output_tokens
from pagedlab.core.request import Sequence
from pagedlab.preemption.victim.base import VICTIMS, Victim


@VICTIMS.register("longest_remaining")
class LongestRemaining(Victim):
    """The most tokens still to be generated; ties go to the latest arrived. The one with the least left always ends.
    A long request can be preempted again and again by a stream of short ones."""

    needs_true_length = True

    def choose(self, running: Seq[Sequence]) -> Sequence:
        return max(
            running, key=lambda seq: (oracle_output_tokens(seq.request) - seq.generated, seq.request.arrival_s, seq.id)
        )
