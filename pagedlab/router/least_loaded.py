"""The replica with the least to do (join the shortest queue; `shortest_queue` of SGLang's router)."""

from __future__ import annotations

from pagedlab.core.request import Request
from pagedlab.router.base import ROUTERS, Router


@ROUTERS.register("least_loaded")
class LeastLoaded(Router):
    """by=requests: that have not come back. by=tokens: the most that these can come to. Ties go to the lower number."""

    def _choose(self, request: Request) -> int:
        loads = self.tokens if self.settings.by == "tokens" else self.requests
        return loads.index(min(loads))
