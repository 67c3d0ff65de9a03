"""First come, first served (vLLM's default)."""

from __future__ import annotations

from math import inf

from pagedlab.core.request import Sequence
from pagedlab.scheduler.order.base import ORDERS, Order


@ORDERS.register("fcfs")
class Fcfs(Order):
    """By arrival. A preempted sequence comes back before all that arrived after it; nobody is overtaken or starved."""

    def key(self, seq: Sequence) -> float:
        return seq.request.arrival_s

    def next_wakeup(self, now: float) -> float:
        return inf
