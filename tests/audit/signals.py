"""SIGINT, SIGTERM and SIGKILL at random moments of a run: exit codes, and a folder that is whole or has no summary.

The command runs in forks of one process that has imported it: what strikes an import is tried in tests/cli.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from tests.audit.harness import Check, Found

LONG = ["executor=fingerprint", "model=tiny_llama", "workload=synthetic", "workload.num_requests=400"]
LONG += ["workload.prompt.high=120", "workload.output.high=120", "kv_num_blocks=64", "progress=false"]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
WITHIN_S = 1.5  # the moments
EXIT_S = 60  # to end in, on a busy machine


def begin(folder: Path) -> int:
    """The process that serves into this folder."""
    from pagedlab.experiments import serve

    child = os.fork()
    if child:
        return child
    code = 70
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        sys.argv = ["serve", *LONG, f"hydra.run.dir={folder}"]
        code = serve.main()
    finally:
        os._exit(code)


def ended(child: int) -> int | None:
    """Its exit code, as subprocess says it; None where it had to be killed for going on."""
    end = time.monotonic() + EXIT_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def torn(folder: Path, killed: bool) -> str:
    """What is wrong with what a run left; empty where nothing is."""
    if not folder.exists():
        return ""
    if not killed and list(folder.glob(".tmp-*")):
        return "temporary files are left"
    if not (folder / "summary.json").exists():
        return "" if killed or not list(folder.iterdir()) else "files without a summary"
    summary = json.loads((folder / "summary.json").read_text())
    rows = pq.read_table(folder / "requests.parquet", columns=["status"]).column(0).to_pylist()
    pq.read_table(folder / "timeline.parquet")
    pq.read_table(folder / "events.parquet")
    if rows.count("finished") != summary["completed"]:
        return f"{rows.count('finished')} requests finished, the summary says {summary['completed']}"
    return ""


def pieces(short: bool) -> list[tuple[str, int, int]]:
    """(signal, seed, how many)."""
    many = 3 if short else 34
    return [(name, seed, many) for name in ("SIGINT", "SIGTERM", "SIGKILL") for seed in range(1 if short else 2)]


def attempt(piece: tuple[str, int, int]) -> Found:
    name, seed, many = piece
    signum, moments, found = signal.Signals[name], random.Random(seed), Found(figures={"struck in time": 0})
    import pagedlab.run  # noqa: F401 - once for all forks

    for _ in range(many):
        delay_s = moments.uniform(0.0, WITHIN_S)
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made) / "run"
            child = begin(folder)
            time.sleep(delay_s)
            os.kill(child, signum)
            code = ended(child)
            struck = code == CODES[signum]
            found.figures["struck in time"] += struck
            said = f"{name} after {delay_s:.3f} s"
            # One that had ended before, or was about to, has its exit code of 0.
            found.attempt(said, struck or code == 0, f"ended with {code}")
            wrong = torn(folder, killed=name == "SIGKILL")
            found.attempt(f"{said}: the folder", not wrong, wrong)
    return found


CHECK = Check("SIGINT, SIGTERM, SIGKILL at random moments: exit code, folder whole or absent", pieces, attempt, 400)
