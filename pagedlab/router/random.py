"""Drawn evenly: what the others are to be compared with."""

from __future__ import annotations

from pagedlab.core.mixing import mix, uniform
from pagedlab.core.request import Request
from pagedlab.router.base import ROUTERS, Router


@ROUTERS.register("random")
class Random(Router):
    """By the seed and the request's id alone: whatever else arrives, a request goes to the same replica."""

    def _choose(self, request: Request) -> int:
        return int(uniform(mix(self.seed), request.id) * len(self.requests))
