"""`calibrate` and `fidelity` end to end, on a model of two layers: what they write, print, warn of and refuse."""

import json
import os

import pytest
import torch
import yaml

from pagedlab.core.errors import PagedlabError
from pagedlab.experiments.calibrate import calibrate_job
from pagedlab.experiments.fidelity import compare, fidelity_job, first_difference
from pagedlab.experiments.serve import ServeJob
from pagedlab.hardware.calibration.observation import Observation, data_hash
from pagedlab.interrupts import Interrupts
from pagedlab.launch import Job
from tests.config.composed import composed

RUN = ["model=tiny_llama", "kernel=torch", "executor.threads=1", "kv_num_blocks=256", "progress=false"]
FEW = ["rounds=1", "rows=[1,8,64]", "batches=[1,4,8]", "contexts=[16,64]", "block_sizes=[8]", "chunks=[8,32]"]
FEW += ["cached=[0,16]", "mixed=[[2,1,16]]", "moved_blocks=[1,8]"]
LOAD = ["workload=synthetic", "workload.num_requests=6", "workload.prompt.high=40", "workload.output.high=20"]


def ran(command, *words, cache, folder):
    """The command in this process: loading torch for each takes longer than all that is tested."""
    job = Job(composed(*words, base=(), command=command), folder, {}, None)
    task = {"calibrate": calibrate_job, "fidelity": fidelity_job, "config": lambda job, how: ServeJob(how)(job)}[
        command
    ]
    before = os.environ.get("PAGEDLAB_CACHE"), torch.get_num_threads()
    os.environ["PAGEDLAB_CACHE"] = str(cache)
    try:
        task(job, Interrupts())
    finally:
        os.environ.pop("PAGEDLAB_CACHE")
        if before[0] is not None:
            os.environ["PAGEDLAB_CACHE"] = before[0]
        torch.set_num_threads(before[1])


def refusal(command, *words, cache):
    with pytest.raises(PagedlabError) as refused:
        ran(command, *words, cache=cache, folder=cache / "unused")
    return str(refused.value)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """(its run folder, the user's cache)."""
    folder = tmp_path_factory.mktemp("calibrate")
    few = [f"calibrate.{word}" for word in FEW]
    ran("calibrate", *RUN, *few, cache=folder / "cache", folder=folder / "run")
    return folder / "run", folder / "cache"


def test_it_writes_a_file_that_says_what_it_is_of(calibrated):
    run, cache = calibrated
    (file,) = (cache / "calibration").iterdir()
    found = yaml.safe_load(file.read_text())
    assert found["key"]["model"] == "tiny_llama"
    assert (found["key"]["kernel"], found["key"]["threads"], found["key"]["block_size"]) == ("torch", 1, 16)
    assert found["hull"] == {"tokens": 32, "sequences": 8, "context": 64}
    assert found["hardware"]["provenance"]["gemm_fixed_us"].startswith("fitted: on ")
    assert found["hardware"]["provenance"]["link_gb_s"].startswith("default: ")
    assert found["hardware"]["separate_products"] is False  # model.optimize=auto merges them
    summary = json.loads((run / "summary.json").read_text())
    assert summary["file"] == str(file)
    assert summary["data_sha256"] == found["data_sha256"]
    kinds = {row["kind"] for row in summary["rows"]}
    assert kinds == {"product", "decode", "prefill", "rest", "engine", "copy", "swap", "step"}
    seen = [Observation(**row) for row in json.loads((run / "observations.json").read_text())["observations"]]
    assert data_hash(seen) == found["data_sha256"]
    assert all(each.seconds > 0 for each in seen)


def test_a_simulation_takes_it_and_warns_beyond_what_was_measured(calibrated, tmp_path, capsys):
    _, cache = calibrated
    words = ["executor=simulated", "model=tiny_llama", "kv_num_blocks=256", *LOAD]
    ran("config", *words, cache=cache, folder=tmp_path)
    said = capsys.readouterr()
    assert "hardware=local: calibrated 20" in said.out
    tokens = "tokens in a step, calibrated up to 32: times beyond are extrapolated"
    assert said.err.startswith("warning: ")
    assert tokens in said.err
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert any(tokens in line for line in summary["outside_calibration"])
    assert len(summary["calibration"]) == 64


def test_without_a_calibration_local_says_that_it_is_a_guess(tmp_path, capsys):
    words = ["executor=simulated", "model=tiny_llama", "kv_num_blocks=256", *LOAD]
    ran("config", *words, cache=tmp_path, folder=tmp_path / "run")
    said = capsys.readouterr().out
    assert "hardware=local: constants are orders of magnitude; `pagedlab calibrate` measures them" in said


