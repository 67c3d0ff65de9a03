"""The simulator's benchmark: it runs, and says what it measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def call(*words):
    command = [sys.executable, "-m", "experiments.bench_simulator", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_rows_and_a_profile_are_printed_and_written(tmp_path):
    done = call("bench.requests=[5,20]", "bench.profile=200", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "requests/s" in done.stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [row["requests"] for row in summary["rows"]] == [5, 20]
    for row in summary["rows"]:
        assert row["completed"] == row["requests"]
        assert row["requests_per_s"] == pytest.approx(row["requests"] / row["seconds_cpu"])
        assert row["peak_rss_bytes"] > 10e6
        assert row["ratio_to_stepped"] == pytest.approx(row["requests_per_s"] / summary["stepped_requests_per_s"])
    assert summary["stepped_requests_per_s"] == summary["stepped"]["requests_per_s"]
    assert summary["stepped"]["steps"] == summary["rows"][-1]["steps"]  # the same run
    assert summary["skipped_requests_per_s"] == summary["rows"][-1]["requests_per_s"]
    assert "scheduler.cohort" in summary["profile"]
    assert sum(summary["profile"].values()) <= 1.000001


def test_bad_sizes_are_one_line():
    for words, line in (
        (["bench.requests=[]"], "bench.requests=[]: expected a list of numbers of requests"),
        (["bench.requests=[0]"], "bench.requests=0: expected a whole number from 1"),
        (["bench.profile=-1"], "bench.profile=-1: expected a whole number from 0"),
        (["hardware.tensor_parallel=7"], "hardware.tensor_parallel=7: expected a divisor of the model's 32 attention"),
    ):
        done = call(*words, "hydra.run.dir=/tmp/unused-by-a-refusal")
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(f"error: {line}"), done.stderr
