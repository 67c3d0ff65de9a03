"""Sweeps of `pagedlab serve`: kill -9 at any moment, plugins and timing under several processes, seeds, plans."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["executor=fingerprint", "model=tiny_llama", "workload=synthetic", "workload.num_requests=4"]
QUICK += ["workload.prompt.high=60", "workload.output.high=40", "kv_num_blocks=32"]
# PAGEDLAB_KILLS=100 is the long test.
KILLS = int(os.environ.get("PAGEDLAB_KILLS", "8"))


def command(name, *words):
    return [sys.executable, "-m", f"experiments.{name}", *words]


def call(*words, name="serve", cwd=ROOT):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command(name, *words), cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


# ---- kill -9 ------------------------------------------------------------------------------------------------------


def finished(sweep):
    """The finished jobs of a sweep folder, each with the time it was written; every file in it must be whole."""
    found = {}
    for path in sweep.rglob("*"):
        if path.name.startswith("."):  # a lock, or what was being written
            continue
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".parquet":
            pq.read_table(path)
    for path in sweep.glob("*/summary.json"):
        if json.loads(path.read_text())["status"] == "completed":
            found[path.parent.name] = path.stat().st_mtime_ns
    return found


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_sweep_killed_at_random_moments_loses_no_finished_job(tmp_path, at_once):
    """Killed and begun again until the kills are spent; then it is let end. Its moments are drawn from a seed."""
    draw = random.Random(at_once)
    words = ["-m", "seed=range(0,4)", f"jobs={at_once}", *QUICK, f"hydra.sweep.dir={tmp_path}"]
    # How long a whole sweep takes here, on this machine, under its load now.
    started = time.monotonic()
    assert call(*words, "hydra.sweep.dir=" + str(tmp_path / "whole")).returncode == 0
    whole_s = time.monotonic() - started
    sweep = tmp_path / "killed"
    words[-1] = f"hydra.sweep.dir={sweep}"
    done = {}
    for _ in range(KILLS // 2):
        if len(done) == 4:  # all there: begin anew, so that the kills go on striking jobs
            words[-1] = f"hydra.sweep.dir={sweep.with_name(sweep.name + 'x')}"
            sweep, done = sweep.with_name(sweep.name + "x"), {}
        process = subprocess.Popen(
            command("serve", *words), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(draw.uniform(0.3, 1.0) * whole_s)
        process.kill()
        process.wait()
        now = finished(sweep)
        assert done.items() <= now.items()  # none lost, none written again
        done = now
    assert call(*words).returncode == 0
    assert done.items() <= finished(sweep).items()
    rows = summary(sweep)["rows"]
    assert [row["seed"] for row in rows] == list(range(4))
    assert {row["status"] for row in rows} == {"completed"}
    assert len({row["folder"] for row in rows}) == 4
    expected = summary(tmp_path / "whole")["rows"]
    assert [row["output_tokens_per_s"] for row in rows] == [row["output_tokens_per_s"] for row in expected]


# ---- several at once ----------------------------------------------------------------------------------------------

PLUGIN = """
from pagedlab.eviction.base import EVICTIONS
from pagedlab.eviction.lru import Lru

@EVICTIONS.register("mine")
class Mine(Lru):
    pass
"""


def test_plugins_and_choices_are_there_in_every_process(tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN)
    done = call(
        "--plugin", str(plugin), "-m", "eviction=mine,lru", "prefix_cache=radix", "jobs=2", *QUICK,
        f"hydra.sweep.dir={tmp_path / 'sweep'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = summary(tmp_path / "sweep")["rows"]
    assert [(row["eviction"], row["status"]) for row in rows] == [("mine", "completed"), ("lru", "completed")]
    assert rows[0]["output_tokens_per_s"] == rows[1]["output_tokens_per_s"]


def test_the_wall_clock_is_refused_where_jobs_run_beside_each_other(tmp_path):
    words = [*QUICK, "executor=torch", "executor.threads=1", "seed=0,1", "jobs=2"]
    done = call("-m", *words, f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert done.returncode == 2
    assert "executor=torch with jobs=2: it measures by the wall clock" in done.stderr
    done = call("-m", *words, "allow_parallel_timing=true", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert done.returncode == 0, done.stderr
    assert {row["status"] for row in summary(tmp_path / "sweep")["rows"]} == {"completed"}


def test_what_only_a_sweep_can_do_is_refused_without_one(tmp_path):
    for word in ("jobs=2", "job_timeout_s=5.0", "fail_fast=true"):
        done = call(*QUICK, word, f"hydra.run.dir={tmp_path / 'run'}")
        assert (done.returncode, done.stderr) == (2, f"error: {word}: of a sweep, expected -m beside it\n")


# ---- plans --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("subdir", ["../other", "/tmp/other", "same", "${hydra.job.override_dirname}"])
def test_a_folder_of_a_job_that_is_not_named_by_its_key_is_refused(tmp_path, subdir, at_once):
    """It could climb out of the sweep's folder, or be the folder of two jobs."""
    words = ["-m", "seed=0,1", f"jobs={at_once}", *QUICK, f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    done = call(*words, f"hydra.sweep.subdir='{subdir}'")
    line = f"error: hydra.sweep.subdir={subdir}: expected none, a job's folder is named by its key"
    assert (done.returncode, done.stderr.strip()) == (2, line)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith(".")]


@pytest.mark.parametrize("name", ["calibrate", "fidelity", "profile_step", "bench_engine", "bench_simulator"])
@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["seeds=[0,1]"], "error: seeds=[0, 1]: of `pagedlab serve` alone"),
        (["fail_fast=true"], "error: fail_fast=true: of a sweep, expected -m beside it"),
    ],
)
def test_a_command_refuses_what_it_would_not_do(tmp_path, name, given, line):
    done = call(*given, f"hydra.run.dir={tmp_path / 'run'}", name=name)
    assert (done.returncode, done.stderr.strip()) == (2, line)
    assert not (tmp_path / "run").exists()


