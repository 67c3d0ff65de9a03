"""Finished runs on disk: where they are below a folder, and each as one flat row."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pagedlab.analysis.metrics import METRICS
from pagedlab.core.errors import ConfigError
from pagedlab.recorder.metrics import SCHEMA_VERSION
from pagedlab.recorder.reading import Facts, damaged, read_object

# libyaml's is fifteen times as fast, where it is there; both make plain values only.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What says nothing of what was run: where a run is shown, and how it tells of itself.
_ASIDE = ("tracker", "progress", "audit_every", "hydra", "record_blocks")
_NOT_A_RUN = "no run of `pagedlab serve`"


@dataclass(frozen=True, slots=True)
class Run:
    """One run folder. name: its path below where it was looked for. config: flat, `workload.num_requests`; what a group
    chose is under the group's own name. summary: flat, `ttft_s_mean`."""

    folder: Path
    name: str
    config: dict[str, Any]
    summary: dict[str, Any]

    @property
    def seed(self) -> int:
        return int(self.summary["seed"])

    def row(self) -> dict[str, Any]:
        """All that is known of it; where config and summary share a name, the summary's value."""
        return {"run": self.name, **self.config, **self.summary}


@dataclass(frozen=True, slots=True)
class Found:
    """skipped: a line for each summary that is not one of a run that this pagedlab reads."""

    runs: list[Run]
    skipped: list[str]


def find_runs(root: Path) -> Found:
    """Every run at or below `root`, in natural order of its path. ConfigError where there is none."""
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder")
    runs: list[Run] = []
    refused: dict[Path, str] = {}
    for folder in _folders(root):
        try:
            runs.append(read_run(folder, "." if folder == root else folder.relative_to(root).as_posix()))
        except ConfigError as error:
            refused[folder] = str(error)
    # The summary of a sweep stands above its runs.
    above = {parent for run in runs for parent in run.folder.parents}
    skipped = [line for folder, line in refused.items() if folder not in above]
    if not runs:
        said = f" ({skipped[0]})" if skipped else ""
        raise ConfigError(f"{root}: holds no run{said}, expected the folder of a run or of a sweep, or one above")
    return Found(runs, skipped)


def completed_runs(root: Path) -> list[Run]:
    """Those that ended as they should. ConfigError where there is none."""
    runs = [run for run in find_runs(root).runs if run.summary["status"] == "completed"]
    if not runs:
        raise ConfigError(f"{root}: none of its runs is completed")
    return runs


def read_run(folder: Path, name: str) -> Run:
    """ConfigError, one line, for what is not a run or is of another version."""
    path = folder / "summary.json"
    summary = read_object(path)
    if not {"status", "num_requests", "seed"} <= summary.keys():
        raise ConfigError(f"{path}: {_NOT_A_RUN}")
    version = summary.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ConfigError(f"{path}: schema_version {version}, this pagedlab reads {SCHEMA_VERSION}")
    missing = [file for file in ("config.yaml", "requests.parquet") if not (folder / file).is_file()]
    if missing:
        raise ConfigError(f"{path}: {_NOT_A_RUN}, {missing[0]} is missing beside it")
    try:
        config = _LOADER((folder / "config.yaml").read_text(encoding="utf-8")).get_single_data()
    except OSError as error:
        raise damaged(folder / "config.yaml", f"it cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError, yaml.YAMLError):
        raise damaged(folder / "config.yaml", "it is cut off, or no YAML") from None
    if not isinstance(config, dict):
        raise damaged(folder / "config.yaml", "it is no mapping")
    summary.check_numbers("num_requests", "seed")
    flat = Facts(path, _flat_summary(summary))
    flat.check_numbers(*(METRICS.keys() & flat.keys()), unknown=True)
    return Run(folder, name, dict(_flat_config(config)), dict(flat))


def axes_of(runs: Iterable[Run]) -> list[str]:
    """The settings in which runs differ. What comes along with the choice of a group is not named beside it."""
    rows = [run.config | {"seed": run.seed} for run in runs]
    differing = [key for key in dict.fromkeys(k for row in rows for k in row) if len(_values(rows, key)) > 1]
    axes: list[str] = []
    for key in sorted(differing, key=lambda key: (key != "system", key.count("."))):
        followed = [axis for axis in axes if axis == "system" or axis == key.partition(".")[0]]
        if not any(_follows(rows, key, axis) for axis in followed):
            axes.append(key)
    return [key for key in differing if key in axes]


def distinct_axes(runs: Iterable[Run], axes: Iterable[str]) -> list[str]:
    """Of axes that tell the runs apart in the same way (two models, each with a hardware and a workload of its own) one
    stands for all: a choice by name rather than a number, a plain name rather than a dotted one."""
    runs, axes = list(runs), list(axes)
    standing: dict[tuple[int, ...], str] = {}
    for axis in sorted(axes, key=lambda axis: ("." in axis, not _is_choice(runs, axis))):
        place: dict[str, int] = {}
        split = tuple(place.setdefault(as_text(setting(run, axis)), len(place)) for run in runs)
        standing.setdefault(split, axis)
    return [axis for axis in axes if axis in standing.values()]


def levels_of(runs: Iterable[Run], axis: str) -> list[str]:
    """The values of an axis as texts: numbers in their order, others as they come."""
    values = [setting(run, axis) for run in runs]
    if all(isinstance(value, (int, float)) for value in values):
        values = sorted(set(values))
    return list(dict.fromkeys(as_text(value) for value in values))


def ordered(runs: Iterable[Run], axes: Iterable[str]) -> list[Run]:
    """As if counted through the axes, the last one fastest."""
    runs = list(runs)
    places = {axis: {level: i for i, level in enumerate(levels_of(runs, axis))} for axis in axes}
    return sorted(runs, key=lambda run: [at[as_text(setting(run, axis))] for axis, at in places.items()])


def _is_choice(runs: list[Run], axis: str) -> bool:
    return all(isinstance(setting(run, axis), str) for run in runs)


def setting(run: Run, axis: str) -> Any:
    """The value of an axis, None where the run has no such setting."""
    return run.seed if axis == "seed" else run.config.get(axis)


def as_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (list, dict)) else str(value)


def _follows(rows: list[dict[str, Any]], key: str, axis: str) -> bool:
    """Whether the value of `axis` alone says that of `key`."""
    pairs = {(as_text(row.get(axis)), as_text(row.get(key))) for row in rows}
    return len(pairs) == len({value for value, _ in pairs})


def _values(rows: list[dict[str, Any]], key: str) -> set[str]:
    return {as_text(row.get(key)) for row in rows}


def _folders(root: Path) -> Iterator[Path]:
    """Those with a summary.json, at or below root."""
    for place, below, files in os.walk(root):
        below[:] = sorted((name for name in below if not name.startswith(".")), key=_natural)
        if "summary.json" in files:
            yield Path(place)


def _natural(name: str) -> list[tuple[int, str]]:
    """10 comes after 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _flat_config(values: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        path = f"{prefix}{key}"
        if path.split(".")[0] in _ASIDE or path.endswith("provenance"):
            continue
        if isinstance(value, dict):
            yield from _flat_config(value, f"{path}.")
        else:
            yield path.removesuffix(".name"), value


def _flat_summary(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{key}_{name}": number for name, number in value.items()}
        else:
            flat[key] = value
    return flat
