"""The shortest output first (SGLang's `retract_decode`)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from pagedlab.core.request import Sequence
from pagedlab.preemption.victim.base import VICTIMS, Victim


@VICTIMS.register("shortest_output")
class ShortestOutput(Victim):
    """Least generated first, of equals the longest prompt, then the latest arrived: what has generated much keeps its
    memory, and the blocks freed are many. One just admitted can be preempted again and again by those before it."""

    def choose(self, running: Seq[Sequence]) -> Sequence:
        return max(running, key=lambda seq: (-seq.generated, seq.request.prompt_tokens, seq.request.arrival_s, seq.id))
