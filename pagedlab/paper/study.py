"""The study: figure after figure, each kept when it is finished: a study that was stopped goes on there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from omegaconf import DictConfig, OmegaConf

from pagedlab.core.errors import ConfigError
from pagedlab.paper.base import FIGURES, NUMBERS
from pagedlab.paper.bench import Bench
from pagedlab.paper.drawing import STYLE, save
from pagedlab.paper.points import MOST_SEEDS, SCHEMA, Point, rows_of, table_of
from pagedlab.paper.report import report
from pagedlab.recorder.folder import write_atomic, write_json, write_table
from pagedlab.workload.checks import number, whole


@dataclass(frozen=True, slots=True)
class Choice:
    """figures: their numbers, in order. trace_s: requests arrive for so long. seeds: of the traces."""

    figures: tuple[str, ...]
    trace_s: float
    seeds: tuple[int, ...]
    progress: bool


def choice_of(config: DictConfig) -> Choice:
    """The checked config of the command. ConfigError."""
    given: Any = OmegaConf.to_container(config)
    unknown = set(given) - {"figure", "trace_s", "seeds", "progress"}
    if unknown:
        raise ConfigError(f"{min(unknown)}: no such setting, expected figure, trace_s, seeds or progress")
    asked = given["figure"] if isinstance(given["figure"], list) else [given["figure"]]
    figures = tuple(NUMBERS if asked == ["all"] else dict.fromkeys(map(str, asked)))
    for figure in figures:
        if figure not in NUMBERS:
            raise ConfigError(f"figure={figure}: no such option, expected all or some of {', '.join(NUMBERS)}")
    if not figures:
        raise ConfigError("figure=[]: expected all or some of " + ", ".join(NUMBERS))
    number("trace_s", given["trace_s"], 1, 86400, " seconds")
    seeds = given["seeds"]
    if not isinstance(seeds, list) or not 1 <= len(seeds) <= MOST_SEEDS or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds={seeds}: expected a list of 1 to {MOST_SEEDS} different ones")
    for seed in seeds:
        whole("seeds", seed, low=0)
    if not isinstance(given["progress"], bool):
        raise ConfigError(f"progress={given['progress']}: expected true or false")
    return Choice(figures, float(given["trace_s"]), tuple(seeds), given["progress"])


def kept(folder: Path, figure: str, choice: Choice) -> list[Point] | None:
    """The points of a figure that a study of the same traces has finished in this folder."""
    try:
        done = json.loads((folder / f"figure{figure}.json").read_text("utf-8"))
        if done["trace_s"] != choice.trace_s or done["seeds"] != list(choice.seeds):
            return None
        return [Point(**row) for row in done["points"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def compute(folder: Path, figure: str, choice: Choice, bench: Bench) -> list[Point]:
    """Run one figure and keep it: plots, parquet and, last, the json that says that it is finished."""
    mark = folder / f"figure{figure}.json"
    mark.unlink(missing_ok=True)
    chosen = FIGURES[f"figure{figure}"]()
    points = chosen.points(bench)
    with mpl.rc_context(STYLE):
        save(folder / f"figure{figure}", chosen.draw(points))
    write_table(folder / f"figure{figure}.parquet", table_of(points))
    write_json(mark, {"trace_s": choice.trace_s, "seeds": list(choice.seeds), "points": rows_of(points)})
    return points


def write_all(folder: Path, choice: Choice, done: dict[str, list[Point]], status: str) -> None:
    """points.parquet, points.json, REPORT.md and, last, summary.json, of the figures that are finished."""
    points = [point for of in done.values() for point in of]
    write_table(folder / "points.parquet", table_of(points))
    text = json.dumps(rows_of(points), indent=1, allow_nan=False) + "\n"
    write_atomic(folder / "points.json", lambda path: path.write_text(text, encoding="utf-8"))
    said = report(choice, done)
    write_atomic(folder / "REPORT.md", lambda path: path.write_text(said, encoding="utf-8"))
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
