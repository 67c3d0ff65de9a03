"""Writes run folders whose every file carries the number of its run, and checks that no folder mixes two.

As a program it is a fork server for the tests that need processes to die: it imports once, then does what each line
of stdin says in a child of its own, and answers with the child's wait status.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import yaml

from pagedlab.allocator.base import Usage
from pagedlab.core.plan import Preemption
from pagedlab.core.request import Request, Sequence
from pagedlab.recorder.folder import write_run_folder
from pagedlab.recorder.recorder import Recorder
from pagedlab.recorder.timeline import Step

FILES = {"config.yaml", "env.json", "requests.parquet", "timeline.parquet", "events.parquet", "summary.json"}


def numbered(number, requests=1):
    """A recorder that saw run `number`."""
    recorder = Recorder()
    rng = np.random.default_rng(number)
    for i in range(requests):
        recorder.submitted(Sequence(Request(i, rng.integers(50_000, size=200, dtype=np.int32), 1, source=str(number))))
    recorder.steps.append(Step(float(number), number + 1.0, 0, 0, 0, 0, 0, Usage(0, 0, 0, 0, 4), False))
    recorder.preemptions.append((float(number), 0, Preemption(1, 0, "pool exhausted", 1, 1)))
    return recorder


def write(folder, number, requests=1):
    env, summary = {"seed": number}, {"run": number}
    write_run_folder(folder, f"seed: {number}\n", env, [numbered(number, requests)], summary)


def runs_in(folder):
    """File name -> the run it belongs to, of every file but temporary ones. A file that is not whole raises."""
    readers = {
        "config.yaml": lambda path: yaml.safe_load(path.read_text())["seed"],
        "env.json": lambda path: json.loads(path.read_text())["seed"],
        "requests.parquet": lambda path: int(pq.read_table(path).to_pylist()[0]["source"]),
        "timeline.parquet": lambda path: int(pq.read_table(path).to_pylist()[0]["start_s"]),
        "events.parquet": lambda path: int(pq.read_table(path).to_pylist()[0]["time_s"]),
        "summary.json": lambda path: json.loads(path.read_text())["run"],
    }
    return {path.name: readers[path.name](path) for path in folder.iterdir() if not path.name.startswith(".tmp-")}


def check_not_mixed(folder):
    """A folder with a summary is one whole run; returns the number of that run, None where there is no summary."""
    runs = runs_in(folder)
    if "summary.json" not in runs:
        return None
    assert set(runs) == FILES
    assert set(runs.values()) == {runs["summary.json"]}, runs
    return runs["summary.json"]


# ---- the fork server ----------------------------------------------------------------------------------------------


def _write_for_ever(folder, number):
    while True:
        write(folder, number)
        number += 1


def _write_on_a_full_disk(folder, number, most_bytes):
    """No file may grow beyond `most_bytes`: what a full disk does to a write, in the middle of it."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    try:
        write(folder, number, requests=20)
    except OSError:
        os._exit(3)
    os._exit(0)


def main():
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for line in sys.stdin:
        order, number, amount = line.split()
        child = os.fork()
        if child == 0:
            if order == "kill":
                _write_for_ever(folder, int(number))
            _write_on_a_full_disk(folder, int(number), int(amount))
        if order == "kill":
            time.sleep(float(amount))
            os.kill(child, signal.SIGKILL)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
