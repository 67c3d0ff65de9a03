"""A run or a sweep on one page: `python -m experiments.report DIR` is `pagedlab report DIR`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pagedlab.analysis.command import Parser, answer, note


def main() -> int:
    parser = Parser("report", "One HTML page of a run, or of a sweep, that opens offline.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="a run, a sweep, or a folder above")
    parser.add_argument("--out", type=Path, metavar="FILE", help="DIR/report.html unless given")
    return answer(parser, write_report)


def write_report(words: argparse.Namespace) -> None:
    from pagedlab.analysis.export import write_file
    from pagedlab.analysis.report.report import report
    from pagedlab.analysis.runs import find_runs

    found = find_runs(words.folder)
    note(found.skipped)
    html = report(words.folder, found.runs)
    path = words.out or words.folder / "report.html"
    write_file(path, lambda temporary: temporary.write_text(html, encoding="utf-8"))
    print(f"{len(found.runs)} run{'' if len(found.runs) == 1 else 's'}: {path}")


if __name__ == "__main__":
    sys.exit(main())
