"""The most urgent first (vLLM's policy `priority`)."""

from __future__ import annotations

from pagedlab.core.request import Sequence
from pagedlab.core.wakeup import never
from pagedlab.scheduler.order.base import ORDERS, Order


@ORDERS.register("priority")
class Priority(Order):
    """By (priority, arrival): the lower number first, as in vLLM. Preemptive: what is less urgent yields.

    A request waits for ever as long as more urgent ones come fast enough: priorities mean that, and nothing ages.
    Within a priority nobody is overtaken.
    """

    preempts = True
    starves = True

    def key(self, seq: Sequence) -> tuple[int, float]:
        return seq.request.priority, seq.request.arrival_s

    next_wakeup = never
