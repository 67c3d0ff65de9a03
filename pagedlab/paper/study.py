"""The study: part after part, each kept when it is finished: a study that was stopped goes on there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from omegaconf import DictConfig, OmegaConf

from pagedlab.core.errors import ConfigError
from pagedlab.paper.base import FIGURES, MODERN, NUMBERS
from pagedlab.paper.bench import Bench
from pagedlab.paper.drawing import STYLE, save
from pagedlab.paper.key import code_key
from pagedlab.paper.page import page
from pagedlab.paper.points import MOST_SEEDS, SCHEMA, Point, rows_of, table_of
from pagedlab.paper.pool import run_all
from pagedlab.paper.report import report
from pagedlab.paper.traces import RECORDED
from pagedlab.recorder.folder import write_atomic, write_json, write_table
from pagedlab.workload.checks import number, whole


@dataclass(frozen=True, slots=True)
class Choice:
    """figures: their numbers, in order. trace_s, most_requests: requests arrive for so long, or until they are so many.
    seeds: of the traces. workers: processes. traces: recorded workloads of the modern study, name -> file."""

    figures: tuple[str, ...]
    trace_s: float
    most_requests: int
    seeds: tuple[int, ...]
    workers: int
    progress: bool
    traces: dict[str, str]


_SETTINGS = ("figure", "trace_s", "most_requests", "seeds", "workers", "progress", *RECORDED)


def choice_of(config: DictConfig) -> Choice:
    """The checked config of the command. ConfigError."""
    given: Any = OmegaConf.to_container(config)
    unknown = set(given) - set(_SETTINGS)
    if unknown:
        raise ConfigError(f"{min(unknown)}: no such setting, expected one of {', '.join(_SETTINGS)}")
    asked = given["figure"] if isinstance(given["figure"], list) else [given["figure"]]
    figures = tuple(NUMBERS if asked == ["all"] else dict.fromkeys(map(str, asked)))
    for figure in figures:
        if figure not in (*NUMBERS, MODERN):
            raise ConfigError(
                f"figure={figure}: no such option, expected all or some of {', '.join(NUMBERS)}, {MODERN}"
            )
    if not figures:
        raise ConfigError("figure=[]: expected all or some of " + ", ".join(NUMBERS))
    number("trace_s", given["trace_s"], 1, 86400, " seconds")
    whole("most_requests", given["most_requests"], why=", requests of a run")
    seeds = given["seeds"]
    if not isinstance(seeds, list) or not 1 <= len(seeds) <= MOST_SEEDS or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds={seeds}: expected a list of 1 to {MOST_SEEDS} different ones")
    for seed in seeds:
        whole("seeds", seed, low=0)
    if not isinstance(given["progress"], bool):
        raise ConfigError(f"progress={given['progress']}: expected true or false")
    workers = given["workers"]
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    whole("workers", workers, why=", or null for as many as there are cores")
    traces = {name: _file(name, given[name]) for name in RECORDED if given[name] is not None}
    if traces and MODERN not in figures:
        name, path = next(iter(traces.items()))
        raise ConfigError(f"{name}={path}: no figure of the paper has it, expected figure={MODERN} with it")
    return Choice(
        figures, float(given["trace_s"]), given["most_requests"], tuple(seeds), workers, given["progress"], traces
    )


def _file(name: str, path: object) -> str:
    if not isinstance(path, str) or not Path(path).is_file():
        raise ConfigError(f"{name}={path}: no such file, expected a trace that workload={name} reads")
    return path


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def compute(folder: Path, choice: Choice, bench: Bench) -> Iterator[tuple[str, list[Point]]]:
    """(number, points) of each figure as it is finished, those kept in the folder first. A figure that is finished has
    its plots and its parquet; its json holds the parts that are, from the first on."""
    kept = {figure: _kept(folder, figure, choice) for figure in choice.figures}
    names = {figure: list(FIGURES[f"figure{figure}"]().parts()) for figure in choice.figures}
    for figure in choice.figures:
        if len(kept[figure]) == len(names[figure]):
            yield figure, _joined(names[figure], kept[figure])
    missing = [(figure, part) for figure in choice.figures for part in names[figure] if part not in kept[figure]]
    for (figure, part), points in run_all(missing, bench, choice.workers):
        kept[figure][part] = points
        finished = len(kept[figure]) == len(names[figure])
        if finished:
            _show(folder, figure, _joined(names[figure], kept[figure]))
        rows = {name: rows_of(kept[figure][name]) for name in names[figure] if name in kept[figure]}
        write_json(folder / f"figure{figure}.json", {**_key(figure, choice), "parts": rows})
        if finished:
            yield figure, _joined(names[figure], kept[figure])


def _key(figure: str, choice: Choice) -> dict[str, Any]:
    """What its points follow from."""
    return {
        "trace_s": choice.trace_s,
        "most_requests": choice.most_requests,
        "seeds": list(choice.seeds),
        "traces": {name: _digest(path) for name, path in choice.traces.items()} if figure == MODERN else {},
        "code": code_key(figure),
    }


def _kept(folder: Path, figure: str, choice: Choice) -> dict[str, list[Point]]:
    """The parts of a figure that a study of the same traces, by the same code, has finished in this folder."""
    try:
        done = json.loads((folder / f"figure{figure}.json").read_text("utf-8"))
        if any(done[name] != value for name, value in _key(figure, choice).items()):
            return {}
        names = FIGURES[f"figure{figure}"]().parts()
        return {name: [Point(**row) for row in rows] for name, rows in done["parts"].items() if name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _joined(names: list[str], parts: dict[str, list[Point]]) -> list[Point]:
    return [point for name in names for point in parts[name]]


def _show(folder: Path, figure: str, points: list[Point]) -> None:
    with mpl.rc_context(STYLE):
        save(folder / f"figure{figure}", FIGURES[f"figure{figure}"]().draw(points))
    write_table(folder / f"figure{figure}.parquet", table_of(points))


def write_all(folder: Path, choice: Choice, done: dict[str, list[Point]], status: str) -> None:
    """points.parquet, points.json, REPORT.md, index.html and, last, summary.json, of the figures that are finished."""
    points = [point for of in done.values() for point in of]
    write_table(folder / "points.parquet", table_of(points))
    text = json.dumps(rows_of(points), indent=1, allow_nan=False) + "\n"
    write_atomic(folder / "points.json", lambda path: path.write_text(text, encoding="utf-8"))
    said = report(choice, done)
    write_atomic(folder / "REPORT.md", lambda path: path.write_text(said, encoding="utf-8"))
    shown = page(folder, choice, done)
    write_atomic(folder / "index.html", lambda path: path.write_text(shown, encoding="utf-8"))
    errors = [abs(point.error) for point in points if point.error is not None]
    write_json(
        folder / "summary.json",
        {
            "status": status,
            "figures": list(done),
            "trace_s": choice.trace_s,
            "seeds": list(choice.seeds),
            "points": len(points),
            "published_points": len(errors),
            "median_relative_error": sorted(errors)[len(errors) // 2] if errors else None,
            "columns": SCHEMA.names,
        },
    )
