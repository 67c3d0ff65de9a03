"""How sure a mean is, whether two differ, and which of several points are not beaten in everything."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from scipy import stats

MIN_VALUES = 5
"""Of fewer than these an interval would say less than it seems to."""
_RESAMPLES = 9_999
_MOST_RESAMPLED = 500
LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, its 95 % interval, and the p-value of its being 0; None of fewer than MIN_VALUES values. An interval that
    nothing bounds (of few values, most of them the same) is None too."""

    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None


def estimate(values: Seq[float] | np.ndarray) -> Estimate:
    """The mean of independent values, by the studentized bootstrap (Efron and Tibshirani, An Introduction to the
    Bootstrap, 1993, 12.5), whose intervals hold for few values too, where percentiles of resampled means are too
    narrow. Of more than 500 values by Student's t, which by then says the same.

    Deterministic: the resampling has a seed of its own. Values that are all the same: an interval of no width.
    """
    x = np.asarray(values, dtype=np.float64)
    n, mean = len(x), float(np.mean(x))
    if n < MIN_VALUES:
        return Estimate(mean)
    if np.ptp(x) <= 1e-12 * abs(mean):
        return Estimate(mean, mean, mean, 1.0 if mean == 0 else 1 / (_RESAMPLES + 1))
    if n > _MOST_RESAMPLED:
        test = stats.ttest_1samp(x, 0.0)
        low, high = test.confidence_interval(1 - LEVEL)
        return Estimate(mean, float(low), float(high), float(test.pvalue))
    error = float(np.std(x, ddof=1)) / n**0.5
    drawn = x[np.random.default_rng(0).integers(n, size=(_RESAMPLES, n))]
    off, errors = drawn.mean(axis=1) - mean, drawn.std(axis=1, ddof=1) / n**0.5
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(errors > 1e-12 * error, off / errors, np.copysign(np.inf, off))
    low, high = np.quantile(t, (LEVEL / 2, 1 - LEVEL / 2), method="closest_observation")
    p = (1 + int(np.count_nonzero(np.abs(t) >= abs(mean) / error))) / (_RESAMPLES + 1)
    if not np.isfinite([low, high]).all():
        return Estimate(mean, p=p)
    return Estimate(mean, mean - float(high) * error, mean - float(low) * error, p)


def holm(p_values: Seq[float]) -> list[float]:
    """p-values corrected for how many there are (Holm, Scandinavian Journal of Statistics 6, 1979): the chance of one
    false difference among all stays at the level, without assuming that they are independent."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(p_values))
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, (len(p_values) - rank) * p_values[place])
        adjusted[place] = min(1.0, largest)
    return [float(p) for p in adjusted]


def pareto(points: Seq[Seq[float]]) -> list[bool]:
    """Of points whose every coordinate is better the smaller it is: which of them no other one beats, that is, is as
    good in everything and better in something."""
    x = np.asarray(points, dtype=np.float64)
    return [not bool(np.any(np.all(x <= one, axis=1) & np.any(x < one, axis=1))) for one in x]
