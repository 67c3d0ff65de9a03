"""A control: an order that knows nothing."""

from __future__ import annotations

import numpy as np

from pagedlab.core.request import Sequence
from pagedlab.core.wakeup import never
from pagedlab.scheduler.order.base import ORDERS, Order


@ORDERS.register("random")
class Random(Order):
    """By a number drawn once for each request from (seed, id). An unlucky request can wait as long as load lasts."""

    starves = True

    def key(self, seq: Sequence) -> float:
        return float(np.random.default_rng((self.seed, seq.id)).random())

    next_wakeup = never
