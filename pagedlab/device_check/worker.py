"""Runs parts in a process of their own, each within its time: a GPU that has met one bad access answers nothing more in
the process that made it, and a launch that hangs cannot be stopped but by the end of its process."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Literal

import torch

from pagedlab.device_check.base import Bench, Part, Row

_STARTUP_SECONDS = 60.0  # of a process: to import what the parts need
GRACE_SECONDS = 10.0  # of a part beyond its time, before its process is killed

Status = Literal["done", "cut", "failed", "left out"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """cut: stopped between two rows, its time being over. left out: no time was left for it. error: one line."""

    part: str
    status: Status
    seconds: float
    rows: list[Row]
    error: str | None = None


def run_parts(bench: Bench, parts: Sequence[Part], seconds: float) -> Iterator[Outcome]:
    """The outcome of each part, in order. After one that failed the others go on in a new process. Rows get their
    part's name, and later parts find them in bench.rows."""
    end = time.monotonic() + seconds
    worker = None
    try:
        for part in parts:
            worker = worker or _Worker(parts)
            allowed = min(part.seconds, end - time.monotonic())
            if allowed <= 0:
                yield Outcome(part.name, "left out", 0.0, [])
                continue
            outcome = worker.run(part, replace(bench, seconds=allowed))
            if outcome.status == "failed":
                worker.close()
                worker = None
            bench.rows += outcome.rows
            yield outcome
    finally:
        if worker is not None:
            worker.close()


class _Worker:
    def __init__(self, parts: Sequence[Part]) -> None:
        # Spawned: a process forked from one that has met a GPU cannot use it.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, list(parts)), daemon=True)
        self._process.start()
        theirs.close()  # or its end would not be noticed here
        self._ready = False

    def run(self, part: Part, bench: Bench) -> Outcome:
        rows: list[Row] = []
        start = time.monotonic()
        status, error = self._converse(part, bench, rows.append)
        return Outcome(part.name, status, time.monotonic() - start, rows, error)

    def _converse(self, part: Part, bench: Bench, keep: Callable[[Row], None]) -> tuple[Status, str | None]:
        try:
            if not self._ready:
                if not self._connection.poll(_STARTUP_SECONDS):
                    return "failed", f"its process did not start in {_STARTUP_SECONDS:.0f} s"
                self._ready = self._connection.recv()
            self._connection.send((part.name, bench))
            end = time.monotonic() + bench.seconds + GRACE_SECONDS
            while self._connection.poll(max(0.0, end - time.monotonic())):
                said, content = self._connection.recv()
                if said != "row":
                    return said, content
                keep({"part": part.name, **content})
            return "failed", f"killed {GRACE_SECONDS:.0f} s after its {bench.seconds:.0f} s were over"
        except (EOFError, OSError):
            self._process.join(5)
            return "failed", f"its process ended with exit code {self._process.exitcode}"

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


def _work(connection: Connection, parts: Sequence[Part]) -> None:
    """Names of parts from the other end; back, their rows and how they ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other end has it too, and ends this process
    known = {part.name: part for part in parts}
    connection.send(True)  # what the parts need has been imported by now, on nobody's time
    with suppress(EOFError):
        while True:
            name, bench = connection.recv()
            connection.send(_ending(known[name], bench, connection))
            if bench.device.startswith("cuda"):
                torch.cuda.empty_cache()


def _ending(part: Part, bench: Bench, connection: Connection) -> tuple[Status, str | None]:
    end = time.monotonic() + bench.seconds
    try:
        for row in part.run(bench):
            if bench.device.startswith("cuda"):
                torch.cuda.synchronize()  # a fault shows here, and not in what comes next
            connection.send(("row", row))
            if time.monotonic() > end:
                return "cut", None
    except Exception as error:
        first = (str(error).strip() or "no message").splitlines()[0]
        return "failed", f"{type(error).__name__}: {first}"
    return "done", None
