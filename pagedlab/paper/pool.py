"""The parts of the figures, each run by itself: in processes, as many as there are cores, or in this one."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

from pagedlab.paper.base import FIGURES
from pagedlab.paper.bench import Bench
from pagedlab.paper.points import Point

Name = tuple[str, str]
"""(number of the figure, name of its part)."""


def run_all(names: list[Name], bench: Bench, workers: int) -> Iterator[tuple[Name, list[Point]]]:
    """The points of each part, as they become ready; those that measure this machine come last, in this process, when
    nothing else of the study runs. bench.tick is called often, and may raise to end it: then, as after an error of a
    part, nothing is left running."""
    alone = [(number, part) for number, part in names if part in FIGURES[f"figure{number}"].alone]
    names = [name for name in names if name not in alone]
    if workers == 1 or len(names) <= 1:
        alone, names = names + alone, []
    if names:
        yield from _side_by_side(names, bench, workers)
    for name in alone:
        yield name, _points(name, bench)


def _side_by_side(names: list[Name], bench: Bench, workers: int) -> Iterator[tuple[Name, list[Point]]]:
    context = multiprocessing.get_context("spawn")
    # What may tell the user cannot travel.
    still = Bench(bench.trace_s, bench.seeds, most_requests=bench.most_requests, traces=bench.traces)
    with ProcessPoolExecutor(min(workers, len(names)), context, _begin) as pool:
        try:
            open_parts = {pool.submit(_points, name, still): name for name in names}
            while open_parts:
                done, _ = wait(open_parts, timeout=0.5, return_when=FIRST_COMPLETED)
                bench.tick(f"{len(open_parts)} parts to go")
                for future in done:
                    yield open_parts.pop(future), future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _points(name: Name, bench: Bench) -> list[Point]:
    number, part = name
    return FIGURES[f"figure{number}"]().parts()[part](bench)


def _begin() -> None:
    """In a new process: configs can be composed, and signals are the parent's to answer."""
    from hydra import initialize_config_module

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    initialize_config_module("pagedlab.conf", version_base="1.3")
