"""`seeds=[0,1,2]`: one job, the run once for each seed, and what they come to together.

Each repetition is a run of its own, with its folder `seed_N` and everything in it built anew: a cold cache, no warm-up.
The job's summary holds the means, and beside each mean the spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import Any

import yaml

from pagedlab.analysis.display import Display
from pagedlab.interrupts import Interrupts
from pagedlab.recorder.environment import environment
from pagedlab.recorder.files import holds_completed_run, write_atomic, write_json
from pagedlab.recorder.redact import redact
from pagedlab.run import run
from pagedlab.settings import Settings
from pagedlab.sweep.record import read_object

_NO_SPREAD = ("schema_version", "seed")  # numbers that are names


def repeat(
    settings: Settings, config: dict[str, Any], folder: Path, interrupts: Interrupts, show: Display, resume: bool
) -> dict[str, Any]:
    """Run once for each of settings.seeds and write the folder; returns its summary.

    resume: a repetition that the folder holds finished is not run again, which is for the caller to know: only the
    folder of a sweep's job is sure to be of the same settings. What goes wrong in a repetition is raised, the
    repetitions before it stay.
    """
    seeds = settings.seeds or [settings.seed]
    summaries = []
    for seed in seeds:
        below = folder / f"seed_{seed}"
        if resume and holds_completed_run(below):
            summaries.append(read_object(below / "summary.json"))
            continue
        show.doing(f"seed {seed}")
        one = replace(settings, seed=seed, seeds=None)
        summaries.append(run(one, config | {"seed": seed, "seeds": None}, below, interrupts, show))
    summary = together(summaries, seeds)
    (folder / "summary.json").unlink(missing_ok=True)
    text = yaml.safe_dump(redact(config), sort_keys=False, allow_unicode=True)
    write_atomic(folder / "config.yaml", lambda path: path.write_text(text, encoding="utf-8"))
    write_json(folder / "env.json", environment(settings.seed))
    write_json(folder / "summary.json", summary)
    return summary


def together(summaries: Sequence[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """The means over the repetitions; of `NAME` the sample standard deviation is `NAME_std`. What is no number stays
    where all agree. A number that some repetition lacks is the mean of the others. per_seed: the summaries."""
    first = summaries[0]
    summary: dict[str, Any] = {}
    for key in first:
        values = [each.get(key) for each in summaries]
        if isinstance(first[key], dict):
            names = [name for name in first[key] if all(isinstance(value, dict) for value in values)]
            columns = {name: [value[name] for value in values if isinstance(value, dict)] for name in names}
            summary[key] = {name: _mean(column) for name, column in columns.items()}
            summary[f"{key}_std"] = {name: _spread(column) for name, column in columns.items()}
        elif _numbers(values) and key not in _NO_SPREAD:
            summary[key] = _mean(values)
            summary[f"{key}_std"] = _spread(values)
        else:
            summary[key] = values[0] if all(value == values[0] for value in values) else None
    return summary | {"seed": None, "seeds": list(seeds), "per_seed": list(summaries)}


def _numbers(values: Sequence[Any]) -> list[float]:
    return [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]


def _mean(values: Sequence[Any]) -> float | None:
    numbers = _numbers(values)
    if len(set(numbers)) <= 1:  # a count that all agree on stays a whole number
        return numbers[0] if numbers else None
    return math.fsum(numbers) / len(numbers)


def _spread(values: Sequence[Any]) -> float | None:
    """The standard deviation of a sample, with n - 1; None of fewer than two numbers."""
    return stdev(numbers) if len(numbers := _numbers(values)) > 1 else None
