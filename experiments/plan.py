"""Say what a sweep would do: `pagedlab plan ...` takes the words of `pagedlab serve -m ...` and runs nothing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from rich.table import Table

    from pagedlab.plan import Plan

_MOST_ROWS = 200


def main() -> int:
    return guarded(plan)


def plan(interrupts: Interrupts) -> int:
    """0 when every job can run, 2 when one cannot and is not left out."""
    from pagedlab.launch import EXIT_USAGE, Job, launch, say
    from pagedlab.plan import plans

    def only_asked(job: Job) -> None:  # --help, --cfg: there is no sweep to plan
        raise AssertionError("a plan runs no job")

    words = [word for word in sys.argv[1:] if word not in ("-m", "--multirun")]
    sys.argv[1:] = ["--multirun", "hydra/sweeper=plan", *words]
    done = launch(only_asked, interrupts)
    if not plans:
        return done.exit_code
    found = plans.pop()
    _print(found)
    if not all(job.composes for job in found.jobs):
        say("error: Hydra composes every job before the first runs: a sweep with one that it cannot is refused whole")
    tried = [job for job in found.jobs if not (found.skips and job.composes)]
    return EXIT_USAGE if any(job.refusal for job in tried) else 0


def _print(plan: Plan) -> None:
    from rich.console import Console

    from pagedlab.plan import CACHED, REFUSED, TO_RUN

    out = Console(width=None if sys.stdout.isatty() else 140)
    out.print(_table(plan))
    if len(plan.jobs) > _MOST_ROWS:
        out.print(f"... and {len(plan.jobs) - _MOST_ROWS} jobs more", highlight=False)
    count = {state: sum(job.state == state for job in plan.jobs) for state in (TO_RUN, CACHED, REFUSED)}
    left_out = " and left out" if plan.skips and count[REFUSED] else ""
    print(f"{len(plan.jobs)} jobs: {', '.join(f'{number} {state}' for state, number in count.items())}{left_out}")
    estimate = _time(plan.estimate_s) if count[TO_RUN] else "0 s"
    print(f"estimated time with jobs={plan.at_once}: {estimate}")
    print(f"sweep folder: {plan.folder}")


def _table(plan: Plan) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from pagedlab.plan import CACHED
    from pagedlab.recorder.redact import redact, redact_text
    from pagedlab.sweep.axes import axes_of

    axes = axes_of([job.swept for job in plan.jobs])
    table = Table(title="plan", title_justify="left")
    for axis in axes:
        table.add_column(escape(axis))
    for column in ("folder", "state", "time", "why not"):
        table.add_column(column, justify="right" if column == "time" else "left")
    for job in plan.jobs[:_MOST_ROWS]:
        swept = redact(job.swept)
        time = "done" if job.state == CACHED else "-" if job.refusal else _time(job.estimate_s)
        values = [escape(str(swept.get(axis, ""))) for axis in axes]
        table.add_row(*values, job.key, job.state, time, escape(redact_text(job.refusal or "")))
    return table


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    sys.exit(main())
