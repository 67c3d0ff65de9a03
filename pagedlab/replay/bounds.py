"""What no policy can exceed: an infinite cache, and the optimum for a capacity."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from heapq import heappop, heappush


def infinite_hits(references: Seq[int]) -> int:
    """Every reference but the first to each block."""
    return len(references) - len(set(references))


def optimal_hits(references: Seq[int], capacity: int, may_bypass: bool) -> int:
    """The most hits of any policy in `capacity` blocks of equal size (Belady 1966), O(n log n).

    may_bypass: whether a miss may be served without being taken in. A flat cache takes in everything; a prefix cache
    does not where a request fills it alone. Its hits are hits of such a flat cache too, so this is a bound for them.
    """
    following = _next_uses(references)
    cached: dict[int, float] = {}  # key -> the time of its next use
    farthest: list[tuple[float, int]] = []  # heap of (-next use, key), of which some are out of date
    hits = 0
    for key, next_use in zip(references, following, strict=True):
        if key in cached:
            hits += 1
        elif len(cached) == capacity:
            while cached.get(farthest[0][1]) != -farthest[0][0]:
                heappop(farthest)
            if may_bypass and next_use >= -farthest[0][0]:
                continue
            del cached[heappop(farthest)[1]]
        cached[key] = next_use
        heappush(farthest, (-next_use, key))
    return hits


def _next_uses(references: Seq[int]) -> list[float]:
    following, seen = [math.inf] * len(references), dict[int, int]()
    for time in range(len(references) - 1, -1, -1):
        following[time] = seen.get(references[time], math.inf)
        seen[references[time]] = time
    return following
