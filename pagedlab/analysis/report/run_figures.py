"""The pictures of one run. All of them read in grey: what lies beside each other differs in lightness or in line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from pagedlab.analysis.drawing import LINES, STYLE
from pagedlab.recorder.blocks import BETWEEN, CACHED_IDLE, FREE
from pagedlab.recorder.metrics import SPLIT
from pagedlab.recorder.reading import damaged, read_table

KINDS = {
    "token_states": "a token",
    "reserved": "reserved, used later",
    "internal": "reserved, never used",
    "block_tail": "tail of a last block",
    "cached_idle": "cached, idle",
    "external": "free, unusable",
    "free": "free",
}
SHADES = [mpl.colormaps["cividis"](x) for x in np.linspace(0.0, 0.92, len(SPLIT) - 1)] + [(1.0, 1.0, 1.0, 1.0)]
HATCHES = ("", "", "///", "", "...", "xx", "")
_MOST_POINTS = 800
_OF_STEP = ("start_s", "running", "waiting", "prefix_evicted_blocks", *(f"kv_{kind}" for kind in SPLIT))
_COLUMNS, _ROWS = 320, 512
# Of the block map: free, cached and idle, between two holders, shared; then the tones of the requests in turn.
_TONES = ("#ffffff", "#e2e2e2", "#f5c6a5", "#000000", "#3b5a92", "#7fa6d6", "#5b8c5a", "#a8cf9b", "#8d6b94", "#c7a9cf")
_CODES = {FREE: 0, CACHED_IDLE: 1, BETWEEN: 2}
_FIXED = 4


def timeline(folder: Path) -> pa.Table:
    """What is drawn of timeline.parquet, at most 800 of its rows, evenly spread, the first and the last among them."""
    table = read_table(folder / "timeline.parquet", _OF_STEP)
    if table.num_rows <= _MOST_POINTS:
        return table
    return table.take(np.linspace(0, table.num_rows - 1, _MOST_POINTS).round().astype(np.int64))


def memory_split(steps: pa.Table) -> Figure:
    """Where every slot went: shares of the pool, stacked; a row holds until the next one."""
    figure, axes = _wide()
    slots = {kind: steps[f"kv_{kind}"].to_numpy().astype(np.float64) for kind in KINDS}
    whole = sum(slots.values())
    times = steps["start_s"].to_numpy()
    drawn = axes.stackplot(
        times, *[100 * values / whole for values in slots.values()], colors=SHADES, step="post", labels=KINDS.values()
    )
    for area, hatch in zip(drawn, HATCHES, strict=True):
        area.set(hatch=hatch, edgecolor="#555555", linewidth=0.3)
    axes.set(xlabel="time, s", ylabel="share of the pool, %", ylim=(0, 100), xlim=_span(times))
    _legend(axes)
    return figure


def batch(steps: pa.Table) -> Figure:
    """How many run, and how many wait."""
    figure, axes = _wide(2.6)
    times = steps["start_s"].to_numpy()
    for style, name in zip(LINES, ("running", "waiting"), strict=False):
        axes.step(times, steps[name].to_numpy(), where="post", linestyle=style, label=name, linewidth=1.2)
    axes.set(xlabel="time, s", ylabel="sequences", ylim=(0, None), xlim=_span(times))
    _legend(axes)
    return figure


def latencies(requests: pa.Table) -> Figure:
    """The share of the requests that had at most so much: one panel a latency."""
    named = {"ttft_s": "TTFT", "tpot_s": "TPOT", "max_itl_s": "longest ITL", "e2e_s": "end to end"}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 2.6), layout="constrained")
        for i, (column, label) in enumerate(named.items()):
            axes = figure.add_subplot(1, len(named), i + 1)
            values = np.sort(requests[column].drop_null().to_numpy())
            axes.step(values, np.arange(1, len(values) + 1) / max(len(values), 1), where="post", color="black")
            axes.set(title=label, xlabel="s", ylim=(0, 1.02), ylabel="share of requests" if i == 0 else "")
            axes.tick_params("x", rotation=30)
    return figure


def happenings(steps: pa.Table, events: pa.Table) -> Figure:
    """Preemptions as they struck, by what became of the victim, and blocks evicted from the prefix cache so far."""
    rows = events.to_pylist()
    kinds = {
        "preempted, to be recomputed": [e for e in rows if e["kind"] == "preemption" and e["by"] != "swap"],
        "preempted, swapped out": [e for e in rows if e["kind"] == "preemption" and e["by"] == "swap"],
        "swapped in again": [e for e in rows if e["kind"] == "return"],
    }
    figure, axes = _wide(2.8)
    for i, found in enumerate(kinds.values()):
        times = [event["time_s"] for event in found]
        axes.plot(times, [i] * len(times), "|" if len(times) > 40 else "xo^"[i], color="black", markersize=9)
    axes.set_yticks(range(len(kinds)), [f"{label}: {len(found)}" for label, found in kinds.items()])
    times = steps["start_s"].to_numpy()
    axes.set(xlabel="time, s", ylim=(-0.6, len(kinds) - 0.4), xlim=_span(times))
    evicted = steps["prefix_evicted_blocks"].to_numpy()
    if evicted.any():
        other = axes.twinx()
        other.step(times, evicted, where="post", linestyle="--", color="#777777")
        other.set_ylabel("blocks evicted (dashed)")
        other.set_ylim(0, None)
    return figure


def block_map(path: Path) -> tuple[Figure, str]:
    """Who holds which block over time, and what the picture leaves out."""
    table = read_table(path, ("time_s", "holder", "references"))
    try:
        blocks = np.array(json.loads(table.schema.metadata[b"blocks"]), dtype=np.int64)
    except (TypeError, KeyError, ValueError):
        raise damaged(path, "it does not say which blocks it is of") from None
    times = table["time_s"].to_numpy()
    holder = np.array(table["holder"].to_pylist(), dtype=np.int64).T
    references = np.array(table["references"].to_pylist(), dtype=np.int64).T
    used = np.flatnonzero((holder != FREE).any(axis=1))
    last = int(used[-1]) + 1 if len(used) else 1
    said = f"Blocks from {blocks[last]} on are free throughout and left out. " if last < len(blocks) else ""
    if len(blocks) < blocks[-1] + 1:
        said += f"Every {(blocks[-1] + 1) / len(blocks):.1f}th block is shown. "
    # A column of the picture shows the latest sample before it.
    places = np.searchsorted(times, np.linspace(times[0], times[-1], _COLUMNS), side="right") - 1
    rows = np.linspace(0, last - 1, min(last, _ROWS)).round().astype(np.int64)
    holder, references = holder[np.ix_(rows, places)], references[np.ix_(rows, places)]
    tones = _FIXED + holder % (len(_TONES) - _FIXED)
    for code, tone in _CODES.items():
        tones[holder == code] = tone
    tones[references > 1] = _FIXED - 1
    figure, axes = _wide(4.2)
    axes.grid(False)
    look = {"cmap": ListedColormap(_TONES), "vmin": -0.5, "vmax": len(_TONES) - 0.5, "interpolation": "nearest"}
    extent = (float(times[0]), max(float(times[-1]), float(times[0]) + 1e-9), float(blocks[last - 1]) + 0.5, -0.5)
    axes.imshow(tones, aspect="auto", extent=extent, **look)
    axes.set(xlabel="time, s", ylabel="block")
    named = ("free", "cached, idle", "between two holders", "shared by several", "held by one request (tones in turn)")
    handles = [mpl.patches.Patch(facecolor=_TONES[i], edgecolor="#555555") for i in range(_FIXED + 1)]
    axes.legend(handles, named, loc="upper left", bbox_to_anchor=(0, -0.14), ncols=3, frameon=False)
    return figure, said


def _wide(height: float = 3.4) -> tuple[Figure, Any]:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, height), layout="constrained")
        return figure, figure.add_subplot()


def _legend(axes: Any) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=4, frameon=False)


def _span(times: np.ndarray) -> tuple[float, float]:
    return (float(times[0]), max(float(times[-1]), float(times[0]) + 1e-9)) if len(times) else (0.0, 1.0)
