"""What an axis of a sweep does: `python -m experiments.ablate DIR --axis block_size` is `pagedlab ablate ...`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pagedlab.analysis.command import Parser, answer, console


def main() -> int:
    parser = Parser(
        "ablate", "What an axis does to each metric, how two axes work together, and which settings are best."
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="a sweep, or a folder above runs")
    parser.add_argument("--axis", required=True, metavar="NAME", help="a setting in which the runs differ")
    parser.add_argument("--axis2", metavar="NAME", help="a second one: how the two interact")
    parser.add_argument("--where", metavar="SQL", help="only these runs")
    parser.add_argument("--metrics", metavar="NAMES", help="by commas; the main ones unless given")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where tables and plots go; DIR/ablation/AXIS unless given"
    )
    return answer(parser, ablate_folder)


def ablate_folder(words: argparse.Namespace) -> None:
    from pagedlab.analysis.ablation import ablate
    from pagedlab.analysis.ablation_files import cell_table, combination_table, write_ablation
    from pagedlab.analysis.metrics import MAIN, METRICS
    from pagedlab.analysis.query import select
    from pagedlab.analysis.results import printed
    from pagedlab.analysis.runs import completed_runs
    from pagedlab.core.errors import ConfigError

    metrics = [name.strip() for name in words.metrics.split(",")] if words.metrics else list(MAIN)
    for name in metrics:
        if name not in METRICS:
            raise ConfigError(f"--metrics {name}: no such metric, expected some of {', '.join(METRICS)}")
    axes = [axis for axis in (words.axis, words.axis2) if axis]
    if len(set(axes)) < len(axes):
        raise ConfigError(f"--axis2 {words.axis2}: expected another than --axis")
    runs = completed_runs(words.folder)
    if words.where:
        runs = select(runs, words.where, None)
    found = ablate(runs, axes, metrics)
    out = console()
    out.print(f"{found.runs} runs, {found.seeds} seeds, {found.left_out} runs left out of incomplete blocks")
    out.print(printed(cell_table(found.axes[:1], found.cells)))
    if found.crossed:
        out.print(printed(cell_table(found.axes, found.crossed)))
        for name, shares in found.shares.items():
            said = ", ".join(f"{axis} {100 * share:.1f} %" for axis, share in shares.items())
            out.print(f"variation of {METRICS[name].label}: {said}", markup=False)
    out.print(printed(combination_table(found.combinations)))
    folder = words.out or words.folder / "ablation" / "_x_".join(axes)
    write_ablation(folder, found)
    print(f"tables and plots: {folder}")


if __name__ == "__main__":
    sys.exit(main())