def test_several_replicas_are_not_measured_as_one(tmp_path):
    done = call("router=random", "replicas=2", f"hydra.run.dir={tmp_path / 'run'}", name="bench_simulator")
    assert (done.returncode, done.stderr.strip()) == (2, "error: replicas=2: of `pagedlab serve` alone")


def test_a_plan_says_what_the_sweep_would_do_and_does_nothing(tmp_path):
    words = ["block_size=8,16,999", *QUICK, f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    done = call(*words, name="plan", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "block_size=999: expected at least 1 and at most 256" in done.stdout
    assert done.stdout.splitlines()[-3:] == [
        "3 jobs: 2 to run, 0 cached, 1 refused",
        "estimated time with jobs=1: unknown",
        f"sweep folder: {tmp_path / 'sweep'}",
    ]
    assert list(tmp_path.iterdir()) == []
    assert call("-m", *words).returncode == 2
    done = call("-m", "block_size=8,16,32", *words[1:], name="plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *_, count, time_s, _ = done.stdout.splitlines()
    assert count == "3 jobs: 1 to run, 2 cached, 0 refused"
    assert time_s.startswith("estimated time with jobs=1: ")
    assert "unknown" not in time_s


def test_a_plan_of_what_hydra_refuses_names_the_job_and_says_what_becomes_of_the_sweep():
    done = call("workload=sharegpt,synthetic", "workload.path=x.json", name="plan")
    assert done.returncode == 2
    assert "workload.path: no such setting here" in done.stdout
    assert "2 jobs: 1 to run, 0 cached, 1 refused" in done.stdout
    assert done.stderr.startswith("error: Hydra composes every job before the first runs")


# ---- combinations that go not together ----------------------------------------------------------------------------


def test_combinations_that_are_refused_can_be_left_out(tmp_path):
    """Only `paged` gives blocks back: of the two allocators x two preemptions three go together."""
    words = ["allocator=paged,reserve_max", "preemption=recompute,swap", "skip_refused=true", "max_model_len=256"]
    words += [*QUICK, f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    planned = call(*words, name="plan")
    assert planned.returncode == 0, planned.stderr
    assert "4 jobs: 3 to run, 0 cached, 1 refused and left out" in planned.stdout
    for at_once in ("jobs=1", "jobs=2"):
        done = call("-m", *words, at_once)
        assert done.returncode == 0, done.stderr
        assert "; 1 more were left out, as their config is refused" in done.stdout
        ran = [(row["allocator"], row["preemption"]) for row in summary(tmp_path / "sweep")["rows"]]
        assert ran == [("paged", "recompute"), ("paged", "swap"), ("reserve_max", "recompute")]


def test_a_sweep_of_which_nothing_is_left_is_refused(tmp_path):
    done = call("-m", "block_size=998,999", "skip_refused=true", *QUICK, f"hydra.sweep.dir={tmp_path / 'sweep'}")
    line = "error: skip_refused=true leaves no job: block_size=998: expected at least 1 and at most 256\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_what_is_left_out_is_known_here_alone(tmp_path):
    done = call(*QUICK, "skip_refused=true", f"hydra.run.dir={tmp_path / 'run'}")
    assert (done.returncode, done.stderr) == (2, "error: skip_refused=true: of a sweep, expected -m beside it\n")
    done = call("-m", "seed=0,1", "skip_refused=true", "hydra/launcher=basic", *QUICK, f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 2
    assert "skip_refused=true with hydra/launcher=basic: every job is asked for" in done.stderr


# ---- seeds --------------------------------------------------------------------------------------------------------


def test_each_seed_is_a_run_as_it_would_be_alone_and_a_row(tmp_path):
    shared = ["prefix_cache=radix", "workload.shared_prefix_tokens=32", *QUICK]
    for seed in (0, 1):
        assert call(*shared, f"seed={seed}", f"hydra.run.dir={tmp_path / str(seed)}").returncode == 0
    sweep = tmp_path / "sweep"
    done = call("-m", "seeds=[0,1]", "block_size=8,16", *shared, f"hydra.sweep.dir={sweep}")
    assert done.returncode == 0, done.stderr
    assert "means over seeds 0, 1; cold cache at the start, no warm-up requests; " in done.stdout
    written = summary(sweep)
    job = sweep / written["rows"][1]["folder"]
    for seed in (0, 1):  # cold: the second had no use of the first
        for file in ("summary.json", "requests.parquet", "timeline.parquet"):
            assert (job / f"seed_{seed}" / file).read_bytes() == (tmp_path / str(seed) / file).read_bytes()
    alone = [summary(tmp_path / str(seed)) for seed in (0, 1)]
    row = written["rows"][1]
    assert row["output_tokens_per_s"] == pytest.approx(sum(s["output_tokens_per_s"] for s in alone) / 2)
    assert row["ttft_s_mean"] == pytest.approx(sum(s["ttft_s"]["mean"] for s in alone) / 2)
    assert [(r["block_size"], r["seed"]) for r in written["rows_per_seed"]] == [(8, 0), (8, 1), (16, 0), (16, 1)]
    assert [r["preemptions"] for r in written["rows_per_seed"][2:]] == [s["preemptions"] for s in alone]
    assert len((sweep / "seeds.csv").read_text().splitlines()) == 5
    for words in ("seeds=[]", "seeds=[1,1]"):
        done = call(words, *QUICK, f"hydra.run.dir={tmp_path / 'no'}")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
