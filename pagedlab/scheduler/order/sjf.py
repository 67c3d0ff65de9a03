"""Shortest job first, by the predicted output length (SSJF, Qiu et al., arXiv 2404.08509; LTR, NeurIPS 2024)."""

from __future__ import annotations

from pagedlab.allocator.base import Allocator
from pagedlab.core.request import Sequence
from pagedlab.core.wakeup import never
from pagedlab.scheduler.order.base import ORDERS, Order
from pagedlab.scheduler.predictor.base import PREDICTORS
from pagedlab.settings import SchedulerSettings


@ORDERS.register("sjf")
class Sjf(Order):
    """By (predicted output tokens, arrival); never preempts. Decode steps are the work: prompts are not counted.

    A long request waits for ever as long as shorter ones come fast enough: no ageing, which would be another policy.
    """

    needs_true_length = True
    starves = True

    def __init__(self, settings: SchedulerSettings, allocator: Allocator, seed: int):
        super().__init__(settings, allocator, seed)
        self.predictor = PREDICTORS[settings.predictor](settings.predictor_sigma, seed)

    def key(self, seq: Sequence) -> tuple[float, float]:
        return self.predictor.length(seq.request), seq.request.arrival_s

    next_wakeup = never
