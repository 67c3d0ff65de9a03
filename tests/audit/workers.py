"""Jobs of a sweep in several processes: the same bytes as one after another; a worker that dies costs its job alone.

A worker dies in the middle of a step of its engine, by os._exit or a signal nobody can catch; the others finish, the
exit code says that one failed, and the same command once more runs that one and no other.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.audit.determinism import RUNS, SMALL
from tests.audit.harness import ROOT, Check, Found

FINGERPRINT = [*SMALL, "executor=fingerprint", "model=tiny_llama"]
SWEPT = "seed=range(0,6)"

# As a plugin every process of a sweep has it: the third call of the executor in the job of that seed ends its process.
MORTAL = """
import os, signal
from pathlib import Path
from pagedlab.executor.fingerprint import FingerprintExecutor
import pagedlab.run as of

built = of.build
def build(settings, interrupts):
    lab = built(settings, interrupts)
    if settings.seed == {seed} and Path({switch!r}).exists():
        execute, calls = lab.executor.execute, [0]
        def dying(plan):
            calls[0] += 1
            if calls[0] == 3:
                {end}
            return execute(plan)
        lab.executor.execute = dying
    return lab
of.build = build
"""
ENDS = {
    "os._exit(3)": "os._exit(3)",
    "os._exit(0)": "os._exit(0)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSEGV": "os.kill(os.getpid(), signal.SIGSEGV)",
}


def sweep(folder: Path, words: list[str], jobs: int, *front: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pagedlab.cli", "serve", *front, "-m", *words, SWEPT, f"jobs={jobs}"]
    made = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*command, f"hydra.sweep.dir={folder}"], cwd=ROOT, env=made, capture_output=True, text=True, timeout=600
    )


def results_of(folder: Path) -> dict[str, bytes]:
    """Of every job all that does not say when it ran, how long it took, and how many ran beside it."""
    aside = ("env.json", "job.json", "log.txt")
    return {
        str(path.relative_to(folder)): re.sub(rb"(?m)^jobs: .*$", b"", path.read_bytes())
        for path in folder.glob("*/*")
        if path.is_file() and path.name not in aside and not path.name.startswith(".")
    }


def same_bytes(found: Found, run: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        by_jobs = {}
        for jobs in (1, 4):
            folder = Path(made) / str(jobs)
            done = sweep(folder, RUNS[run], jobs)
            found.attempt(f"{run}, jobs={jobs}", done.returncode == 0, done.stderr[-300:])
            by_jobs[jobs] = results_of(folder)
        for name in sorted(by_jobs[1].keys() | by_jobs[4].keys()):
            found.attempt(f"{run}: {name}", by_jobs[1].get(name) == by_jobs[4].get(name), "differs by jobs=")


def death(found: Found, kind: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder, switch, plugin = Path(made) / "sweep", Path(made) / "switch", Path(made) / "mortal.py"
        plugin.write_text(MORTAL.format(seed=2, switch=str(switch), end=ENDS[kind]))
        switch.touch()
        done = sweep(folder, FINGERPRINT, 2, "--plugin", str(plugin))
        found.attempt(f"{kind}: exit code", done.returncode == 1, f"{done.returncode}: {done.stderr[-300:]}")
        rows = rows_of(folder)
        for row in rows:
            expected = "failed" if str(row["seed"]) == "2" else "completed"
            found.attempt(f"{kind}: job of seed {row['seed']}", row["status"] == expected, row)
        found.attempt(f"{kind}: jobs in the table", len(rows) == 6, len(rows))
        stamps = {row["folder"]: stamp(folder, row) for row in rows if row["status"] == "completed"}
        torn = [row["folder"] for row in rows if row["status"] == "failed" and stamp(folder, row)]
        found.attempt(f"{kind}: nothing of it looks finished", not torn, torn)
        switch.unlink()
        again = sweep(folder, FINGERPRINT, 2, "--plugin", str(plugin))
        found.attempt(f"{kind}: resumed", again.returncode == 0, f"{again.returncode}: {again.stderr[-300:]}")
        rows = rows_of(folder)
        found.attempt(f"{kind}: all are there", [row["status"] for row in rows] == ["completed"] * 6, rows)
        now = {row["folder"]: stamp(folder, row) for row in rows}
        found.attempt(f"{kind}: none ran twice", stamps.items() <= now.items(), "a finished job was written again")


def rows_of(folder: Path) -> list[dict[str, object]]:
    try:
        rows: list[dict[str, object]] = json.loads((folder / "summary.json").read_text())["rows"]
    except OSError:
        return []
    return rows


def stamp(folder: Path, row: dict[str, object]) -> int:
    path = folder / str(row["folder"]) / "summary.json"
    return path.stat().st_mtime_ns if path.exists() else 0


def pieces(short: bool) -> list[tuple[str, str]]:
    if short:
        return []  # tests/sweep has the like
    return [*(("bytes", run) for run in ("fingerprint", "simulated")), *(("death", kind) for kind in ENDS)]


def attempt(piece: tuple[str, str]) -> Found:
    found = Found()
    (same_bytes if piece[0] == "bytes" else death)(found, piece[1])
    return found


CHECK = Check("one worker and four: the same bytes; one that dies costs its job alone", pieces, attempt, 100)
