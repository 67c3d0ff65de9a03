"""What the plots share: names as the paper writes them, bars beside published bars, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from pagedlab.paper.points import Point
from pagedlab.recorder.folder import write_atomic

PAPER_NAMES = {
    "fastertransformer": "FasterTransformer",
    "orca_max": "Orca (Max)",
    "orca_pow2": "Orca (Pow2)",
    "orca_oracle": "Orca (Oracle)",
    "vllm": "vLLM",
    "orca_oracle iteration": "Orca (Oracle), iteration",
    "vllm iteration": "vLLM, iteration",
    "vllm host": "vLLM, slower host",
    "orca_max prompts": "Orca (Max), dear prompts",
    "orca_pow2 prompts": "Orca (Pow2), dear prompts",
    "orca_oracle prompts": "Orca (Oracle), dear prompts",
    "vllm prompts": "vLLM, dear prompts",
}
PAPER_NAMES |= {f"{name} longer": f"{PAPER_NAMES[name]}, longer" for name in list(PAPER_NAMES)[:5]}
# The same drawing gives the same bytes: ids in an svg are derived from this, and no date is written.
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "pagedlab",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
}


def bars(drawing: Drawing, place: int, of: int, points: list[Point], ylabel: str, title: str, rows: int = 1) -> None:
    """One panel, of so many in each of `rows`: a bar of ours and, where anything is published, one of the paper's for
    each system."""
    axes = drawing.add_subplot(rows, of, place)
    known = any(point.published is not None for point in points)
    sides = ((-0.2, "pagedlab", "value"), (0.2, "published", "published"))
    for shift, name, side in sides if known else ((0.0, "pagedlab", "value"),):
        heights = [getattr(point, side) or 0.0 for point in points]
        axes.bar([i + shift for i in range(len(points))], heights, 0.4, label=name)
    names = [PAPER_NAMES.get(point.system, point.system) for point in points]
    axes.set_xticks(range(len(points)), names, rotation=30, ha="right")
    axes.set(ylabel=ylabel, title=title)
    if place == 1 and known:
        axes.legend(frameon=False)


def curve(axes: Axes, points: list[Point], label: str) -> None:
    """A line of ours, and dots of the paper's in its colour."""
    sides = {side: [_drawn(getattr(point, side)) for point in points] for side in ("x", "value", "published")}
    [line] = axes.plot(sides["x"], sides["value"], label=label)
    axes.plot(sides["x"], sides["published"], "o", color=line.get_color(), markersize=3)


def _drawn(value: float | None) -> float:
    return float("nan") if value is None else value


def save(stem: Path, drawing: Drawing) -> None:
    """stem.svg and stem.png."""
    for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):

        def write(path: Path, kind: str = kind, metadata: dict[str, None] = metadata) -> None:
            drawing.savefig(path, format=kind, metadata=metadata, dpi=150, bbox_inches="tight")

        with mpl.rc_context(STYLE):
            write_atomic(stem.with_suffix(f".{kind}"), write)
