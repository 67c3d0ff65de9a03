"""The command as a user meets it: its exit codes, its one line per error, its files, its signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["executor=fingerprint", "model=tiny_llama", "workload=synthetic", "workload.num_requests=8"]
QUICK += ["workload.prompt.high=60", "workload.output.high=40", "kv_num_blocks=32"]


def command(*words):
    return [sys.executable, "-m", "experiments.serve", *words]


def call(*words, cwd=ROOT, env=None):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    return subprocess.run(command(*words), cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_a_run_prints_its_tables_and_ends_with_its_folder(tmp_path):
    done = call(*QUICK, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar where there is no terminal
    for words in ("waste: no token, of allocated", "TTFT", "TPOT", "ITL", "normalized", "output tokens/s"):
        assert words in done.stdout
    assert done.stdout.splitlines()[-1] == f"run folder: {tmp_path / 'run'}"
    written = summary(tmp_path / "run")
    assert (written["status"], written["completed"], written["num_requests"]) == ("completed", 8, 8)
    assert sum(written[f"kv_{kind}_fraction"] for kind in SPLIT) == pytest.approx(1, abs=1e-9)


SPLIT = ("token_states", "reserved", "internal", "block_tail", "cached_idle", "free", "external")


def test_the_same_config_and_seed_give_the_same_bytes(tmp_path):
    for name, salt in (("a", "0"), ("b", "1")):
        done = call(*QUICK, f"hydra.run.dir={tmp_path / name}", env={"PYTHONHASHSEED": salt})
        assert done.returncode == 0, done.stderr
    for file in ("summary.json", "requests.parquet", "timeline.parquet", "events.parquet", "config.yaml"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    done = call(*QUICK, f"hydra.run.dir={tmp_path / 'c'}", "seed=1")
    assert (tmp_path / "c" / "requests.parquet").read_bytes() != (tmp_path / "a" / "requests.parquet").read_bytes()


def test_a_multirun_makes_a_folder_a_job_and_one_table(tmp_path):
    axes = ["allocator=paged,reserve_max", "block_size=8,16"]
    done = call("-m", *axes, *QUICK, "max_model_len=128", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert done.returncode == 0, done.stderr
    rows = summary(tmp_path / "sweep")["rows"]
    assert [(row["allocator"], row["block_size"]) for row in rows] == [
        ("paged", 8),
        ("paged", 16),
        ("reserve_max", 8),
        ("reserve_max", 16),
    ]
    assert {row["status"] for row in rows} == {"completed"}
    assert rows[2]["ratio"] == 1.0
    for row in rows:
        assert summary(tmp_path / "sweep" / row["folder"])["output_tokens_per_s"] == row["output_tokens_per_s"]
    assert done.stdout.splitlines()[-1] == f"sweep folder: {tmp_path / 'sweep'}"


def test_a_failing_job_leaves_the_others_of_its_sweep_alone(tmp_path):
    done = call("-m", "block_size=16,999,8", *QUICK, f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert done.returncode == 2
    assert "error: block_size=999: expected at least 1 and at most 256" in done.stderr
    assert [row["status"] for row in summary(tmp_path / "sweep")["rows"]] == ["completed", "failed", "completed"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["block_sise=16"], "block_sise: no such setting, did you mean block_size?"),
        (["+block_sise=16"], "block_sise: no such setting, did you mean block_size?"),
        (["+workload.arrival.raet=2"], "workload.arrival.raet: no such setting, did you mean rate?"),
        (["workload.arival.rate=2"], "workload.arival: no such setting, did you mean arrival?"),
        (["block_size=abc"], "block_size: Value 'abc' of type 'str' could not be converted to Integer"),
        (["block_size=0"], "block_size=0: expected at least 1 and at most 256"),
        (
            ["allocator=nope"],
            "Available options in 'allocator': oracle oracle_buddy paged power_of_two reserve_max reserve_output",
        ),
        (["scheduler.order=lifo"], "scheduler.order=lifo: no such option, expected one of fcfs, priority"),
        (["kv_num_blocks=4", "kv_bytes=1GiB"], "kv_num_blocks=4 and kv_bytes=1GiB: expected at most one of"),
        (["allocator=oracle", "sampling.ignore_eos=false"], "expected sampling.ignore_eos=true"),
        (["workload.path=nowhere.json"], "nowhere.json: No such file or directory"),
        (["model.path=./nowhere"], "model.path=./nowhere: no such folder"),
        (["max_model_len=100000"], "max_model_len=100000: model"),
        (["block_size=16,32"], "add --multirun"),
    ],
)
def test_an_error_of_the_user_is_one_line_before_any_model_is_loaded(tmp_path, words, line):
    done = call(*words, "model=tiny_llama", f"hydra.run.dir={tmp_path / 'run'}", env={"PYTHONPROFILEIMPORTTIME": "1"})
    said = [text for text in done.stderr.splitlines() if not text.startswith("import time:")]
    assert done.returncode == 2
    assert len(said) == 1, said
    assert said[0].startswith("error: ")
    assert line in said[0]
    assert " torch\n" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_help_teaches_and_loads_neither_torch_nor_transformers(tmp_path):
    done = call("--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    for words in (
        "allocator: oracle, oracle_buddy, paged",
        "max_num_batched_tokens",
        "hydra.run.dir=DIR",
        "-m +experiment=",
        "executor=simulated hardware=",
    ):
        assert words in done.stdout
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "hydra" in imported  # the list is real
    assert not imported & {"torch", "transformers", "wandb", "pyarrow"}


def test_a_fingerprint_run_loads_neither_torch_nor_transformers(tmp_path):
    done = call(*QUICK, f"hydra.run.dir={tmp_path}", env={"PYTHONPROFILEIMPORTTIME": "1"})
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "pyarrow" in imported
    assert not imported & {"torch", "transformers", "wandb"}


def test_the_console_command_is_the_same(tmp_path):
    program = "import sys; from pagedlab.cli import main; sys.exit(main())"
    run = subprocess.run(
        [sys.executable, "-c", program, "serve", *QUICK, f"hydra.run.dir={tmp_path / 'run'}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert summary(tmp_path / "run")["status"] == "completed"


def test_an_unknown_command_names_the_known_ones():
    program = "import sys; from pagedlab.cli import main; sys.exit(main())"
    for words, code in ((["swerve"], 2), ([], 0), (["--help"], 0)):
        run = subprocess.run([sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == code
        assert "serve" in run.stdout + run.stderr


def test_a_real_tiny_model_is_served_through_the_command(tmp_path):
    words = [*QUICK, "executor=torch", "executor.threads=1", "workload.num_requests=3", "audit_every=1"]
    done = call(*words, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path / "run")["completed"] == 3
    rows = pq.read_table(tmp_path / "run" / "requests.parquet").to_pylist()
    assert all(len(row["output_token_ids"]) == row["output_tokens"] > 0 for row in rows)


def test_online_arrivals_are_kept_on_the_virtual_clock(tmp_path):
    words = [*QUICK, "workload.arrival.process=constant", "workload.arrival.rate=2"]
    assert call(*words, f"hydra.run.dir={tmp_path / 'run'}").returncode == 0
    rows = pq.read_table(tmp_path / "run" / "requests.parquet").to_pylist()
    assert [row["arrival_s"] for row in rows] == pytest.approx([0.5 * (i + 1) for i in range(8)])
    assert all(row["first_token_s"] > row["arrival_s"] for row in rows)


# ---- signals -----------------------------------------------------------------------------------------------------

LONG = ["executor=fingerprint", "model=tiny_llama", "workload=synthetic", "workload.num_requests=2000"]
LONG += ["workload.prompt.high=200", "workload.output.high=200", "kv_num_blocks=64"]


@pytest.mark.parametrize("delay_s", [0.15, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.8, 1.2, 2.0])
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_at_any_moment_leaves_a_whole_folder_or_none(tmp_path, delay_s, signum, code):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command(*LONG, f"hydra.run.dir={folder}"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(delay_s)
    process.send_signal(signum)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (code, f"interrupted by {signal.Signals(signum).name}")
    if folder.exists():
        written = summary(folder)
        assert written["status"] == "interrupted"
        rows = pq.read_table(folder / "requests.parquet").to_pylist()
        assert sum(row["status"] == "finished" for row in rows) == written["completed"]
        assert not list(folder.glob(".tmp-*"))


STRUCK = """
import os, signal

