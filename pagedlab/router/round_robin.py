"""One after the other, whatever they ask (the default of nginx and of most proxies)."""

from __future__ import annotations

from typing import Any

from pagedlab.core.request import Request
from pagedlab.router.base import ROUTERS, Router


@ROUTERS.register("round_robin")
class RoundRobin(Router):
    """The i-th request to arrive goes to replica i mod N: equal numbers, not equal work."""

    def __init__(self, settings: Any, num_replicas: int, block_size: int, num_blocks: int, seed: int):
        super().__init__(settings, num_replicas, block_size, num_blocks, seed)
        self._next = 0

    def _choose(self, request: Request) -> int:
        chosen = self._next
        self._next = (chosen + 1) % len(self.requests)
        return chosen
