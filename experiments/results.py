"""Finished runs as a table: `python -m experiments.results DIR` is `pagedlab results DIR`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pagedlab.analysis.command import Parser, answer, console, note


def main() -> int:
    parser = Parser("results", "The runs at or below a folder: what they differ in, and what came of it.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="a run, a sweep, or a folder above")
    parser.add_argument("--where", metavar="SQL", help="only these: \"block_size = 16 and allocator = 'paged'\"")
    parser.add_argument("--sort", metavar="SQL", help='their order: "output_tokens_per_s desc"')
    parser.add_argument("--metrics", metavar="NAMES", help="columns of summary.json to show, by commas (ttft_s_p99)")
    parser.add_argument("--export", nargs=2, metavar=("FORMAT", "FILE"), help="csv, parquet, latex or markdown")
    parser.add_argument("--sql", help="any query over runs, requests, timeline and events, instead of the table")
    return answer(parser, results)


def results(words: argparse.Namespace) -> None:
    from pagedlab.analysis.export import export
    from pagedlab.analysis.query import query, runs_table, select
    from pagedlab.analysis.results import printed, shown
    from pagedlab.analysis.runs import find_runs

    found = find_runs(words.folder)
    note(found.skipped)
    runs = found.runs
    if words.where or words.sort:
        runs = select(runs, words.where, words.sort)
    if words.sql:
        table = full = query(runs, words.sql)
    else:
        table = shown(runs, words.metrics.split(",") if words.metrics else None)
        # For programs everything, for people what the terminal shows.
        full = table if words.export and words.export[0] in ("latex", "markdown") else runs_table(runs)
    if words.export:
        form, file = words.export
        export(full, form, Path(file))
        print(f"{full.num_rows} rows, {full.num_columns} columns: {file}")
        return
    console().print(printed(table))


if __name__ == "__main__":
    sys.exit(main())
