"""The end of a sweep: one table over its jobs, and the same rows as files."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pagedlab.launch import Job, Launch
from pagedlab.recorder.files import write_atomic, write_json
from pagedlab.recorder.metrics import SCHEMA_VERSION
from pagedlab.recorder.redact import redact
from pagedlab.sweep.axes import axes_of
from pagedlab.sweep.record import read_object

# What a ratio is taken against: the job with this value where the axis is swept, else the first finished job.
_BASELINES = {"allocator": "reserve_max"}

_COLUMNS = {
    "kv_waste_fraction": "waste",
    "kv_waste_fraction_when_full": "waste, pool full",
    "mean_batch_size": "mean batch",
    "output_tokens_per_s": "output tokens/s",
    "ratio": "ratio",
    "blocks_saved_fraction": "saved by sharing",
    "prefix_hit_rate": "prefix hits",
    "ttft_s_mean": "TTFT, mean",
    "goodput_fraction": "met the SLO",
    "service_gap_tokens": "service gap",
    "e2e_s_mean": "end to end, mean",
    "itl_s_p99": "ITL, p99",
    "preemptions": "preemptions",
    "recompute_tax": "recomputed",
    "swapped_bytes": "swapped",
    "refused": "refused",
}


def finish_sweep(jobs: Seq[Job]) -> Path:
    """Print the table of a sweep and write summary.json and summary.csv into its folder, which is returned."""
    folder = jobs[0].sweep_folder
    if folder is None:
        raise ValueError("the jobs are not of a sweep")
    jobs = list({job.folder: job for job in jobs}.values())  # words may say one job twice
    axes = axes_of([job.swept for job in jobs])
    rows = [_row(job, axes) for job in jobs]
    baseline = _baseline(rows, axes)
    for row in rows:
        row["ratio"] = None
        if baseline and row["output_tokens_per_s"] is not None:
            row["ratio"] = row["output_tokens_per_s"] / baseline["output_tokens_per_s"]
    per_seed = [row for job in jobs if not job.error for row in _rows_per_seed(job, axes)]
    failed = sum(row["status"] != "completed" for row in rows)
    write_json(
        folder / "summary.json",
        {
            "schema_version": SCHEMA_VERSION,
            "status": "completed" if not failed else "partial",
            "jobs": len(rows),
            "completed": len(rows) - failed,
            "baseline": {axis: baseline[axis] for axis in axes} if baseline else None,
            "rows": rows,
            "rows_per_seed": per_seed,
        },
    )
    write_atomic(folder / "summary.csv", lambda path: path.write_text(_csv(rows), encoding="utf-8"))
    if per_seed:
        write_atomic(folder / "seeds.csv", lambda path: path.write_text(_csv(per_seed), encoding="utf-8"))
    Console(width=None if sys.stdout.isatty() else 140).print(_table(rows, axes, baseline))
    return folder


def own_time(launched: Launch) -> str:
    """How long a sweep took, and how much of that its jobs did not."""
    times = [job.seconds for job in launched.jobs if job.seconds is not None]
    at_once = any(job.launcher != "pool" or job.config.get("jobs", 1) > 1 for job in launched.jobs)
    said = f"{len(launched.jobs)} jobs, {len(launched.jobs) - len(times)} of them finished before, "
    said += f"in {launched.seconds:.1f} s; the jobs took {sum(times):.1f} s"
    if times and not at_once:
        said += f", the rest is {(launched.seconds - sum(times)) / len(times):.3f} s a job"
    if launched.left_out:
        said += f"; {launched.left_out} more were left out, as their config is refused (`pagedlab plan` says why)"
    return said


def _row(job: Job, axes: list[str]) -> dict[str, Any]:
    summary = read_object(job.folder / "summary.json")
    status = "failed" if job.error else summary.get("status", "interrupted" if job.interrupted else "lost")
    return _flat(job, axes, summary, status)


def _rows_per_seed(job: Job, axes: list[str]) -> list[dict[str, Any]]:
    """Of a job that was repeated: a row like the job's for each seed."""
    summary = read_object(job.folder / "summary.json")
    return [_flat(job, axes, of_seed, of_seed["status"]) for of_seed in summary.get("per_seed", [])]


def _flat(job: Job, axes: list[str], summary: dict[str, Any], status: str) -> dict[str, Any]:
    scalars = {key: value for key, value in summary.items() if not isinstance(value, dict) and key != "per_seed"}
    spreads = {
        f"{key}_{name}": number
        for key, value in summary.items()
        if isinstance(value, dict)
        for name, number in value.items()
    }
    row = {axis: summary.get(axis, job.swept.get(axis)) for axis in axes}  # the summary's has its type
    row |= {"folder": job.folder.name, "error": job.error}
    row |= {column: None for column in _COLUMNS if column != "ratio"}
    row |= {key: value for key, value in (scalars | spreads).items() if key not in axes}
    return redact(row | {"status": status})


def _baseline(rows: list[dict[str, Any]], axes: list[str]) -> dict[str, Any] | None:
    done = [row for row in rows if row["status"] == "completed" and row["output_tokens_per_s"]]
    named = [row for row in done for axis in axes if axis in _BASELINES and row[axis] == _BASELINES[axis]]
    return next(iter(named or done), None)


def _table(rows: list[dict[str, Any]], axes: list[str], baseline: dict[str, Any] | None) -> Table:
    against = ", ".join(f"{axis}={baseline[axis]}" for axis in axes) if baseline else "nothing: no job finished"
    table = Table(title="sweep", caption=f"ratio: output tokens/s against {escape(against)}", title_justify="left")
    for axis in axes:
        table.add_column(escape(axis.removeprefix("scheduler.")))
    sharing = any(row["prefix_hit_rate"] for row in rows)
    seldom = {"blocks_saved_fraction": any(row["blocks_saved_fraction"] for row in rows)}
    seldom |= dict.fromkeys(("recompute_tax", "swapped_bytes"), any(row["swapped_bytes"] for row in rows))
    seldom |= {key: any(row[key] is not None for row in rows) for key in ("goodput_fraction", "service_gap_tokens")}
    seldom |= dict.fromkeys(("prefix_hit_rate", "ttft_s_mean"), sharing)
    scheduling = all(axis.startswith("scheduler") for axis in axes)
    seldom |= dict.fromkeys(("e2e_s_mean", "itl_s_p99"), scheduling)
    if scheduling:  # else the table would not fit a terminal
        seldom |= dict.fromkeys(("kv_waste_fraction", "kv_waste_fraction_when_full", "blocks_saved_fraction"), False)
    shown = [key for key in _COLUMNS if seldom.get(key, True)]
    for key in shown:
        table.add_column(_COLUMNS[key], justify="right")
    table.add_column("status")
    for row in rows:
        cells = [escape(str(row[axis])) for axis in axes]
        cells += [_cell(key, row[key]) for key in shown]
        table.add_row(*cells, row["status"])
    return table


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key.endswith(("fraction", "when_full", "rate", "tax")):
        return f"{100 * value:.1f} %"
    if key.endswith("bytes"):
        return f"{value / 2**20:.0f} MiB"
    if key.startswith("itl"):
        return f"{value:.4f}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _csv(rows: list[dict[str, Any]]) -> str:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, keys)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
