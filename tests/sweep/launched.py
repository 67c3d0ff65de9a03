"""Launches sweeps in this process with tasks that a test makes up: what sweeps do, without serving anything."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from pagedlab.interrupts import Interrupts
from pagedlab.launch import launch
from pagedlab.recorder.files import write_json


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """launched(task, *words) -> the launch of `serve -m WORDS` into tmp_path / "sweep"."""
    monkeypatch.setitem(os.environ, "HYDRA_FULL_ERROR", "1")
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}

    def start(task, *words):
        monkeypatch.setattr(sys, "argv", ["serve", "-m", f"hydra.sweep.dir={tmp_path / 'sweep'}", *words])
        interrupts = Interrupts()
        interrupts.install()
        return launch(task, interrupts)

    yield start
    for signum, handler in before.items():
        signal.signal(signum, handler)


class Finishes:
    """A task that writes what a finished run does, and remembers for whom it was called."""

    def __init__(self, fails=None):
        self.fails, self.ran = fails, []

    def __call__(self, job):
        self.ran.append(job.swept["block_size"])
        if self.fails is not None and job.swept["block_size"] in self.fails:
            raise self.fails[job.swept["block_size"]]
        write_json(job.folder / "summary.json", {"status": "completed", "size": int(job.swept["block_size"])})


def record(job):
    return json.loads((job.folder / "job.json").read_text())
