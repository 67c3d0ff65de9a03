"""`python -m tests.audit`: run every check, print one table, write results/audit.json, exit 1 where one falls short.

With names only those checks, and nothing is written; --short runs the part of them that `make test` does; --list says
what there is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from pagedlab.recorder.folder import write_json
from tests.audit.checks import CHECKS
from tests.audit.harness import ROOT, Verdict, record, run_checks

SHOWN = 3  # faults of a check below the table; the file has them all


def table(verdicts: Mapping[str, Verdict], short: bool) -> Table:
    made = Table("check", "what", "tried", "held", "seconds", "")
    for column in made.columns[2:5]:
        column.justify = "right"
    for name, verdict in verdicts.items():
        found = verdict.found
        said = "ok" if verdict.holds(short) else "FALLS SHORT"
        if said != "ok" and not found.faults:
            said += f": at least {verdict.check.least} expected"
        if found.skipped:
            said += f"; NOT KNOWN: {found.skipped}"
        counted = (f"{key} {value:,}" for key, value in found.figures.items() if isinstance(value, int | float))
        what = "; ".join([verdict.check.what, *counted])
        made.add_row(name, what, f"{found.tried:,}", f"{verdict.held:,}", f"{verdict.seconds:.0f}", said)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.audit", description=(__doc__ or "").partition(":")[2])
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(CHECKS))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    if asked.list:
        for name, check in CHECKS.items():
            print(f"{name:14} {check.what}")
        return 0
    if unknown := set(asked.checks) - set(CHECKS):
        parser.error(f"no such check: {', '.join(sorted(unknown))}, expected some of {', '.join(CHECKS)}")
    chosen = {name: check for name, check in CHECKS.items() if not asked.checks or name in asked.checks}
    began = time.perf_counter()
    verdicts = run_checks(chosen, asked.short, asked.processes, lambda line: print(line, file=sys.stderr, flush=True))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table(verdicts, asked.short))
    for name, verdict in verdicts.items():
        for fault in verdict.found.faults[:SHOWN]:
            console.print(f"{name}: {fault}", markup=False, highlight=False)
    result = record(verdicts, asked.short)
    if not asked.checks and not asked.short:
        write_json(ROOT / "results" / "audit.json", result | {"wall_s": round(time.perf_counter() - began)})
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
