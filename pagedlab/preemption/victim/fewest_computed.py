"""Whoever loses the least: the fewest computed tokens first."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from pagedlab.core.request import Sequence
from pagedlab.preemption.victim.base import VICTIMS, Victim


@VICTIMS.register("fewest_computed")
class FewestComputed(Victim):
    """Computed tokens are what a preemption throws away; ties go to the latest arrived. Those just admitted yield
    to those that have come far, so somebody always ends; one whose prompt takes many steps can be preempted again and
    again."""

    def choose(self, running: Seq[Sequence]) -> Sequence:
        return max(running, key=lambda seq: (-computed(seq), seq.request.arrival_s, seq.id))


def computed(seq: Sequence) -> int:
    """Tokens whose KV a request would lose, what its branches share of the prompt once."""
    return seq.feeding[0].computed + sum(part.computed - seq.computed for part in seq.feeding[1:])
