"""A run as a trace for Perfetto: `python -m experiments.trace DIR` is `pagedlab trace DIR`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pagedlab.analysis.command import Parser, answer


def main() -> int:
    parser = Parser("trace", "A run as Chrome trace JSON: steps, copies, preemptions, and every request by phase.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of one run")
    parser.add_argument("--out", type=Path, metavar="FILE", help="DIR/trace.json unless given")
    return answer(parser, trace)


def trace(words: argparse.Namespace) -> None:
    from pagedlab.analysis.export import write_file
    from pagedlab.analysis.runs import read_run
    from pagedlab.analysis.trace import write_trace

    run = read_run(words.folder, ".")
    path = words.out or words.folder / "trace.json"
    counts: list[int] = []
    write_file(path, lambda temporary: counts.append(write_trace(run.folder, temporary)))
    print(f"{counts[0]} events: {path} (open it in ui.perfetto.dev)")


if __name__ == "__main__":
    sys.exit(main())
