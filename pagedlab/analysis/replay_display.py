"""What a person sees of a cache replay: a progress bar, a table of hit ratios between their bounds, one sentence."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pagedlab.replay.study import Study
from pagedlab.replay.trace import Trace

_REFRESH_S = 0.1


class ReplayDisplay:
    """Progress goes to stderr, and only to a terminal; results go to stdout."""

    def __init__(self, progress: bool):
        self._err = Console(stderr=True)
        self._out = Console(width=None if sys.stdout.isatty() else 120)
        self._progress = progress and self._err.is_terminal
        self._bar: Progress | None = None

    def start(self, trace: Trace, runs: int) -> Callable[[str, int], None]:
        """Say what is replayed and open the bar, of `runs` replays and bounds; returns what `run_study` calls."""
        tokens = "" if trace.input_tokens is None else f", {trace.input_tokens} prompt tokens"
        self._out.print(
            f"{len(trace.requests)} requests, {trace.num_references} references to {trace.num_blocks} blocks "
            f"of {trace.block_tokens} tokens{tokens}",
            highlight=False,
            soft_wrap=True,
        )
        if not self._progress:
            return lambda what, done: None
        self._bar = Progress(
            BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=self._err, transient=True
        )
        self._bar.start()
        task = self._bar.add_task("", total=runs * len(trace.requests))
        begun, shown = list[str](), 0.0

        def update(what: str, done: int) -> None:
            nonlocal shown
            if what not in begun[-1:]:
                begun.append(what)
            now = time.monotonic()
            if now - shown >= _REFRESH_S and self._bar is not None:
                shown = now
                self._bar.update(task, completed=(len(begun) - 1) * len(trace.requests) + done, description=what)

        return update

    def done(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def result(self, study: Study, leaf_first: bool) -> None:
        self._out.print(hit_table(study, leaf_first))
        self._out.print(verdict(study), highlight=False, soft_wrap=True, markup=False)


def hit_table(study: Study, leaf_first: bool) -> Table:
    """Hit ratio and gap to the optimum by policy and capacity, and how many references a second each took."""
    kind = "prefix cache, leaf-first" if leaf_first else "flat cache"
    capacities = list(study.optimal)
    table = Table(title=f"hit ratio in % ({kind}); in brackets the gap to the optimum", title_justify="left")
    table.add_column("policy")
    for capacity in capacities:
        table.add_column(f"{capacity} blocks", justify="right")
    table.add_column("1000 references/s", justify="right")
    cells = {(row["policy"], row["capacity_blocks"]): row for row in study.rows}
    for policy in dict.fromkeys(row["policy"] for row in study.rows):
        rows = [cells.get((policy, capacity)) for capacity in capacities]
        texts = ["-" if r is None else f"{100 * r['hit_ratio']:.2f} ({100 * r['opt_gap']:.2f})" for r in rows]
        rates = [r["references_per_s"] / 1000 for r in rows if r is not None]
        table.add_row(escape(policy), *texts, f"{min(rates):.0f} to {max(rates):.0f}")
    table.add_section()
    table.add_row("belady, the optimum", *(f"{100 * ratio:.2f}       " for ratio in study.optimal.values()), "")
    table.add_row("infinite cache", *(f"{100 * study.infinite:.2f}       " for _ in capacities), "")
    return table


def verdict(study: Study) -> str:
    """One plain sentence: what the numbers mean, at the capacity where the policies differ most."""
    if not study.rows:
        return "The replay was interrupted before its first result."
    by_capacity: dict[int, list[dict[str, float]]] = {}
    for row in study.rows:
        if row["policy"] != "belady":
            by_capacity.setdefault(row["capacity_blocks"], []).append(row)
    if not by_capacity:
        return f"An infinite cache would hit {100 * study.infinite:.1f} % of the references."
    capacity, rows = max(by_capacity.items(), key=lambda item: (spread(item[1]), max(r["opt_gap"] for r in item[1])))
    best, worst = max(rows, key=lambda r: r["hit_ratio"]), min(rows, key=lambda r: r["hit_ratio"])
    text = f"With {capacity} blocks {best['policy']} hits {100 * best['hit_ratio']:.1f} % of the references"
    if len(rows) > 1:
        text += f", {100 * spread(rows):.1f} points more than {worst['policy']}"
    return text + f" and {100 * best['opt_gap']:.1f} points less than the optimum."


def spread(rows: list[dict[str, float]]) -> float:
    ratios = [row["hit_ratio"] for row in rows]
    return max(ratios) - min(ratios)
