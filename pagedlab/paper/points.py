"""A point of a figure: the row that every figure gives, and its mean over seeds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa

# Student's t, two-sided 95 %, by number of seeds: the quantile for one degree of freedom less.
_T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
MOST_SEEDS = max(_T95)


@dataclass(frozen=True, slots=True)
class Point:
    """figure: as "12a". x: what the figure's axis shows, None where it is a bar. value: ours, None where nothing was
    measured. ci_low, ci_high: 95 % interval of the mean over seeds, None of one seed or where nothing is drawn at
    random. published: None where the paper's value is not given."""

    figure: str
    workload: str
    model: str
    system: str
    metric: str
    x: float | None
    value: float | None
    ci_low: float | None = None
    ci_high: float | None = None
    published: float | None = None

    @property
    def error(self) -> float | None:
        """(ours - published) / published."""
        if self.value is None or not self.published:
            return None
        return self.value / self.published - 1


def mean_of(values: list[float | None]) -> dict[str, float | None]:
    """value, ci_low and ci_high of a Point: the mean over the seeds that gave a value, and its interval."""
    known = np.array([value for value in values if value is not None])
    if not len(known):
        return {"value": None}
    mean = float(np.mean(known))
    if len(known) == 1:
        return {"value": mean}
    half = _T95[len(known)] * float(np.std(known, ddof=1)) / math.sqrt(len(known))
    return {"value": mean, "ci_low": mean - half, "ci_high": mean + half}


_FLOATS = ("x", "value", "ci_low", "ci_high", "published")
SCHEMA = pa.schema([(f.name, pa.float64() if f.name in _FLOATS else pa.string()) for f in fields(Point)])


def table_of(points: list[Point]) -> pa.Table:
    return pa.Table.from_pylist(rows_of(points), schema=SCHEMA)


def rows_of(points: list[Point]) -> list[dict[str, Any]]:
    return [asdict(point) for point in points]
