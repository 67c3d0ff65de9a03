"""Shortest remaining time first (Schrage, Operations Research 1968: the least mean completion time of one server)."""

from __future__ import annotations

from pagedlab.core.request import Sequence
from pagedlab.scheduler.order.base import ORDERS
from pagedlab.scheduler.order.sjf import Sjf


@ORDERS.register("srtf")
class Srtf(Sjf):
    """By (predicted tokens still to be generated, arrival). Preemptive: what has more left yields.

    What runs has ever less left, so it never yields to one that it has gone before. Optimal where coming back costs
    nothing; a preempted request computes its KV anew. A long request waits for ever as long as shorter ones come.
    """

    preempts = True

    def key(self, seq: Sequence) -> tuple[float, float]:
        return self.predictor.remaining(seq), seq.request.arrival_s
