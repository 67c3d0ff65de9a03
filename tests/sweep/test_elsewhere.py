"""Launchers and sweepers of others, each where its extra is installed: the sweep folder ends as with our own."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["executor=fingerprint", "model=tiny_llama", "workload=synthetic", "workload.num_requests=4"]
QUICK += ["workload.prompt.high=60", "workload.output.high=40", "kv_num_blocks=32"]


def needs(package, extra):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"the extra `{extra}` is not installed")


def call(*words):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.serve", "-m", *words, *QUICK],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done, {row["block_size"]: row["status"] for row in rows_of(words[-1])}


def rows_of(word):
    return json.loads((Path(word.removeprefix("hydra.sweep.dir=")) / "summary.json").read_text())["rows"]


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("submitit_local", marks=needs("submitit", "slurm")),
        pytest.param("ray", marks=needs("ray", "ray")),
    ],
)
def test_a_sweep_under_another_launcher_has_its_table_and_resumes(tmp_path, launcher):
    words = [f"hydra/launcher={launcher}", "block_size=8,16,999", f"hydra.sweep.dir={tmp_path}"]
    done, rows = call(*words)
    assert (done.returncode, rows) == (2, {8: "completed", 16: "completed", "999": "failed"}), done.stderr
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/requests.parquet")}
    assert len(written) == 2
    call(*words)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/requests.parquet")} == written


@needs("submitit", "slurm")
def test_slurm_where_there_is_none_is_one_line(tmp_path):
    words = ["hydra/launcher=submitit_slurm", "block_size=8", f"hydra.sweep.dir={tmp_path}", *QUICK]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.serve", "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0
    assert "srun" in done.stderr


@needs("optuna", "optuna")
def test_a_search_over_two_objectives_writes_its_front(tmp_path):
    words = ["hydra/sweeper=optuna", "hydra/sweeper/sampler=nsgaii", "hydra.sweeper.sampler.seed=1", "jobs=2"]
    words += ["hydra.sweeper.direction=[minimize,maximize]", "hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=2"]
    words += ["objectives=[kv_waste_fraction,output_tokens_per_s]", "block_size=choice(4,8,16,32)"]
    done, _ = call(*words, f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    rows = rows_of(str(tmp_path))
    assert {row["status"] for row in rows} == {"completed"}
    front = (tmp_path / "optimization_results.yaml").read_text()
    assert "solutions" in front
    best = max(row["output_tokens_per_s"] for row in rows)
    assert str(best) in front
