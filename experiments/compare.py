"""Two runs or sweeps, pair by pair: `python -m experiments.compare A B` is `pagedlab compare A B`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pagedlab.analysis.command import Parser, answer, console


def main() -> int:
    parser = Parser(
        "compare", "What changes from A to B, by runs of the same seed and the same requests, and how surely."
    )
    for side in ("A", "B"):
        parser.add_argument(side.lower(), type=Path, metavar=side, help="a run, a sweep, or a folder above")
        parser.add_argument(f"--where-{side.lower()}", metavar="SQL", help=f"only these runs of {side}")
    parser.add_argument("--export", nargs=2, metavar=("FORMAT", "FILE"), help="csv, parquet, latex or markdown")
    return answer(parser, compare_folders)


def compare_folders(words: argparse.Namespace) -> None:
    from pagedlab.analysis.compare import as_table, compare, compare_requests, printed, verdict
    from pagedlab.analysis.export import export
    from pagedlab.analysis.pairing import pair
    from pagedlab.analysis.query import select
    from pagedlab.analysis.runs import as_text, completed_runs
    from pagedlab.core.errors import ConfigError

    sides = []
    for folder, where in ((words.a, words.where_a), (words.b, words.where_b)):
        runs = completed_runs(folder)
        runs = select(runs, where, None) if where else runs
        if not runs:
            raise ConfigError(f"{folder}: no completed run with {where}")
        sides.append(runs)
    pairs = pair(*sides)
    found = compare(pairs)
    said = ", ".join(f"{axis} {as_text(a)} -> {as_text(b)}" for axis, (a, b) in pairs.between.items())
    out = console()
    out.print(f"A: {words.a}\nB: {words.b}", markup=False)
    out.print(f"changed: {said or 'no setting'}; paired by {', '.join(pairs.within)} and the requests", markup=False)
    seeds = len({a.seed for a, _ in pairs.pairs})
    count = f"pairs of runs: {len(pairs.pairs)}, seeds: {seeds}"
    out.print(printed(found, count))
    out.print(verdict(found), soft_wrap=True)
    if len(pairs.pairs) == 1:
        by_request = compare_requests(*pairs.pairs[0])
        out.print(printed(by_request, "latencies of these requests, one by one"))
        out.print(
            "Intervals over the requests of one run: as if each were alone, while they queue behind each other, and "
            "nothing about other seeds. More seeds tell.",
            soft_wrap=True,
        )
    if words.export:
        form, file = words.export
        export(as_table(found), form, Path(file))
        print(f"{len(found)} rows: {file}")


if __name__ == "__main__":
    sys.exit(main())
