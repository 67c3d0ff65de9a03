"""The lengths of Fig. 11 of the PagedAttention paper, from data/paper_fig11.json (its source is named there)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

Side = Literal["input", "output"]


@cache
def paper_table() -> dict[str, Any]:
    """The figure: trace ("ShareGPT", "Alpaca") -> side -> printed_mean, left, bin_width, density_1e-6 [128]."""
    table: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "paper_fig11.json").read_text("utf-8"))
    return table


def paper_lengths(
    trace: str, side: Side, at: np.ndarray, low: int | None = None, high: int | None = None
) -> np.ndarray:
    """The quantiles `at` (in [0, 1), any shape) of a histogram, in tokens, not rounded.

    low, high: what a bin holds rounds to low..high: a bin across a bound keeps its mass, which lies on the inner side
    of it, and a bin beyond is left out. The outermost bins of Fig. 11 begin at the least length of its data, and how a
    bin's mass lies in it is not published.

    For uniform `at` this draws a bin by its mass and a place in it uniformly: the distribution function of a
    histogram is a polygon through the bin edges, and this is its inverse.
    """
    histogram = paper_table()[trace][side]
    density = np.asarray(histogram["density_1e-6"])
    edges = histogram["left"] + histogram["bin_width"] * np.arange(len(density) + 1)
    edges = np.clip(edges, None if low is None else low - 0.5, None if high is None else high + 0.5)
    mass = np.concatenate([[0.0], np.cumsum(density * (np.diff(edges) > 0))])
    return np.asarray(np.interp(at, mass / mass[-1], edges))
