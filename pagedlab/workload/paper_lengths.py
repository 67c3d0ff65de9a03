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


def paper_lengths(trace: str, side: Side, at: np.ndarray) -> np.ndarray:
    """The quantiles `at` (in [0, 1), any shape) of a histogram, in tokens, not rounded.

    For uniform `at` this draws a bin by its mass and a place in it uniformly: the distribution function of a
    histogram is a polygon through the bin edges, and this is its inverse.
    """
    histogram = paper_table()[trace][side]
    mass = np.cumsum([0.0, *histogram["density_1e-6"]])
    edges = histogram["left"] + histogram["bin_width"] * np.arange(len(mass))
    return np.asarray(np.interp(at, mass / mass[-1], edges))
