"""Jobs in processes of their own: one that crashes, hangs or raises costs itself alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A task that goes by its block size, launched as `serve` launches its own.
PROGRAM = """
import ctypes, os, sys, time
from pagedlab.interrupts import guarded
from pagedlab.analysis.sweep import finish_sweep
from pagedlab.recorder.files import write_json

def task(job):
    size = int(job.swept["block_size"])
    print("in job", size, flush=True)
    if size == 1: os._exit(3)
    if size == 2: ctypes.string_at(0)
    if size == 3:
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: time.sleep(1)
    if size == 4: raise RuntimeError("broken")
    if size == 5: time.sleep(60)
    write_json(job.folder / "summary.json", {"status": "completed", "threads": os.environ["OMP_NUM_THREADS"],
                                             "output_tokens_per_s": 1.0, "pid": os.getpid()})

def main(interrupts):
    from pagedlab import launcher
    from pagedlab.launch import launch
    launcher._GRACE_S = 0.5
    done = launch(task, interrupts)
    if done.jobs:
        finish_sweep(done.jobs)
    return done.exit_code

sys.exit(guarded(main))
"""


def command(folder, *words):
    return [sys.executable, "-c", PROGRAM, "-m", f"hydra.sweep.dir={folder}", *words]


def environment():
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    return {**kept, "PYTHONPATH": str(ROOT)}


def call(folder, *words):
    return subprocess.run(
        command(folder, *words), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120
    )


def rows_of(folder):
    return json.loads((folder / "summary.json").read_text())["rows"]


def test_what_becomes_of_each_job_is_its_own(tmp_path):
    done = call(tmp_path, "block_size=1,2,3,4,16,17", "jobs=3", "job_timeout_s=6")
    assert done.returncode == 1, done.stderr
    rows = rows_of(tmp_path)
    assert [(row["block_size"], row["status"]) for row in rows] == [
        *((size, "failed") for size in "1234"),
        ("16", "completed"),
        ("17", "completed"),
    ]
    assert [row["error"] for row in rows[:4]] == [
        "its process ended with exit code 3",
        "its process ended with SIGSEGV",
        "took longer than job_timeout_s=6",
        "RuntimeError: broken",
    ]
    share = str(max(1, len(os.sched_getaffinity(0)) // 3))
    assert {row["threads"] for row in rows[4:]} == {share}
    assert len({row["pid"] for row in rows[4:]}) == 2
    for row in rows:
        folder = tmp_path / row["folder"]
        assert f"in job {row['block_size']}" in (folder / "log.txt").read_text()
        assert (folder / "error.txt").exists() == (row["status"] == "failed")
    assert "Traceback" in (tmp_path / rows[3]["folder"] / "error.txt").read_text()
    # What is finished is not run again, what failed is.
    again = call(tmp_path, "block_size=16,17,4", "jobs=2")
    assert again.returncode == 1
    assert [row.get("pid") for row in rows_of(tmp_path)[:2]] == [row["pid"] for row in rows[4:]]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_is_told_to_end_or_killed_leaves_no_process(tmp_path, signum):
    process = subprocess.Popen(
        command(tmp_path, "block_size=16,5,6", "jobs=2"), cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    logs = []
    while not any("in job 5" in log.read_text() for log in logs) and time.monotonic() < deadline:
        time.sleep(0.05)
        logs = list(tmp_path.glob("*/log.txt"))
    process.send_signal(signum)
    process.communicate(timeout=30)
    assert process.returncode == (130 if signum == signal.SIGINT else -signum)
    for _ in range(100):
        if not _alive(str(tmp_path)):
            break
        time.sleep(0.05)
    assert not _alive(str(tmp_path))
    if signum == signal.SIGINT:
        assert {row["status"] for row in rows_of(tmp_path)} <= {"completed", "interrupted"}


def _alive(words):
    """Processes whose command line has these words: forked ones have their parent's."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if words in line and int(path.parent.name) != os.getpid():
            found.append(line)
    return found


def test_fail_fast_ends_the_others(tmp_path):
    done = call(tmp_path, "block_size=4,5,16", "jobs=2", "fail_fast=true")
    assert done.returncode == 1, done.stderr
    statuses = {row["block_size"]: row["status"] for row in rows_of(tmp_path)}
    assert statuses["4"] == "failed"
    assert statuses.get("5", "interrupted") == "interrupted"
    assert "16" not in statuses


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("jobs=0", "jobs=0: expected a whole number, at least 1"),
        ("job_timeout_s=0", "job_timeout_s=0: expected more than 0 seconds"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, word, line):
    done = call(tmp_path, "block_size=16", word)
    assert (done.returncode, done.stderr) == (2, f"error: {line}\n")
