"""The rate that a system sustains: where a curve that rises with the rate crosses a threshold."""

from __future__ import annotations

import math
from collections.abc import Callable

FAR = 1000.0


def capacity(
    latency: Callable[[float], float], low: float, high: float, threshold: float, tolerance: float = 0.03
) -> float | None:
    """The rate at which `latency`, which never falls, reaches `threshold`; within `tolerance` of it, relative.

    low, high: positive rates between which it is thought to be, or twice the same. Where it is not, they are moved on,
    by half, until it is; bisection, of their logarithms, then brings them together. None where a rate far above or
    below does not reach it: of a trace that is too short, or a threshold that even an idle system exceeds.
    """
    most, least = FAR * high, low / FAR
    while latency(high) < threshold:
        low, high = high, 1.5 * high
        if high > most:
            return None
    if low == high:
        low = high / 1.5
    while latency(low) >= threshold:
        low, high = low / 1.5, low
        if high < least:
            return None
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if latency(middle) < threshold else (low, middle)
    return math.sqrt(low * high)
