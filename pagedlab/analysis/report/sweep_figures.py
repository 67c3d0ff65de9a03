"""The pictures of a sweep: where the memory went run by run, throughput against latency, heat maps of two axes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import combinations
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from pagedlab.analysis.drawing import COLOURS, LINES, MARKERS, STYLE
from pagedlab.analysis.metrics import METRICS, Metric
from pagedlab.analysis.report.run_figures import HATCHES, KINDS, SHADES
from pagedlab.analysis.runs import Run, as_text, setting

_MOST_BARS = 40
_MOST_LETTERS = 48  # of a label: a picture must have room beside it


def memory_bars(runs: Seq[Run], axes_named: Seq[str]) -> Figure:
    """The time mean of the split of the pool, a bar a setting, seeds averaged: at most 40 of them."""
    bars = list(_averaged(runs, axes_named, [f"kv_{kind}_fraction" for kind in KINDS]).items())[:_MOST_BARS]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 1.2 + 0.28 * len(bars)), layout="constrained")
        axes = figure.add_subplot()
        left = np.zeros(len(bars))
        for i, label in enumerate(KINDS.values()):
            shares = 100 * np.array([values[i] for _, values in bars])
            look = {"color": SHADES[i], "hatch": HATCHES[i], "edgecolor": "#555555", "linewidth": 0.3}
            axes.barh(range(len(bars)), shares, left=left, label=label, **look)
            left += shares
        axes.set_yticks(range(len(bars)), [_short(key or "run", _MOST_LETTERS) for key, _ in bars])
        axes.invert_yaxis()
        axes.set(xlabel="share of the pool, %", xlim=(0, 100))
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def throughput_latency(runs: Seq[Run], axes_named: Seq[str]) -> Figure:
    """Right and down is better. A line joins the values of the last axis, where it has several."""
    *lines, along = axes_named or [""]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        for place, column in enumerate(("ttft_s_mean", "normalized_latency_s_per_token_mean")):
            axes = figure.add_subplot(1, 2, place + 1)
            groups: dict[str, list[tuple[float, float]]] = {}
            wanted = ["output_tokens_per_s", column]
            usable = [run for run in runs if all(run.summary.get(name) is not None for name in wanted)]
            line_of = {_named(run, axes_named): _named(run, lines) for run in usable}
            for key, (rate, wait) in _averaged(usable, axes_named, wanted).items():
                groups.setdefault(line_of[key], []).append((rate, wait))
            for i, (label, points) in enumerate(groups.items()):
                x, y = zip(*sorted(points), strict=True)
                look: dict[str, Any] = {"marker": MARKERS[i % len(MARKERS)], "linestyle": LINES[i % len(LINES)]}
                axes.plot(x, y, color=COLOURS[i % len(COLOURS)], label=label or along, markersize=4, **look)
            axes.set(xlabel="output tokens/s", ylabel=METRICS[column].label, ylim=(0, None))
        handles, labels = figure.axes[0].get_legend_handles_labels()
        if 1 < len(labels) <= 16:
            figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def heat_maps(runs: Seq[Run], axes_named: Seq[str], metrics: Seq[Metric]) -> list[tuple[str, Figure]]:
    """Of each two axes, and each metric: means over everything else, darker is better."""
    return [(f"{one} x {other}", _heat_map(runs, one, other, metrics)) for one, other in combinations(axes_named, 2)]


def _heat_map(runs: Seq[Run], down: str, across: str, metrics: Seq[Metric]) -> Figure:
    levels = [list(dict.fromkeys(as_text(setting(run, axis)) for run in runs)) for axis in (down, across)]
    with mpl.rc_context(STYLE):
        height = 1.6 + 0.32 * len(levels[0])
        figure = Figure(figsize=(max(3.0, 1.4 + 0.62 * len(levels[1])) * len(metrics), height), layout="constrained")
        for place, metric in enumerate(metrics):
            axes = figure.add_subplot(1, len(metrics), place + 1)
            grid = np.full((len(levels[0]), len(levels[1])), np.nan)
            for row, one in enumerate(levels[0]):
                for column, other in enumerate(levels[1]):
                    values = [
                        run.summary[metric.column]
                        for run in runs
                        if (as_text(setting(run, down)), as_text(setting(run, across))) == (one, other)
                        and run.summary.get(metric.column) is not None
                    ]
                    grid[row, column] = np.mean(values) if values else np.nan
            _draw_values(axes, grid, metric)
            shown = [[_short(level, _MOST_LETTERS // 3) for level in named] for named in levels]
            axes.set_xticks(range(len(levels[1])), shown[1], rotation=30)
            axes.set_yticks(range(len(levels[0])), shown[0])
            axes.set(title=metric.label, xlabel=across, ylabel=down if place == 0 else "")
            axes.grid(False)
    return figure


def _draw_values(axes: Any, grid: np.ndarray, metric: Metric) -> None:
    known = grid[~np.isnan(grid)]
    low, span = (known.min(), np.ptp(known)) if len(known) else (0.0, 0.0)
    share = (grid - low) / span if span else np.zeros_like(grid)
    goodness = share if metric.better == "higher" or not span else 1 - share
    axes.imshow(goodness, aspect="auto", cmap="Greys", vmin=0, vmax=1.2)
    for (row, column), value in np.ndenumerate(grid):
        if not np.isnan(value):
            colour = "white" if goodness[row, column] > 0.55 else "black"
            text = metric.text(float(value)).removesuffix(" %")
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)


def _short(label: str, letters: int) -> str:
    return label if len(label) <= letters else label[: letters - 1] + "…"


def _named(run: Run, axes_named: Seq[str]) -> str:
    """Of more than two axes the values alone, in the order that the page's summary names them in."""
    values = {axis: as_text(setting(run, axis)) for axis in axes_named}
    return " ".join(values.values() if len(values) > 2 else (f"{axis}={value}" for axis, value in values.items()))


def _averaged(runs: Seq[Run], axes_named: Seq[str], columns: Seq[str]) -> dict[str, list[float]]:
    """Settings but the seed -> the means of these columns."""
    groups: dict[str, list[list[float]]] = {}
    for run in runs:
        values = [float(run.summary[column]) for column in columns]
        groups.setdefault(_named(run, axes_named), []).append(values)
    return {key: [float(mean) for mean in np.mean(rows, axis=0)] for key, rows in groups.items()}
