"""Requests in the order in which they come: those known beforehand, and those that follow the answer to another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf

import numpy as np

from pagedlab.core.request import Request, Sequence


class Arrivals:
    """A queue by time of arrival, then by id, which grows while it is used up."""

    def __init__(self, requests: Iterable[Request] = ()):
        """requests: in order of arrival."""
        self._known = deque(requests)
        self._following: list[tuple[float, int, Request]] = []
        self.next_s = inf
        """When the next one comes, as far as is known; inf where none does."""
        self._look()

    def __bool__(self) -> bool:
        return bool(self._known or self._following)

    def _look(self) -> None:
        next_s = self._known[0].arrival_s if self._known else inf
        self.next_s = min(next_s, self._following[0][0]) if self._following else next_s

    def pop(self) -> Request:
        known, following = self._known, self._following
        if not following:
            request = known.popleft()
            self.next_s = known[0].arrival_s if known else inf
            return request
        if known and (known[0].arrival_s, known[0].id) < following[0][:2]:
            request = known.popleft()
        else:
            request = heappop(following)[2]
        self._look()
        return request

    def append(self, request: Request) -> None:
        """One that comes after all that were known beforehand."""
        self._known.append(request)
        self._look()

    def ended(self, seqs: Iterable[Sequence]) -> None:
        """These have ended, branches of requests among them: who asks again will do so."""
        for seq in seqs:
            follow_up = seq.request.follow_up
            if follow_up is None or seq.trunk is not None or seq.finish_s is None:
                continue
            answer = np.asarray(seq.outputs()[0].token_ids, dtype=np.int32)
            request = follow_up.request(seq.request, answer, seq.finish_s)
            heappush(self._following, (request.arrival_s, request.id, request))
            self.next_s = min(self.next_s, request.arrival_s)
