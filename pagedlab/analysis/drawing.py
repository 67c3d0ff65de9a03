"""What plots of runs share: a look that also reads in grey, and files of which the same runs give the same bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from pagedlab.analysis.export import write_file

# Ids in an svg are derived from this, and no date is written.
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "pagedlab",
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # A name such as $x^2$ is text, not a formula.
    "text.parse_math": False,
}
MARKERS = "osD^vP*X"
LINES = ("-", "--", "-.", ":")
COLOURS = mpl.color_sequences["tab10"]


def save(stem: Path, figure: Figure) -> list[Path]:
    """stem.svg and stem.png."""
    files = []
    for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):

        def write(path: Path, kind: str = kind, metadata: dict[str, None] = metadata) -> None:
            figure.savefig(path, format=kind, metadata=metadata, dpi=150, bbox_inches="tight")

        with mpl.rc_context(STYLE):
            write_file(files_path := stem.with_name(f"{stem.name}.{kind}"), write)
        files.append(files_path)
    return files


def inline(figure: Figure) -> str:
    """The figure as an <svg> element that scales with the page."""
    text = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None}, bbox_inches="tight")
    # What is before it is of a file of its own.
    return text.getvalue()[text.getvalue().index("<svg") :]
