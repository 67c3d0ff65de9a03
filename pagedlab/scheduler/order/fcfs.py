"""First come, first served (vLLM's default)."""

from __future__ import annotations

from pagedlab.core.request import Sequence
from pagedlab.core.wakeup import never
from pagedlab.scheduler.order.base import ORDERS, Order


@ORDERS.register("fcfs")
class Fcfs(Order):
    """By arrival. A preempted sequence comes back before all that arrived after it; nobody is overtaken or starved."""

    def key(self, seq: Sequence) -> float:
        return seq.request.arrival_s

    next_wakeup = never
