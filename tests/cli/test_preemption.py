"""Preemption through the command: a sweep over what becomes of a victim, its columns, and its errors in one line."""

import pyarrow.parquet as pq
import pytest

from tests.cli.test_serve import QUICK, call, summary

SMALL = [*QUICK, "kv_num_blocks=12", "workload.prompt.low=40"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """recompute, swap, adaptive over the same requests, and swap again with hardly any host memory."""
    folder = tmp_path_factory.mktemp("preemption")
    ways = ["preemption=recompute,swap,adaptive", f"hydra.sweep.dir={folder / 'sweep'}"]
    done = call("-m", *ways, *SMALL)
    assert done.returncode == 0, done.stderr
    assert "recomputed" in done.stdout
    assert "swapped" in done.stdout
    scarce = call("preemption=swap", "preemption.swap_num_blocks=2", *SMALL, f"hydra.run.dir={folder / 'scarce'}")
    assert scarce.returncode == 0, scarce.stderr
    assert "swaps, fallbacks" in scarce.stdout
    jobs = {row["preemption"]: folder / "sweep" / row["folder"] for row in summary(folder / "sweep")["rows"]}
    assert list(jobs) == ["recompute", "swap", "adaptive"]
    return jobs | {"scarce": folder / "scarce"}


def test_each_way_is_seen_to_act(sweep):
    of = {name: summary(folder) for name, folder in sweep.items()}
    assert all(one["preemptions"] > 0 for one in of.values())
    assert (of["recompute"]["swaps"], of["recompute"]["host_num_blocks"]) == (0, 0)
    assert of["recompute"]["recomputed_tokens"] > 0
    assert of["swap"]["swaps"] == of["swap"]["preemptions"]
    assert of["swap"]["recomputed_tokens"] == of["swap"]["swap_fallbacks"] == 0
    assert of["swap"]["swapped_out_bytes"] == of["swap"]["swapped_in_bytes"] > 0
    assert of["swap"]["swap_out_s"] > 0
    assert 0 < of["swap"]["host_used_fraction"] < of["swap"]["host_used_fraction_peak"] < 1
    assert of["scarce"]["swap_fallbacks"] > 0
    assert of["scarce"]["host_num_blocks"] == 2


def test_all_ways_generate_the_same(sweep):
    tokens = [pq.read_table(folder / "requests.parquet")["output_token_ids"].to_pylist() for folder in sweep.values()]
    assert tokens.count(tokens[0]) == len(tokens)


def test_every_decision_of_adaptive_says_what_it_compared(sweep):
    rows = pq.read_table(sweep["adaptive"] / "events.parquet").to_pylist()
    decided = [row for row in rows if row["kind"] == "preemption"]
    assert decided
    for row in decided:
        cheaper = "swap" if row["swap_estimate_s"] < row["recompute_estimate_s"] else "recompute"
        assert row["by"] == cheaper


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            ["preemption=swap", "preemption.swap_space=1KiB"],
            "error: preemption.swap_space=1KiB: less than one block of 16 slots, which takes 8192 bytes",
        ),
        (
            ["preemption=adaptive", "preemption.swap_num_blocks=2000000000"],
            "error: preemption.swap_num_blocks=2000000000: 2000000000 blocks take 768000000000 bytes, the host has ",
        ),
        (
            ["preemption=swap", "allocator=oracle"],
            "error: preemption=swap with allocator=oracle: what reserves all that a request can need never preempts",
        ),
    ],
)
def test_what_cannot_work_is_one_line(tmp_path, given, line):
    done = call(*given, *QUICK, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert done.stderr.startswith(line)
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()
