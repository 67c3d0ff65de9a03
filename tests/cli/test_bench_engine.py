"""`bench_engine`: every part with a small model, what it writes, and what it refuses in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "model=tiny_llama", "bench.dtypes=[float32]", "bench.block_sizes=[16]", "bench.repeats=1", "max_model_len=512",
    "workload.num_requests=3", "workload.prompt.high=40", "workload.output.high=10", "kv_bytes=4MiB",
]  # fmt: skip


def call(*words):
    command = [sys.executable, "-m", "experiments.bench_engine", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_throughput_has_a_bound_a_memory_limit_and_a_profile_that_sums_to_the_step(tmp_path):
    done = call(*SMALL, "bench.parts=[throughput,latency,loop]", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    auto, none = summary["throughput"]["rows"]
    assert (auto["optimize"], none["optimize"]) == ("auto", "none")
    assert "norms fused" in auto["optimized"]
    assert none["optimized"] is None
    assert auto["output_tokens"] == none["output_tokens"] > 0
    assert 0 < auto["of_bound"] < 1
    machine = summary["machine"]["float32"]
    assert auto["rss_bytes_allowed"] == pytest.approx(1.2 * (machine["weight_bytes"] + auto["kv_bytes"] + 500e6))
    for rows in summary["throughput"]["profile"].values():
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        assert {"GEMMs", "norms", "head", "attention, decode", "input building"} <= {row["part"] for row in rows}
    assert summary["latency"]["output_tokens"] == 128
    latency = summary["latency"]
    assert 0 < latency["to_bound_least"] <= latency["to_bound"] <= latency["to_bound_most"]
    assert latency["token_s"] > 0
    assert latency["read_weights_s"] > 0
    assert summary["loop"]["batch"] == 256
    assert "a decode step of 256 sequences without the model" in done.stdout


def test_what_reserving_the_longest_sequence_costs_depends_on_how_long_that_may_be(tmp_path):
    words = ["bench.parts=[memory]", "bench.longest=[64,256]", "kv_bytes=1MiB", "workload.num_requests=6"]
    done = call(*SMALL, *words, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    memory = json.loads((tmp_path / "run" / "summary.json").read_text())["memory"]
    full, paged, short, long = memory["rows"]
    assert (full["allocator"], paged["allocator"]) == ("paged", "paged")
    assert full["kv_bytes"] > 4 * paged["kv_bytes"]
    assert (short["allocator"], short["max_model_len"], long["max_model_len"]) == ("reserve_max", 64, 256)
    assert paged["mean_batch_size"] >= short["mean_batch_size"] > long["mean_batch_size"]
    assert set(memory["paged_to_reserve_max"]) == {"64", "256"}
    assert "where 256 are reserved" in " ".join(done.stdout.split())


def test_a_memory_that_holds_no_longest_sequence_is_refused(tmp_path):
    words = ["bench.parts=[memory]", "bench.longest=[512]", "kv_bytes=1MiB", f"hydra.run.dir={tmp_path / 'run'}"]
    done = call(*SMALL, *words)
    said = (
        "error: bench.longest=512: reserve_max served 0 of 3 requests in a fifth of kv_bytes=1MiB, "
        "expected room for the longest sequence, and for each request"
    )
    assert (done.returncode, done.stderr.strip()) == (2, said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench.parts=[speed]"],
         "error: bench.parts=['speed']: expected some of throughput, blocks, memory, latency, loop"),
        (["bench.against=tgi"], "error: bench.against=tgi: no such peer, expected one of openvino, transformers, vllm"),
        (["bench.longest=1024"], "error: bench.longest=1024: expected a list of different numbers of tokens"),
        (["bench.longest=[]"], "error: bench.longest=[]: expected a list of different numbers of tokens"),
        (["executor=fingerprint"], "error: bench_engine: expected executor=torch and workload=synthetic"),
        (["model.optimize=fast"], "error: model.optimize=fast: expected one of none, auto"),
        ([*SMALL, "bench.parts=[throughput]", "bench.against=transformers"],
         "error: bench.against=transformers: model=tiny_llama lies in no folder a peer reads"),
    ],
)  # fmt: skip
def test_what_it_refuses(tmp_path, words, said):
    done = call(*words, f"hydra.run.dir={tmp_path / 'run'}")
    assert (done.returncode, done.stderr.strip()) == (2, said)