class Kills:
    def __set_name__(self, owner, name):  # Python 3.11 makes a RuntimeError of whatever is raised in here
        os.kill(os.getpid(), signal.SIGINT)

class Owner:
    killed = Kills()
"""


def test_a_signal_that_strikes_an_import_is_an_interruption_nevertheless(tmp_path):
    (tmp_path / "struck.py").write_text(STRUCK)
    done = call(*QUICK, "--plugin", str(tmp_path / "struck.py"), f"hydra.run.dir={tmp_path / 'run'}")
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted by SIGINT")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("gap_s", [0.0005, 0.01, 0.1])
def test_a_second_signal_while_the_folder_is_written_tears_nothing(tmp_path, gap_s):
    words = command(*LONG, f"hydra.run.dir={tmp_path / 'run'}")
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("KV cache:")
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(gap_s)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    if (tmp_path / "run").exists():  # not where the second one struck before the writing began: it ends the run at once
        assert summary(tmp_path / "run")["status"] == "interrupted"
        assert len(pq.read_table(tmp_path / "run" / "timeline.parquet")) > 0


def test_an_unfinished_run_does_not_replace_a_completed_one(tmp_path):
    folder = tmp_path / "run"
    assert call(*QUICK, f"hydra.run.dir={folder}").returncode == 0
    before = (folder / "summary.json").read_bytes()
    words = command(*LONG, f"hydra.run.dir={folder}")
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("KV cache:")
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert said.splitlines()[-1] == f"run folder: {folder / 'interrupted'}"
    assert (folder / "summary.json").read_bytes() == before
    assert summary(folder / "interrupted")["status"] == "interrupted"


def test_an_interrupted_sweep_stops_and_shows_what_it_has(tmp_path):
    words = ["-m", "seed=0,1,2", *LONG, f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    process = subprocess.Popen(command(*words), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("KV cache:")  # the first job serves
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert [row["status"] for row in summary(tmp_path / "sweep")["rows"]] == ["interrupted"]


def test_the_input_bench_prints_ratios_and_writes_them(tmp_path):
    module = [sys.executable, "-m", "experiments.bench_inputs"]
    words = ["batch=8", "contexts=[64]", "repeats=3", f"hydra.run.dir={tmp_path / 'bench'}"]
    done = subprocess.run([*module, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = summary(tmp_path / "bench")["rows"]
    assert row["ratio"] == pytest.approx(row["rebuilt_ms"] / row["deltas_ms"])
    assert done.stdout.splitlines()[-1] == f"run folder: {tmp_path / 'bench'}"
