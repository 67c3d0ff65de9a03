"""Launchers and sweepers of others, each where its extra is installed: the sweep folder ends as with our own."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
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
    folder = Path(words[-1].removeprefix("hydra.sweep.dir="))
    assert (folder / "summary.json").is_file(), done.stderr
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


@pytest.fixture
def cluster(tmp_path):
    """The address of a cluster of two nodes, each with processes of its own, that knows nothing of pagedlab."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1"]
    ray += ["--object-store-memory=100000000"]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"} | {"PYTHONPATH": ""}
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    head = ["--head", f"--port={address.partition(':')[2]}", "--include-dashboard=false"]
    nodes = [subprocess.Popen([*ray, *head], **quiet)]
    try:
        wait_for(address, 1)
        nodes.append(subprocess.Popen([*ray, f"--address={address}"], **quiet))
        wait_for(address, 2)
        yield address
    finally:
        for node in reversed(nodes):
            node.terminate()
            node.wait(60)


def wait_for(address, nodes):
    code = f"import ray; ray.init({address!r}, log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
    deadline, environment = time.monotonic() + 120, {**os.environ, "RAY_AUTH_MODE": "disabled"}
    while time.monotonic() < deadline:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        if done.stdout.strip().endswith(str(nodes)):
            return
        time.sleep(1)
    raise TimeoutError(f"no {nodes} nodes at {address}: {done.stderr[-500:]}")


@needs("ray", "ray")
def test_a_sweep_on_a_cluster_of_two_nodes(tmp_path, cluster, monkeypatch):
    """As documented: what the nodes lack, the words bring along."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    words = ["hydra/launcher=ray", f"+hydra.launcher.ray.init.address={cluster}"]
    words += ["+hydra.launcher.ray.init.object_store_memory=null"]
    words += ["+hydra.launcher.ray.init.runtime_env.env_vars.PYTHONPATH=${oc.env:PYTHONPATH}"]
    words += ["+hydra.launcher.ray.remote.scheduling_strategy=SPREAD"]
    done, rows = call(*words, "block_size=8,16,999", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert (done.returncode, rows) == (2, {8: "completed", 16: "completed", "999": "failed"}), done.stderr


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
