"""What an axis of a sweep does: means by value, main effects, the interaction of two axes, and the best combinations.

Only complete blocks count: settings of everything else, seed included, under which every value was run. Seeds are what
is drawn at random, so every number is first averaged over the other settings of a seed, and its interval is over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from pagedlab.analysis.metrics import METRICS, Metric, known_metrics
from pagedlab.analysis.runs import Run, as_text, axes_of, levels_of, ordered, setting
from pagedlab.analysis.statistics import Estimate, estimate, pareto
from pagedlab.core.errors import ConfigError

FRONT = ("kv_waste_fraction", "output_tokens_per_s", "ttft_s_mean")
"""What the best are chosen by, and what nobody of the Pareto front is beaten in at once."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value of an axis, or one of each of two. effect: by how much its mean differs from that over all values; of two
    axes what is left of that once the effects of both alone are taken away: the interaction."""

    values: tuple[str, ...]
    metric: Metric
    mean: Estimate
    effect: Estimate


@dataclass(frozen=True, slots=True)
class Combination:
    """One setting of all axes but the seed: means over its seeds. best: the metrics in which none is better."""

    settings: dict[str, str]
    seeds: int
    means: dict[str, float]
    best: list[str]
    on_front: bool


@dataclass(frozen=True, slots=True)
class Ablation:
    """cells: of the axis. crossed: of both axes. shares: metric -> how much of the variation (sums of squares) each
    axis, their interaction and the seeds make up; empty with one axis."""

    axes: list[str]
    levels: list[list[str]]
    seeds: int
    runs: int
    left_out: int
    cells: list[Cell]
    crossed: list[Cell]
    shares: dict[str, dict[str, float]]
    combinations: list[Combination]


def ablate(runs: Seq[Run], axes: Seq[str], metrics: Seq[str]) -> Ablation:
    """axes: one or two names of settings. ConfigError for one in which the runs do not differ, for two runs of the same
    settings, and where no block is complete."""
    others = [axis for axis in ["seed", *axes_of(runs)] if axis not in axes]
    others = list(dict.fromkeys(others))
    levels = [_levels(runs, axis) for axis in axes]
    blocks = _blocks(runs, axes, others)
    cells = [tuple(values) for values in _product(levels)]
    complete = {key: block for key, block in blocks.items() if set(block) == set(cells)}
    if not complete:
        lacking = next(cell for block in blocks.values() for cell in cells if cell not in block)
        raise ConfigError(
            f"no setting of {', '.join(others)} was run with every value of {' and '.join(axes)}: "
            f"{', '.join(f'{a}={v}' for a, v in zip(axes, lacking, strict=True))} is missing"
        )
    used = [run for block in complete.values() for run in block.values()]
    chosen = [METRICS[name] for name in metrics if METRICS[name] in known_metrics([run.summary for run in used])]
    table = {metric.column: _averaged(complete, cells, levels, metric.column) for metric in chosen}
    first = {name: t.reshape(len(levels[0]), -1, t.shape[-1]).mean(axis=1) for name, t in table.items()}
    return Ablation(
        list(axes),
        levels,
        len({run.seed for run in used}),
        len(used),
        len(runs) - len(used),
        [cell for m in chosen for cell in _main(m, [(v,) for v in levels[0]], first[m.column])],
        [cell for m in chosen for cell in _interaction(m, cells, table[m.column])] if len(axes) == 2 else [],
        {m.column: _shares(axes, table[m.column]) for m in chosen} if len(axes) == 2 else {},
        combinations(used, list(dict.fromkeys([*axes, *others]))),
    )


def combinations(runs: Seq[Run], axes: Seq[str]) -> list[Combination]:
    """The settings that were run, in order, with the means of all metrics of the front that all of them have."""
    named = [axis for axis in axes if axis != "seed"]
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in ordered(runs, named):
        groups.setdefault(tuple(as_text(setting(run, axis)) for axis in named), []).append(run)
    columns = [column for column in FRONT if all(run.summary.get(column) is not None for run in runs)]
    means = [{c: float(np.mean([run.summary[c] for run in group])) for c in columns} for group in groups.values()]
    losses = [[-m[c] if METRICS[c].better == "higher" else m[c] for c in columns] for m in means]
    front = pareto(losses) if columns else [False] * len(means)
    least = np.min(losses, axis=0) if columns else []
    return [
        Combination(
            dict(zip(named, key, strict=True)),
            len(group),
            mean,
            [column for column, own, best in zip(columns, loss, least, strict=True) if own == best],
            on_front,
        )
        for (key, group), mean, loss, on_front in zip(groups.items(), means, losses, front, strict=True)
    ]


def _levels(runs: Seq[Run], axis: str) -> list[str]:
    if axis == "seed":
        raise ConfigError("--axis seed: seeds are what the intervals are over, expected another setting")
    levels = levels_of(runs, axis)
    if len(levels) < 2:
        swept = ", ".join(axes_of(runs)) or "none"
        raise ConfigError(f"--axis {axis}: the same in all runs, or no setting; they differ in {swept}")
    return levels


def _product(levels: Seq[Seq[str]]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for values in levels:
        found = [[*one, value] for one in found for value in values]
    return found


def _blocks(runs: Seq[Run], axes: Seq[str], others: Seq[str]) -> dict[tuple[str, ...], dict[tuple[str, ...], Run]]:
    """Settings of everything else -> values of the axes -> the run."""
    blocks: dict[tuple[str, ...], dict[tuple[str, ...], Run]] = {}
    for run in runs:
        key, cell = (tuple(as_text(setting(run, axis)) for axis in names) for names in (others, axes))
        block = blocks.setdefault(key, {})
        if cell in block:
            raise ConfigError(f"two runs of the same settings: {block[cell].folder} and {run.folder}")
        block[cell] = run
    return blocks


def _averaged(
    blocks: dict[tuple[str, ...], dict[tuple[str, ...], Run]],
    cells: Seq[tuple[str, ...]],
    levels: Seq[Seq[str]],
    column: str,
) -> np.ndarray:
    """float64 [values of the first axis, of the second if there is one, seeds]: means over the blocks of a seed."""
    by_seed: dict[int, list[list[float]]] = {}
    for block in blocks.values():
        seed = next(iter(block.values())).seed
        by_seed.setdefault(seed, []).append([float(block[cell].summary[column]) for cell in cells])
    means = np.array([np.mean(rows, axis=0) for rows in by_seed.values()]).T
    return means.reshape(*(len(values) for values in levels), -1)


def _main(metric: Metric, values: Seq[tuple[str, ...]], table: np.ndarray) -> list[Cell]:
    effects = table - table.mean(axis=0)
    return [Cell(value, metric, estimate(table[i]), estimate(effects[i])) for i, value in enumerate(values)]


def _interaction(metric: Metric, values: Seq[tuple[str, ...]], table: np.ndarray) -> list[Cell]:
    grand = table.mean(axis=(0, 1))
    left = table - table.mean(axis=1)[:, None] - table.mean(axis=0)[None] + grand
    rows, effects = table.reshape(len(values), -1), left.reshape(len(values), -1)
    return [Cell(value, metric, estimate(rows[i]), estimate(effects[i])) for i, value in enumerate(values)]


def _shares(axes: Seq[str], table: np.ndarray) -> dict[str, float]:
    """Of the two-way analysis of variance with the seeds as replicates: each sum of squares, of the total."""
    grand, a, b, cell = table.mean(), table.mean(axis=(1, 2)), table.mean(axis=(0, 2)), table.mean(axis=2)
    n = table.size
    sums = {
        axes[0]: float(n / len(a) * np.sum((a - grand) ** 2)),
        axes[1]: float(n / len(b) * np.sum((b - grand) ** 2)),
        "interaction": float(n / cell.size * np.sum((cell - a[:, None] - b[None] + grand) ** 2)),
        "seeds": float(np.sum((table - cell[..., None]) ** 2)),
    }
    total = sum(sums.values())
    return {name: value / total if total else 0.0 for name, value in sums.items()}
