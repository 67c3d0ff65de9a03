"""Nobody is ever preempted (TensorRT-LLM's GUARANTEED_NO_EVICT, on the side of the victim)."""

from __future__ import annotations

from collections.abc import Mapping

from pagedlab.core.errors import EngineStalled
from pagedlab.core.request import Sequence
from pagedlab.core.wakeup import never
from pagedlab.preemption.base import PREEMPTIONS, Preemption, Taken


@PREEMPTIONS.register("none")
class NoPreemption(Preemption):
    """A promise that the run keeps or fails by. Only configurations that can keep it are taken: an allocator that
    reserves, or an admission that does not overcommit. One that could run out would have requests wait for blocks that
    none of them gives back."""

    preempts = False

    def preempt(self, seq: Sequence, copied: Mapping[int, int]) -> Taken:
        raise EngineStalled(
            f"request {seq.id} would have to give up its {self.allocator.held_by(seq)} blocks, since none is free that "
            "a running request needs, and preemption=none: its admission let in more than fits"
        )

    next_wakeup = never
