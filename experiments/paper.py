"""The PagedAttention paper, figure by figure: `python -m experiments.paper figure=2` is `pagedlab paper figure=2`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from rich.console import Console

    from pagedlab.launch import Job
    from pagedlab.paper.points import Point

# What is slow to import is imported where it is used: --help and a mistyped config answer at once.


def main() -> int:
    return guarded(paper)


def paper(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch

    return launch(lambda job: paper_job(job, interrupts), interrupts, "paper").exit_code


def paper_job(job: Job, interrupts: Interrupts) -> None:
    from rich.console import Console

    from pagedlab.paper.bench import Bench
    from pagedlab.paper.study import choice_of, compute, write_all

    choice = choice_of(job.config)
    job.folder.mkdir(parents=True, exist_ok=True)
    # It never stands beside figures of another study.
    (job.folder / "summary.json").unlink(missing_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 140)
    done: dict[str, list[Point]] = {}
    with console.status("") as status:

        def tick(what: str) -> None:
            interrupts.raise_if_requested()
            if choice.progress and console.is_terminal:
                status.update(what)

        bench = Bench(choice.trace_s, choice.seeds, tick, choice.most_requests, choice.traces)
        for figure, points in compute(job.folder, choice, bench):
            done[figure] = points
            show(console, figure, points)
    write_all(job.folder, choice, {figure: done[figure] for figure in choice.figures}, "completed")
    print(f"run folder: {job.folder}")


def show(console: Console, figure: str, points: list[Point]) -> None:
    from rich.table import Table

    from pagedlab.paper.base import FIGURES

    chosen = FIGURES[f"figure{figure}"]()
    table = Table(title=chosen.title)
    for column in ("workload", "system", "metric"):
        table.add_column(column)
    for column in ("x", "ours", "95 %", "published", "error"):
        table.add_column(column, justify="right")
    for p in points:
        table.add_row(
            p.workload,
            p.system,
            p.metric,
            "" if p.x is None else f"{p.x:g}",
            "" if p.value is None else f"{p.value:.4g}",
            "" if p.ci_low is None else f"{p.ci_low:.4g} to {p.ci_high:.4g}",
            "" if p.published is None else f"{p.published:.4g}",
            "" if p.error is None else f"{100 * p.error:+.1f} %",
        )
    console.print(table)
    for line in chosen.said(points):
        console.print(line)


if __name__ == "__main__":
    sys.exit(main())
