"""What the audit is made of: checks, each in pieces, every piece in a process of its own, and what held.

What a piece raises, its running on and on, and the death of its process are faults that it found: nothing ends the
audit. A piece is JSON, so that `python -m tests.audit.piece CHECK PIECE` is that piece alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Found:
    """What a piece tried, and what did not hold: one line each. figures: whatever else it counted; of two pieces
    numbers are added, the entries of dicts are joined, and of floats the larger stays. skipped: why nothing could be
    tried here."""

    tried: int = 0
    faults: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""

    def attempt(self, name: str, holds: bool, said: object = "") -> None:
        self.tried += 1
        if not holds:
            self.faults.append(f"{name}: {said}")

    def join(self, other: Found) -> None:
        self.tried += other.tried
        self.faults += other.faults
        self.skipped = self.skipped or other.skipped
        for name, value in other.figures.items():
            mine = self.figures.get(name)
            if mine is None:
                self.figures[name] = value
            elif isinstance(value, dict):
                self.figures[name] = mine | value
            else:
                self.figures[name] = max(mine, value) if isinstance(value, float) else mine + value


@dataclass(frozen=True)
class Check:
    """pieces: of the short form, for `make test`, or of the whole. least: so many must be tried by the whole, or it
    falls short. limit_s: of a piece, after which it is killed."""

    what: str
    pieces: Callable[[bool], Sequence[Any]]
    attempt: Callable[[Any], Found]
    least: int = 1
    limit_s: int = 1200


@dataclass
class Verdict:
    check: Check
    found: Found = field(default_factory=Found)
    seconds: float = 0.0  # of its pieces, one after the other

    @property
    def held(self) -> int:
        return max(0, self.found.tried - len(self.found.faults))

    def holds(self, short: bool) -> bool:
        enough = short or self.found.tried >= self.check.least or bool(self.found.skipped)
        return enough and not self.found.faults


_running: set[int] = set()  # each leads a session of its own, which no signal of the terminal reaches


def _end(pid: int) -> None:
    """The process, and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def run_piece(check: Check, name: str, piece: Any) -> tuple[Found, float]:
    """What a piece finds in a process of its own, and the seconds it took."""
    command = [sys.executable, "-m", "tests.audit.piece", name, json.dumps(piece)]
    # BLAS and the like would take a thread a processor, of each process.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _running.add(process.pid)
    try:
        printed, said = process.communicate(timeout=check.limit_s)
    except subprocess.TimeoutExpired:
        _end(process.pid)
        process.communicate()
        return Found(1, [f"{piece}: still running after {check.limit_s} s"]), time.perf_counter() - began
    finally:
        _running.discard(process.pid)
    took = time.perf_counter() - began
    if process.returncode:
        last = (said.strip().splitlines() or ["nothing said"])[-1]
        return Found(1, [f"{piece}: ended with {process.returncode}: {last[:500]}"]), took
    return Found(**json.loads(printed.splitlines()[-1])), took


def run_checks(
    checks: Mapping[str, Check], short: bool, processes: int, say: Callable[[str], None] = lambda line: None
) -> dict[str, Verdict]:
    """Every check, so many pieces side by side; says each fault when it is found."""
    verdicts = {name: Verdict(check) for name, check in checks.items()}
    pieces = [(name, piece) for name, check in checks.items() for piece in check.pieces(short)]
    left = {name: sum(of == name for of, _ in pieces) for name in checks}
    with ThreadPoolExecutor(processes) as pool:
        running = {pool.submit(run_piece, checks[name], name, piece): name for name, piece in pieces}
        try:
            for future in as_completed(running):
                name = running[future]
                found, seconds = future.result()
                verdicts[name].found.join(found)
                verdicts[name].seconds += seconds
                left[name] -= 1
                for fault in found.faults:
                    say(f"{name}: {fault}")
                if not left[name]:
                    say(f"{name}: {verdicts[name].found.tried} tried, {verdicts[name].held} held")
        except BaseException:  # Ctrl-C
            pool.shutdown(wait=False, cancel_futures=True)
            for pid in list(_running):
                _end(pid)
            raise
    return verdicts


def record(verdicts: Mapping[str, Verdict], short: bool) -> dict[str, Any]:
    """What results/audit.json holds."""
    checks = {
        name: {
            "what": verdict.check.what,
            "least": verdict.check.least,
            "held": verdict.held,
            "holds": verdict.holds(short),
            "seconds": round(verdict.seconds, 1),
            **asdict(verdict.found),
        }
        for name, verdict in verdicts.items()
    }
    return {"short": short, "holds": all(check["holds"] for check in checks.values()), "checks": checks}