def test_fidelity_holds_both_runs_against_each_other(calibrated, tmp_path, capsys):
    _, cache = calibrated
    ran("fidelity", *RUN, *LOAD, "fidelity.runs=2", cache=cache, folder=tmp_path)
    # All arrive at once, so no step waits for a time: the same schedule, whatever steps took.
    assert "the two schedules are the same" in capsys.readouterr().out
    summary = json.loads((tmp_path / "summary.json").read_text())
    rows = {row["metric"]: row for row in summary["rows"]}
    assert summary["first_different_step"] is None
    assert rows["steps"]["real"] == rows["steps"]["simulated"]
    assert rows["preemptions"]["error"] == 0
    for row in rows.values():
        if row["real"]:
            assert row["error"] == pytest.approx(row["simulated"] / row["real"] - 1)
    assert {"output_tokens_per_s", "tpot_s.mean", "mean_batch_size", "kv_waste_fraction"} <= set(rows)
    assert (tmp_path / "real_timeline.parquet").exists()


def test_with_a_small_pool_both_runs_preempt_the_same(calibrated, tmp_path):
    _, cache = calibrated
    small = ["kv_num_blocks=10", "max_model_len=128", "scheduler.watermark=0"]
    base = [word for word in RUN if not word.startswith("kv_")]
    ran("fidelity", *base, *LOAD, *small, cache=cache, folder=tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    rows = {row["metric"]: row for row in summary["rows"]}
    assert rows["preemptions"]["real"] > 0
    for metric in ("preemptions", "recomputed_tokens", "steps"):
        assert rows[metric]["real"] == rows[metric]["simulated"]
    assert summary["first_different_step"] is None


def test_fidelity_refuses_what_was_calibrated_for_something_else(calibrated):
    _, cache = calibrated
    (file,) = (cache / "calibration").iterdir()
    given = f"hardware.calibration={file}"
    for words, line in (
        (
            ["executor.threads=2", given],
            f"{file}: was made for threads=1, not 2: `pagedlab calibrate` makes one for this",
        ),
        (["block_size=32", given], f"{given}: was made for block_size=16, not 32"),
        (
            ["block_size=32"],
            "hardware.calibration=auto: nothing was calibrated for this run, `pagedlab calibrate` does",
        ),
        (["hardware.calibration=null"], "hardware.calibration=null: expected auto, or a file that"),
        (["fidelity.runs=0"], "fidelity.runs=0: expected a whole number from 1"),
    ):
        assert refusal("fidelity", *RUN, *LOAD, *words, cache=cache).startswith(line)
    said = refusal("fidelity", "model=tiny_llama", "executor=fingerprint", *LOAD, cache=cache)
    assert said == "executor=fingerprint: it is a real run that is simulated, expected torch"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["calibrate.rows=[]"], "calibrate.rows=[]: expected whole numbers from 1 on"),
        (["calibrate.chunks=[1]"], "calibrate.chunks=[1]: expected 2 tokens at least, one is a decode"),
        (
            ["calibrate.mixed=[[1,2]]"],
            "calibrate.mixed[0]=[1, 2]: expected [decodes, chunks, tokens of each from 2 on]",
        ),
        (["executor=fingerprint"], "executor=fingerprint: a real model is profiled, expected torch"),
        (["model=tiny_mixtral"], "MixtralForCausalLM computes "),
    ],
)
def test_bad_settings_of_a_calibration_are_one_line(tmp_path, words, line):
    assert refusal("calibrate", "model=tiny_llama", "kernel=torch", *words, cache=tmp_path).startswith(line)


def test_the_first_step_that_differs():
    one, two, other = ((0, 0, 5),), ((0, 0, 1), (1, 0, 4)), ((0, 0, 1), (1, 0, 3))
    assert first_difference([one, two], [one, two]) is None
    assert first_difference([one, two], [one, other]) == 1
    assert first_difference([one], [one, two]) == 1


def test_the_median_of_the_real_runs_is_compared():
    def summary(value):
        spread = dict.fromkeys(("mean", "p50", "p99"))
        names = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "normalized_latency_s_per_token")
        flat = ("duration_s", "output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "steps", "mean_batch_size")
        flat += ("peak_batch_size", "kv_waste_fraction", "kv_token_states_fraction", "memory_blocked_fraction")
        return (
            dict.fromkeys(flat, value)
            | dict.fromkeys(names, spread)
            | dict.fromkeys(("preemptions", "recomputed_tokens", "prefix_hit_rate"), 0)
        )

    rows = {row["metric"]: row for row in compare([summary(2.0), summary(4.0), summary(3.0)], summary(3.3))}
    expected = {"metric": "steps", "real": 3.0, "spread": 2 / 3, "simulated": 3.3, "error": 3.3 / 3.0 - 1}
    assert rows["steps"] == expected
    assert rows["preemptions"]["error"] == 0
    assert "ttft_s.mean" not in rows
