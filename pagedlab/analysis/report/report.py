"""`pagedlab report`: what a run or a sweep did, on one page that opens anywhere, without a network."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import pyarrow as pa

from pagedlab.analysis.display import verdict
from pagedlab.analysis.metrics import METRICS
from pagedlab.analysis.report import run_figures, sweep_figures
from pagedlab.analysis.report.page import Page
from pagedlab.analysis.report.run_figures import KINDS
from pagedlab.analysis.runs import Run, axes_of, distinct_axes, ordered, setting
from pagedlab.recorder.metrics import SPLIT
from pagedlab.recorder.reading import Facts, damaged, read_object, read_table

_SLOWEST = 15
_SPREADS = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "itl_s": "ITL",
    "max_itl_s": "longest ITL",
    "wait_s": "wait",
    "e2e_s": "end to end",
}
_HEATED = ("kv_waste_fraction", "output_tokens_per_s", "ttft_s_mean")
_MOST_ROWS = 500
_OF_A_SPREAD = ("mean", "p50", "p90", "p99")
_OF_A_ROW = ("id", "source", "client", "prompt_tokens", "output_tokens", "preemptions", "ttft_s", "e2e_s")
# Of the summary, what is always a number.
_NUMBERS: tuple[str, ...] = (
    "completed",
    "refused",
    "num_requests",
    "duration_s",
    "steps",
    "output_tokens_per_s",
    "mean_batch_size",
)
_NUMBERS += ("peak_batch_size", "kv_waste_fraction", "recomputed_tokens", "prefix_hit_rate", "prefix_hit_tokens")
_NUMBERS += ("prefix_evicted_blocks", "prefill_saved_s", "blocks_saved_fraction", "preemptions", "swaps")
_NUMBERS += ("preemptions_outranked", *(f"kv_{kind}_fraction" for kind in SPLIT))


def report(root: Path, runs: Seq[Run]) -> str:
    """The page of one run, or of several together: HTML."""
    return run_page(runs[0]) if len(runs) == 1 else sweep_page(root, runs)


def run_page(run: Run) -> str:
    summary = _facts(run.folder / "summary.json")
    page = Page(f"pagedlab run {run.folder.resolve().name}")
    _summary(page, summary)
    steps = run_figures.timeline(run.folder)
    if steps.num_rows:
        _pictures(page, run.folder, steps)
    requests = read_table(run.folder / "requests.parquet", (*_OF_A_ROW, "tpot_s", "max_itl_s"))
    if requests["e2e_s"].null_count < requests.num_rows:
        page.section("Latency")
        page.figure(
            run_figures.latencies(requests),
            "distribution of latencies",
            "The share of the completed requests that had at most so much.",
        )
        _slowest(page, requests)
    _origin(page, run.folder)
    return page.html()


def sweep_page(root: Path, runs: Seq[Run]) -> str:
    swept = distinct_axes(runs, [axis for axis in axes_of(runs) if axis != "seed"])
    runs = ordered(runs, swept)
    done = [run for run in runs if run.summary["status"] == "completed"]
    page = Page(f"pagedlab sweep {root.resolve().name}")
    page.section("Summary")
    seeds = len({run.seed for run in runs})
    page.text(
        f"{len(runs)} runs, {len(done)} of them completed, over {', '.join(swept) or 'no setting'}; seeds: {seeds}."
    )
    if done:
        page.section("Memory")
        page.figure(
            sweep_figures.memory_bars(done, swept),
            "split of the KV memory by run",
            "Where every slot of the pool went, time means; at most 40 settings are drawn.",
        )
        page.section("Throughput and latency")
        page.figure(
            sweep_figures.throughput_latency(done, swept),
            "latency against throughput",
            f"Each point is a setting, seeds averaged; a line goes along {swept[-1] if swept else 'nothing'}. Right "
            "and down is better.",
        )
    maps = sweep_figures.heat_maps(done, swept, [METRICS[name] for name in _HEATED]) if done else []
    if maps:
        page.section("Heat maps")
    for title, figure in maps:
        page.figure(figure, f"heat map of {title}", f"{title}: means over all other settings. Darker is better.")
    page.section("Runs")
    _runs_table(page, runs, swept)
    _origin(page, runs[0].folder, f"Of {runs[0].name}, the first run")
    return page.html()


def _facts(path: Path) -> Facts:
    found = read_object(path)
    found.check_numbers(*_NUMBERS)
    for key in _SPREADS:
        if not isinstance(found[key], dict):
            raise damaged(path, f"{key} is {json.dumps(found[key])[:80]}, no mean and percentiles")
        found[key] = Facts(path, found[key])
        found[key].check_numbers(*_OF_A_SPREAD, unknown=True)
    return found


def _summary(page: Page, s: dict[str, Any]) -> None:
    page.section("Summary")
    page.text(verdict(s))
    rows = [
        ("requests", f"{s['completed']} completed, {s['refused']} refused of {s['num_requests']}"),
        ("duration", f"{s['duration_s']:.2f} s of {s.get('clock')} time, {s['steps']} steps"),
        ("output tokens/s", f"{s['output_tokens_per_s']:.1f}"),
        ("batch, mean (peak)", f"{s['mean_batch_size']:.1f} ({s['peak_batch_size']})"),
        ("waste: no token, of allocated", f"{100 * s['kv_waste_fraction']:.2f} %"),
        ("preemptions, recomputed tokens", f"{s['preemptions']}, {s['recomputed_tokens']}"),
        ("prefix hits, evicted blocks", f"{100 * s['prefix_hit_rate']:.1f} %, {s['prefix_evicted_blocks']}"),
        *((f"slots: {label}", f"{100 * s[f'kv_{kind}_fraction']:.2f} %") for kind, label in KINDS.items()),
    ]
    page.table(["", "value"], rows, [False, True])
    spreads = [
        (label, *("-" if v is None else f"{v:.4f}" for v in (s[key][c] for c in _OF_A_SPREAD)))
        for key, label in _SPREADS.items()
    ]
    page.table(["seconds", *_OF_A_SPREAD], spreads, [False, True, True, True, True])


def _pictures(page: Page, folder: Path, steps: pa.Table) -> None:
    page.section("Memory")
    page.figure(
        run_figures.memory_split(steps),
        "split of the KV memory over time",
        "Where every slot of the pool was; the seven sum to all of it.",
    )
    if (folder / "blocks.parquet").is_file():
        figure, left_out = run_figures.block_map(folder / "blocks.parquet")
        page.figure(figure, "map of the blocks over time", f"Who held which block. {left_out}")
    else:
        page.text("No map of the blocks: the run was made without record_blocks=true.")
    page.section("Batch")
    page.figure(
        run_figures.batch(steps), "sequences over time", "How many sequences ran, and how many requests waited."
    )
    page.section("Preemptions and evictions")
    events = read_table(folder / "events.parquet", ("kind", "by", "time_s"))
    page.figure(
        run_figures.happenings(steps, events),
        "preemptions over time",
        "Every preemption and return when it happened, and the blocks evicted from the prefix cache so far.",
    )


def _slowest(page: Page, requests: pa.Table) -> None:
    rows = requests.select(_OF_A_ROW).filter(requests["e2e_s"].is_valid()).sort_by([("e2e_s", "descending")])
    page.text(f"The {min(_SLOWEST, rows.num_rows)} slowest requests:")
    cells = [
        [f"{value:.4f}" if isinstance(value, float) else value for value in row.values()]
        for row in rows.slice(0, _SLOWEST).to_pylist()
    ]
    page.table(_OF_A_ROW, cells, [True, False, False, *[True] * 5])


def _runs_table(page: Page, runs: Seq[Run], swept: Seq[str]) -> None:
    shown = [METRICS[name] for name in (*_HEATED, "mean_batch_size", "e2e_s_mean", "preemptions")]
    head = ["run", *swept, "seed", *(metric.label for metric in shown), "status"]
    rows = [
        [
            run.name,
            *(setting(run, axis) for axis in swept),
            run.seed,
            *(metric.text(run.summary.get(metric.column)) for metric in shown),
            run.summary["status"],
        ]
        for run in runs[:_MOST_ROWS]
    ]
    if len(runs) > _MOST_ROWS:
        page.text(f"The first {_MOST_ROWS} of {len(runs)}; `pagedlab results` has all.")
    page.table(head, rows, [*[False] * (1 + len(swept)), *[True] * (1 + len(shown)), False])


def _origin(page: Page, folder: Path, of: str = "") -> None:
    """What a repetition needs. Both files were redacted when they were written."""
    page.section("Config")
    if of:
        page.text(f"{of}.")
    page.listing((folder / "config.yaml").read_text(encoding="utf-8", errors="replace"))
    page.section("Environment")
    path = folder / "env.json"
    facts = read_object(path) if path.is_file() else {}
    page.table(["", ""], [(key, json.dumps(v) if isinstance(v, (dict, list)) else v) for key, v in facts.items()])
