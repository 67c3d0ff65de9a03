"""The plots of a cache replay: miss-ratio curves, and a heat map of policy by capacity. Each as svg and png."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from pagedlab.recorder.folder import write_atomic
from pagedlab.replay.study import Study

_MANY_COLOURS = "tab20"


def write_plots(folder: Path, study: Study) -> None:
    """miss_ratio and hit_ratio in `folder`, of a study with at least one row."""
    # The same study gives the same bytes: ids in an svg are derived from this, and no date is written.
    with mpl.rc_context({"svg.hashsalt": "pagedlab", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        _save(folder / "miss_ratio", _curves(study))
        _save(folder / "hit_ratio", _heat_map(study))


def _save(stem: Path, figure: Figure) -> None:
    for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):

        def save(path: Path, kind: str = kind, metadata: dict[str, None] = metadata) -> None:
            figure.savefig(path, format=kind, metadata=metadata, dpi=150, bbox_inches="tight")

        write_atomic(stem.with_suffix(f".{kind}"), save)


def _policies(study: Study) -> list[str]:
    return list(dict.fromkeys(row["policy"] for row in study.rows))


def _curves(study: Study) -> Figure:
    figure = Figure(figsize=(7, 4.2))
    axes = figure.add_subplot()
    colours = mpl.color_sequences[_MANY_COLOURS]
    for i, policy in enumerate(_policies(study)):
        rows = [row for row in study.rows if row["policy"] == policy]
        sizes = [row["capacity_blocks"] for row in rows]
        misses = [1 - row["hit_ratio"] for row in rows]
        axes.plot(sizes, misses, marker="o", markersize=3, color=colours[i % len(colours)], label=policy)
    bound = [1 - ratio for ratio in study.optimal.values()]
    axes.plot(list(study.optimal), bound, "k--", linewidth=1, label="belady, the optimum")
    axes.axhline(1 - study.infinite, color="k", linestyle=":", linewidth=1, label="infinite cache")
    axes.set(xscale="log", xlabel="capacity, blocks", ylabel="miss ratio", title="Miss ratio by capacity")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def _heat_map(study: Study) -> Figure:
    policies, capacities = _policies(study), list(study.optimal)
    ratios = {(row["policy"], row["capacity_blocks"]): row["hit_ratio"] for row in study.rows}
    names = [*policies, "belady, the optimum"]
    ratios |= {(names[-1], capacity): ratio for capacity, ratio in study.optimal.items()}
    grid = [[100 * ratios.get((name, capacity), float("nan")) for capacity in capacities] for name in names]
    figure = Figure(figsize=(2.5 + 0.9 * len(capacities), 1.2 + 0.3 * len(names)))
    axes = figure.add_subplot()
    image = axes.imshow(grid, aspect="auto", cmap="viridis", vmin=0, vmax=max(100 * study.infinite, 1e-9))
    axes.set_xticks(range(len(capacities)), [str(capacity) for capacity in capacities])
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="capacity, blocks", title="Hit ratio, %")
    axes.grid(False)
    for y, line in enumerate(grid):
        for x, value in enumerate(line):
            if value == value:  # not NaN: an interrupted study has not all
                light = value > 0.6 * 100 * study.infinite
                axes.text(x, y, f"{value:.1f}", ha="center", va="center", color="black" if light else "white")
    figure.colorbar(image, ax=axes)
    return figure
