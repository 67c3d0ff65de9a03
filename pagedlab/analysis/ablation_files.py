"""An ablation as tables and plots: Markdown and LaTeX, SVG and PNG, and one JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow as pa
from matplotlib.figure import Figure

from pagedlab.analysis.ablation import FRONT, Ablation, Cell, Combination
from pagedlab.analysis.drawing import COLOURS, LINES, MARKERS, STYLE, save
from pagedlab.analysis.export import export
from pagedlab.analysis.metrics import METRICS, Metric
from pagedlab.analysis.statistics import Estimate
from pagedlab.recorder.folder import write_json
from pagedlab.recorder.metrics import SCHEMA_VERSION


def write_ablation(folder: Path, found: Ablation) -> list[Path]:
    """ablation.json last: a folder with it is whole."""
    tables = {"effects": cell_table(found.axes[:1], found.cells), "combinations": combination_table(found.combinations)}
    if found.crossed:
        tables["interaction"] = cell_table(found.axes, found.crossed)
    files = []
    for name, table in tables.items():
        for suffix, form in ((".md", "markdown"), (".tex", "latex")):
            export(table, form, folder / f"{name}{suffix}")
            files.append(folder / f"{name}{suffix}")
    files += save(folder / "effects", effects_plot(found))
    if found.crossed:
        files += save(folder / "interaction", interaction_plot(found))
    files += save(folder / "pareto", pareto_plot(found.combinations))
    write_json(folder / "ablation.json", as_json(found))
    return [*files, folder / "ablation.json"]


def cell_table(axes: Seq[str], cells: Seq[Cell]) -> pa.Table:
    """A row a value and metric, as people read it."""
    columns: dict[str, list[str]] = {axis: [cell.values[i] for cell in cells] for i, axis in enumerate(axes)}
    columns["metric"] = [cell.metric.label for cell in cells]
    columns["mean"] = [cell.metric.text(cell.mean.mean) for cell in cells]
    columns["95 %"] = [_interval(cell.mean, cell.metric.text) for cell in cells]
    effect = "effect" if len(axes) == 1 else "interaction"
    columns[effect] = [cell.metric.change(cell.effect.mean) for cell in cells]
    columns[f"{effect}, 95 %"] = [_interval(cell.effect, cell.metric.change) for cell in cells]
    return pa.table(columns)


def combination_table(combinations: Seq[Combination]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        axis: [one.settings[axis] for one in combinations] for axis in combinations[0].settings
    }
    for column in combinations[0].means:
        columns[METRICS[column].label] = [METRICS[column].text(one.means[column]) for one in combinations]
    columns["runs"] = [one.seeds for one in combinations]
    columns["best in"] = [", ".join(METRICS[column].label for column in one.best) for one in combinations]
    columns["Pareto front"] = ["yes" if one.on_front else "" for one in combinations]
    return pa.table(columns)


def as_json(found: Ablation) -> dict[str, Any]:
    def cells(of: Seq[Cell]) -> list[dict[str, Any]]:
        return [
            dict(zip(found.axes, cell.values, strict=False))
            | {"metric": cell.metric.column}
            | {"mean": cell.mean.mean, "ci_low": cell.mean.low, "ci_high": cell.mean.high}
            | {"effect": cell.effect.mean, "effect_ci_low": cell.effect.low, "effect_ci_high": cell.effect.high}
            for cell in of
        ]

    return {
        "schema_version": SCHEMA_VERSION,
        "axes": found.axes,
        "runs": found.runs,
        "seeds": found.seeds,
        "left_out": found.left_out,
        "effects": cells(found.cells),
        "interaction": cells(found.crossed),
        "variation": found.shares,
        "combinations": [
            {"settings": one.settings, "runs": one.seeds, "means": one.means, "best": one.best, "front": one.on_front}
            for one in found.combinations
        ],
    }


def _interval(e: Estimate, text: Any) -> str:
    return "-" if e.low is None else f"{text(e.low)} to {text(e.high)}"


# ---- plots --------------------------------------------------------------------------------------------------------


def effects_plot(found: Ablation) -> Figure:
    """A panel a metric: means by value, bars the 95 % interval where there is one."""
    return _panels(found, lambda axes, metric: _line(axes, found.levels[0], _of(found.cells, metric), 0, ""))


def interaction_plot(found: Ablation) -> Figure:
    """A line for each value of the second axis: where they are not parallel the two interact."""

    def draw(axes: Any, metric: Metric) -> None:
        for i, level in enumerate(found.levels[1]):
            cells = [cell for cell in _of(found.crossed, metric) if cell.values[1] == level]
            _line(axes, found.levels[0], cells, i, f"{found.axes[1]}={level}")

    figure = _panels(found, draw)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.0, 0.95), frameon=False)
    return figure


def _panels(found: Ablation, draw: Any) -> Figure:
    metrics = list(dict.fromkeys(cell.metric for cell in found.cells))
    columns = min(3, len(metrics))
    rows = -(-len(metrics) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.2 * columns, 2.6 * rows), layout="constrained")
        for i, metric in enumerate(metrics):
            axes = figure.add_subplot(rows, columns, i + 1)
            draw(axes, metric)
            axes.set(title=metric.label, xlabel=found.axes[0])
            axes.set_xticks(range(len(found.levels[0])), found.levels[0], rotation=30 if _long(found) else 0)
            if metric.form == "percent":
                axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
    return figure


def _long(found: Ablation) -> bool:
    return sum(map(len, found.levels[0])) > 30


def _of(cells: Seq[Cell], metric: Metric) -> list[Cell]:
    return [cell for cell in cells if cell.metric == metric]


def _line(axes: Any, levels: Seq[str], cells: Seq[Cell], place: int, label: str) -> None:
    means = [cell.mean.mean for cell in cells]
    around = [
        [0.0 if cell.mean.low is None else cell.mean.mean - cell.mean.low for cell in cells],
        [0.0 if cell.mean.high is None else cell.mean.high - cell.mean.mean for cell in cells],
    ]
    look = {"marker": MARKERS[place % len(MARKERS)], "linestyle": LINES[place % len(LINES)], "capsize": 3}
    axes.errorbar(range(len(levels)), means, around, color=COLOURS[place % len(COLOURS)], label=label, **look)


def pareto_plot(combinations: Seq[Combination]) -> Figure:
    """Throughput against waste, one dot a combination; those of the front filled and named."""
    waste, rate, wait = FRONT
    drawn = [one for one in combinations if {waste, rate} <= one.means.keys()]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot()
        for one in drawn:
            x, y = 100 * one.means[waste], one.means[rate]
            filled = "black" if one.on_front else "none"
            axes.plot(x, y, "o", color="black", markerfacecolor=filled, markersize=7 if one.on_front else 5)
            if one.on_front and sum(each.on_front for each in drawn) <= 12:
                named = ", ".join(one.settings.values())
                said = f", TTFT {one.means[wait]:.3f} s" if wait in one.means else ""
                axes.annotate(f"{named}{said}", (x, y), xytext=(6, 4), textcoords="offset points", fontsize=7)
        axes.set(xlabel="waste of allocated memory, %", ylabel="output tokens/s", title="Filled: on the Pareto front")
    return figure
