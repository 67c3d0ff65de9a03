"""`profile_step`: the parts are those of a step, none is counted twice, and together they are the whole time."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagedlab.experiments.profile_step import Stopwatch

ROOT = Path(__file__).resolve().parents[2]


def call(*words):
    command = [sys.executable, "-m", "experiments.profile_step", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(("optimize", "products"), [("none", 7), ("auto", 4)])
def test_the_parts_of_a_run_sum_to_its_time(tmp_path, optimize, products):
    """Products of a layer: q, k, v, o, gate, up and down, or some of them merged."""
    words = [
        "model=tiny_llama",
        f"model.optimize={optimize}",
        "workload=synthetic",
        "workload.num_requests=3",
        "kv_num_blocks=64",
    ]
    done = call(*words, "max_model_len=512", "workload.output.high=8", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    rows = {row["part"]: row for row in summary["rows"]}
    assert sum(row["seconds"] for row in rows.values()) == pytest.approx(summary["total_s"])
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
    assert all(row["seconds"] >= 0 for row in rows.values())
    layers = 2  # of tiny_llama
    writes = [row["calls"] for part, row in rows.items() if "KV write" in part]
    assert len(writes) == {"none": 1, "auto": 2}[optimize]  # some steps run as a program
    assert sum(writes) == layers * summary["steps"]
    assert rows["sampling"]["calls"] <= summary["steps"]
    assert rows["GEMMs"]["calls"] == layers * products * summary["steps"]
    assert {"attention, decode", "attention, prefill", "norms", "head", "input building"} <= set(rows)


def test_a_part_inside_another_is_taken_off_the_outer_one():
    watch = Stopwatch()
    watch.enter("outer")
    watch.enter("inner")
    time.sleep(0.02)
    watch.leave()
    watch.leave()
    assert watch.seconds["inner"] >= 0.02
    assert watch.seconds["outer"] < watch.seconds["inner"]


def test_only_a_real_model_has_a_profile(tmp_path):
    done = call("executor=fingerprint", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert done.stderr == "error: executor=fingerprint: a profile is of a real model, expected torch\n"
