"""The rate that a system sustains: where a curve that rises with the rate crosses a threshold."""

from __future__ import annotations

import math
from collections.abc import Callable

FAR = 1000.0


def capacity(
    latency: Callable[[float], float], start: float, threshold: float, tolerance: float = 0.03
) -> float | None:
    """The rate at which `latency`, which never falls, reaches `threshold`; within `tolerance` of it, relative.

    start: any positive rate. It is raised or lowered by half until the crossing is between two rates, which bisection,
    of their logarithms, then brings together. None where a rate far above or below does not reach it: of a trace that
    is too short, or a threshold that even an idle system exceeds.
    """
    low = high = start
    while latency(high) < threshold:
        low, high = high, 1.5 * high
        if high > FAR * start:
            return None
    while low == high or latency(low) >= threshold:
        low, high = low / 1.5, low
        if high < start / FAR:
            return None
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if latency(middle) < threshold else (low, middle)
    return math.sqrt(low * high)
