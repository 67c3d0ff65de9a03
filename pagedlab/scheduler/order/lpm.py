"""Longest prefix match first (SGLang, arXiv 2312.07104, section 3; its `schedule_policy=lpm`)."""

from __future__ import annotations

from pagedlab.core.request import Sequence
from pagedlab.scheduler.order.base import ORDERS, Order


@ORDERS.register("lpm")
class LongestPrefixMatch(Order):
    """By (cached tokens, the most first; arrival), looked up once for each step that is planned.

    With more than `lpm_max_waiting` requests waiting it goes by arrival, as SGLang does, since each look-up costs the
    length of a prompt. A request of which nothing is cached waits for ever as long as fewer than that wait and those
    with a longer match come fast enough: SGLang has no guard either.
    """

    needs_prefix_cache = True
    starves = True
    _by_arrival = False

    def key(self, seq: Sequence) -> tuple[int, float]:
        return 0 if self._by_arrival else -self.allocator.cached_tokens(seq), seq.request.arrival_s

    def time(self, now_s: float) -> None:
        self._by_arrival = len(self) > self.settings.lpm_max_waiting
        self._rekey()
