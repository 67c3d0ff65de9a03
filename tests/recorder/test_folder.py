"""The run folder: what is in it, and that at no moment it says something that is not so."""

import json
import math
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from omegaconf import OmegaConf

from pagedlab.analysis.display import Display
from pagedlab.config import load_settings
from pagedlab.core.request import Status
from pagedlab.interrupts import Interrupts
from pagedlab.recorder import folder as folder_module
from pagedlab.recorder.folder import events_table, requests_table, timeline_table, write_json, write_run_folder
from pagedlab.recorder.metrics import SPLIT
from pagedlab.run import run
from tests.config.composed import composed
from tests.lab import naive_answer, naive_output, request
from tests.recorder.served import served
from tests.recorder.writer import FILES, check_not_mixed, numbered, runs_in, write

ROOT = Path(__file__).resolve().parents[2]
S, I64, I32 = pa.float64(), pa.int64(), pa.int32()

REQUESTS = {
    "id": I64,
    "replica": I32,
    "source": pa.string(),
    "client": pa.string(),
    "priority": I64,
    "status": pa.string(),
    "finish_reason": pa.string(),
    "refusal": pa.string(),
    "prompt_tokens": I64,
    "output_tokens": I64,
    "max_tokens": I64,
    "arrival_s": S,
    "first_token_s": S,
    "finish_s": S,
    "ttft_s": S,
    "tpot_s": S,
    "e2e_s": S,
    "normalized_latency_s_per_token": S,
    "wait_s": S,
    "max_itl_s": S,
    "met_slo": pa.bool_(),
    "preemptions": I64,
    "recomputed_tokens": I64,
    "cached_tokens": I64,
    "token_s": pa.list_(S),
    "prompt_token_ids": pa.list_(I32),
    "output_token_ids": pa.list_(I32),
    "further_output_token_ids": pa.list_(pa.list_(I32)),
    "output_scores": pa.list_(S),
}
TIMELINE = {
    "replica": I32,
    "step": I64,
    "start_s": S,
    "end_s": S,
    "running": I32,
    "waiting": I32,
    "batch": I32,
    "tokens": I32,
    "prefill_tokens": I32,
    "decode_tokens": I32,
    **{f"kv_{kind}": I64 for kind in SPLIT},
    "memory_blocked": pa.bool_(),
    "blocks_mapped": I32,
    "blocks_saved": I32,
    "prefix_queried_tokens": I64,
    "prefix_hit_tokens": I64,
    "prefix_host_hit_tokens": I64,
    "prefix_disk_hit_tokens": I64,
    "prefix_evicted_blocks": I64,
    "blocks_copied": I32,
    "copy_s": S,
    "blocks_swapped_out": I32,
    "blocks_swapped_in": I32,
    "swap_out_s": S,
    "swap_in_s": S,
    "host_blocks": I32,
    "load_s": S,
    "store_s": S,
    "admission_estimate": S,
    "preemptions": I64,
}
EVENTS = {
    "replica": I32,
    "time_s": S,
    "step": I64,
    "kind": pa.string(),
    "victim": I64,
    "beneficiary": I64,
    "reason": pa.string(),
    "blocks_freed": I64,
    "tokens_lost": I64,
    "by": pa.string(),
    "fallback": pa.bool_(),
    "blocks_moved": I64,
    "blocks_attached": I64,
    "bytes_moved": I64,
    "seconds": S,
    "swap_estimate_s": S,
    "recompute_estimate_s": S,
}


def no_nan(text):
    raise ValueError(f"{text} is not JSON")


def strict(path):
    return json.loads(path.read_text(), parse_constant=no_nan)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A whole run through `run`, as the command makes it."""
    config = composed("kv_num_blocks=12", "workload.arrival.process=poisson", "workload.arrival.rate=20")
    target = tmp_path_factory.mktemp("runs") / "run"
    run(load_settings(config), OmegaConf.to_container(config), target, Interrupts(), Display(False))
    return target


# ---- what is in it ------------------------------------------------------------------------------------------------


def test_a_run_folder_holds_six_files_that_anybody_may_read(run_folder):
    assert {path.name for path in run_folder.iterdir()} == FILES
    assert {path.stat().st_mode & 0o777 for path in run_folder.iterdir()} == {0o644}


@pytest.mark.parametrize(
    ("file", "columns"),
    [("requests.parquet", REQUESTS), ("timeline.parquet", TIMELINE), ("events.parquet", EVENTS)],
)
def test_tables_have_their_columns_in_order_and_typed(run_folder, file, columns):
    schema = pq.read_schema(run_folder / file)
    assert {field.name: field.type for field in schema} == columns
    assert schema.names == list(columns)


def test_tables_of_nothing_are_typed_as_well(tmp_path):
    write_run_folder(tmp_path, "{}\n", {}, [folder_module.Recorder()], {})
    for file, columns in (("requests", REQUESTS), ("timeline", TIMELINE), ("events", EVENTS)):
        table = pq.read_table(tmp_path / f"{file}.parquet")
        assert table.num_rows == 0
        assert dict(zip(table.schema.names, table.schema.types, strict=True)) == columns


def test_every_row_of_the_timeline_accounts_for_every_slot_of_the_pool(run_folder):
    rows = pq.read_table(run_folder / "timeline.parquet").to_pylist()
    assert len(rows) > 50
    assert {sum(row[f"kv_{kind}"] for kind in SPLIT) for row in rows} == {12 * 16}
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert all(row["tokens"] == row["prefill_tokens"] + row["decode_tokens"] for row in rows)
    assert all(before["end_s"] <= after["start_s"] for before, after in pairwise(rows))


def test_the_summary_has_every_number_that_the_docs_name(run_folder):
    summary = strict(run_folder / "summary.json")
    named = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    named -= {
        "length",
        "oracle",
        "oracle_buddy",
        "power_of_two",
        "refusal",
        "max_model_len",
    }  # named there, but no numbers
    named -= {"n", "best_of", "length_penalty", "output_scores", "token_s", "blocks_saved", "blocks_mapped"}
    named -= {"oracle_buddy", "replica", "per_replica", "replica_balance"}  # the last two of several replicas
    assert set(SPLIT) < named
    assert {f"kv_{name}_fraction" if name in SPLIT else name for name in named} <= set(summary)
    assert {"status", "num_requests", "completed", "refused", "steps", "block_size", "kv_num_blocks"} <= set(summary)
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "normalized_latency_s_per_token"):
        assert list(summary[name]) == ["mean", "p50", "p90", "p99"]


def test_the_summary_says_what_the_run_was(run_folder):
    summary = strict(run_folder / "summary.json")
    expected = {
        "status": "completed",
        "schema_version": 1,
        "model": "tiny_llama",
        "dtype": "float32",
        "executor": "fingerprint",
        "kernel": None,  # it runs none
        "allocator": "paged",
        "order": "fcfs",
        "batching": "chunked",
        "admission": "on_demand",
        "preemption": "recompute",
        "victim": "last_arrived",
        "prefix_cache": "none",
        "eviction": None,  # there is nothing to evict
        "workload": "synthetic",
        "seed": 0,
        "max_model_len": 512,
        "block_size": 16,
        "kv_num_blocks": 12,
        "kv_bytes_per_token": 2 * 2 * 2 * 16 * 4,  # keys and values, layers, key-value heads, head size, bytes
    }
    assert {name: summary[name] for name in expected} == expected


def test_the_config_of_a_run_can_be_run_again(run_folder):
    """config.yaml is the composed config: loaded, it gives the same settings."""
    again = load_settings(OmegaConf.create(yaml.safe_load((run_folder / "config.yaml").read_text())))
    config = composed("kv_num_blocks=12", "workload.arrival.process=poisson", "workload.arrival.rate=20")
    assert again == load_settings(config)


def test_no_json_holds_what_is_not_json(run_folder):
    for file in ("summary.json", "env.json"):
        strict(run_folder / file)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_and_nothing_is_left(tmp_path, value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "summary.json", {"x": {"y": value}})
    assert list(tmp_path.iterdir()) == []


def test_the_tables_and_the_summary_tell_the_same_story(run_folder):
    summary = strict(run_folder / "summary.json")
    rows = pq.read_table(run_folder / "requests.parquet").to_pylist()
    timeline = pq.read_table(run_folder / "timeline.parquet").to_pylist()
    events = pq.read_table(run_folder / "events.parquet").to_pylist()
    assert len(rows) == summary["num_requests"] == 8
    assert sum(len(row["output_token_ids"]) for row in rows) == summary["output_tokens"]
    assert sum(row["tokens"] for row in timeline) == summary["computed_tokens"]
    assert len(events) == timeline[-1]["preemptions"] == sum(row["preemptions"] for row in rows)
    assert len(events) == summary["preemptions"] > 0
    assert max(row["finish_s"] for row in rows) == timeline[-1]["end_s"] == summary["duration_s"]


# ---- the rows -----------------------------------------------------------------------------------------------------


def test_a_row_of_each_kind_of_request():
    """N = 4, B = 4, a step a second: R(4, 2) at 0 is served, R(20, 5) is refused, R(4, 9) is stopped after 2 steps."""
    requests = [request(4, 2, id=0), request(20, 5, id=1), request(4, 9, id=2)]
    recorder, _ = served(requests, 4, stop_after=2, max_model_len=100)
    first, second, third = requests_table(recorder).to_pylist()
    tokens = naive_output(requests[0])
    assert first == {
        "id": 0,
        "replica": 0,
        "source": "",
        "client": "",
        "priority": 0,
        "status": "finished",
        "finish_reason": "length",
        "refusal": None,
        "prompt_tokens": 4,
        "output_tokens": 2,
        "max_tokens": 2,
        "arrival_s": 0.0,
        "first_token_s": 1.0,
        "finish_s": 2.0,
        "ttft_s": 1.0,
        "tpot_s": 1.0,
        "e2e_s": 2.0,
        "normalized_latency_s_per_token": 1.0,
        "wait_s": 0.0,
        "max_itl_s": 1.0,
        "met_slo": None,
        "preemptions": 0,
        "recomputed_tokens": 0,
        "cached_tokens": 0,
        "token_s": [1.0, 2.0],
        "prompt_token_ids": requests[0].prompt.tolist(),
        "output_token_ids": tokens,
        "further_output_token_ids": [],
        "output_scores": [None],
    }
    assert second["status"] == Status.REFUSED.value == "refused"
    assert "can need 6 blocks of 4 slots" in second["refusal"]
    assert [second[name] for name in ("finish_reason", "first_token_s", "finish_s", "ttft_s", "e2e_s")] == [None] * 5
    assert (second["output_tokens"], second["token_s"], second["output_token_ids"]) == (0, [], [])
    assert (third["status"], third["finish_reason"], third["finish_s"], third["e2e_s"]) == ("running", None, None, None)
    assert (third["first_token_s"], third["ttft_s"], third["token_s"]) == (1.0, 1.0, [1.0, 2.0])
    assert third["output_token_ids"] == naive_output(requests[2])[:2]


@pytest.mark.parametrize(
    ("sampling", "counted"),
    [({"n": 3, "temperature": 1.0}, 9), ({"n": 2, "best_of": 3, "temperature": 1.0}, 6), ({"beam_width": 3}, 3)],
    ids=str,
)
def test_a_row_of_a_request_of_several_outputs(sampling, counted):
    """R(10, 3), a step a second, no copies timed: the first output in its column, the others, best first, in theirs."""
    recorder, summary = served([request(10, 3, **sampling)], 16)
    (row,) = requests_table(recorder).to_pylist()
    answer = naive_answer(request(10, 3, **sampling))
    assert row["output_token_ids"] == answer[0].token_ids
    assert row["further_output_token_ids"] == [output.token_ids for output in answer[1:]]
    expected = [None] * 3 if sampling.get("n") == 3 else pytest.approx([output.score for output in answer])
    assert row["output_scores"] == expected
    assert row["output_tokens"] == summary["output_tokens"] == counted
    assert (row["token_s"], row["finish_reason"], row["e2e_s"]) == ([1.0, 2.0, 3.0], "length", 3.0)
    assert row["normalized_latency_s_per_token"] == 1.0


def test_what_is_left_of_a_request_of_several_outputs_that_was_stopped():
    recorder, summary = served([request(10, 5, n=3, temperature=1.0)], 16, stop_after=2)
    (row,) = requests_table(recorder).to_pylist()
    whole = naive_answer(request(10, 5, n=3, temperature=1.0))
    assert row["output_token_ids"] == whole[0].token_ids[:2]
    assert row["further_output_token_ids"] == [output.token_ids[:2] for output in whole[1:]]
    assert (row["status"], row["output_tokens"], summary["output_tokens"]) == ("running", 6, 6)


def test_rows_of_the_timeline_of_e43_and_its_event():
    """Two R(14, 18), N = 8, B = 4: in second 3 the younger is preempted, in second 18 it comes back with 17 tokens."""
    recorder, _ = served([request(14, 18, id=0), request(14, 18, id=1)], 8)
    rows = timeline_table(recorder).to_pylist()
    common = {"kv_reserved": 0, "kv_internal": 0, "kv_cached_idle": 0, "blocks_saved": 0, "blocks_copied": 0}
    common |= {"blocks_swapped_out": 0, "blocks_swapped_in": 0, "swap_out_s": 0.0, "swap_in_s": 0.0, "host_blocks": 0}
    common |= {"copy_s": 0.0, "load_s": 0.0, "store_s": 0.0, "replica": 0, "admission_estimate": None}
    common |= {"prefix_host_hit_tokens": 0, "prefix_disk_hit_tokens": 0}
    common |= dict.fromkeys(("prefix_queried_tokens", "prefix_hit_tokens", "prefix_evicted_blocks"), 0)
    assert rows[0] == common | {
        "step": 0,
        "start_s": 0.0,
        "end_s": 1.0,
        "running": 2,
        "waiting": 0,
        "batch": 2,
        "tokens": 28,
        "prefill_tokens": 28,
        "decode_tokens": 0,
        "kv_token_states": 28,
        "blocks_mapped": 8,
        "kv_block_tail": 4,
        "kv_free": 0,
        "kv_external": 0,
        "memory_blocked": False,
        "preemptions": 0,
    }
    assert rows[3] == common | {
        "step": 3,
        "start_s": 3.0,
        "end_s": 4.0,
        "running": 1,
        "waiting": 1,
        "batch": 1,
        "tokens": 1,
        "prefill_tokens": 0,
        "decode_tokens": 1,
        "kv_token_states": 17,
        "blocks_mapped": 5,
        "kv_block_tail": 3,
        "kv_free": 0,
        "kv_external": 12,
        "memory_blocked": True,
        "preemptions": 1,
    }
    assert (rows[18]["prefill_tokens"], rows[18]["decode_tokens"], rows[18]["preemptions"]) == (17, 0, 1)
    assert events_table(recorder).to_pylist() == [
        {
            "replica": 0,
            "time_s": 3.0,
            "step": 3,
            "kind": "preemption",
            "victim": 1,
            "beneficiary": 0,
            "reason": "pool exhausted",
            "blocks_freed": 4,
            "tokens_lost": 16,
            "by": "recompute",
            "fallback": False,
            "blocks_moved": 0,
            "blocks_attached": None,
            "bytes_moved": 0,
            "seconds": 0.0,
            "swap_estimate_s": None,
            "recompute_estimate_s": None,
        }
    ]


def test_rows_of_e43_by_swap():
    """Steps of 1 s, a block to the host or back 0.25 s: out in second 3, back in second 19 + 1."""
    recorder, summary = served(
        [request(14, 18, id=0), request(14, 18, id=1)], 8, preemption="swap", host_blocks=6, swap_s=0.25
    )
    rows = timeline_table(recorder).to_pylist()
    moved = [(r["step"], r["blocks_swapped_out"], r["blocks_swapped_in"]) for r in rows]
    assert [row for row in moved if row[1:] != (0, 0)] == [(3, 4, 0), (18, 0, 4)]
    assert [r["host_blocks"] for r in rows] == [0, 0, 0, *[4] * 16, *[0] * (len(rows) - 19)]
    assert (rows[3]["swap_out_s"], rows[18]["swap_in_s"]) == (1.0, 1.0)
    assert rows[3]["end_s"] - rows[3]["start_s"] == rows[18]["end_s"] - rows[18]["start_s"] == 2.0
    out, back = events_table(recorder).to_pylist()
    assert (out["kind"], out["by"], out["victim"], out["beneficiary"]) == ("preemption", "swap", 1, 0)
    assert (out["blocks_moved"], out["bytes_moved"], out["seconds"], out["tokens_lost"]) == (4, 4000, 1.0, 0)
    assert (back["kind"], back["by"], back["victim"], back["beneficiary"]) == ("return", "swap", 1, None)
    assert (back["blocks_moved"], back["blocks_attached"], back["bytes_moved"]) == (4, 0, 4000)
    assert (back["seconds"], back["step"]) == (1.0, 18)
    assert (summary["preemptions"], summary["swaps"], summary["swap_fallbacks"]) == (1, 1, 0)
    assert (summary["swapped_out_bytes"], summary["swapped_in_bytes"]) == (4000, 4000)
    assert (summary["swap_out_s"], summary["swap_in_s"], summary["recompute_tax"]) == (1.0, 1.0, 0.0)
    assert (summary["host_num_blocks"], summary["host_used_fraction_peak"]) == (6, 4 / 6)
    on_host = sum(r["end_s"] - r["start_s"] for r in rows[3:19])
    assert summary["host_used_fraction"] == pytest.approx(4 * on_host / (6 * summary["duration_s"]))


# ---- a fault at any point of a write ------------------------------------------------------------------------------


class Fault(BaseException):
    """Neither OSError nor Exception: nothing on the way may catch it and go on."""


class Faults:
    """Counts the calls by which a run folder is written, and makes the k-th of them fail: before or after it acts."""

    def __init__(self, monkeypatch):
        self.calls, self.at, self.after = 0, None, False
        for owner, name in (
            (Path, "mkdir"),
            (Path, "unlink"),
            (tempfile, "mkstemp"),
            (os, "close"),
            (Path, "write_text"),
            (pq, "write_table"),
            (os, "fsync"),
            (Path, "chmod"),
            (Path, "replace"),
        ):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def arm(self, at, after):
        self.calls, self.at, self.after = 0, at, after

    def _counted(self, call):
        def counted(*args, **kwargs):
            self.calls += 1
            hit = self.calls == self.at
            if hit and not self.after:
                raise Fault
            result = call(*args, **kwargs)
            if hit:
                raise Fault
            return result

        return counted


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("old", [False, True], ids=["new folder", "over an old run"])
def test_a_fault_at_any_call_leaves_no_summary_beside_what_is_not_its_run(tmp_path, monkeypatch, old, after):
    faults = Faults(monkeypatch)
    faults.arm(None, after)
    write(tmp_path / "count", 1)
    total = faults.calls
    assert total > 6 * 5  # six files, each made as a temporary one, filled, synced, opened to all and moved
    outcomes = set()
    for k in range(1, total + 10):
        folder = tmp_path / str(k)
        if old:
            faults.arm(None, after)
            write(folder, 1)
        faults.arm(k, after)
        try:
            write(folder, 2)
            outcomes.add("written")
        except Fault:
            pass
        faults.arm(None, after)
        if folder.exists():
            outcomes.add(check_not_mixed(folder))
        write(folder, 3)
        assert check_not_mixed(folder) == 3
        assert {path.name for path in folder.iterdir()} == FILES, "something was left over"
    # The sweep over k went past the end; it saw folders without a summary, and (before its removal) the old run.
    assert {"written", None, 2} <= outcomes
    assert (1 in outcomes) == old


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_fault_leaves_no_temporary_file_behind_that_holds_anything(tmp_path, monkeypatch, after):
    faults = Faults(monkeypatch)
    for k in range(1, 60):
        faults.arm(k, after)
        try:
            write(tmp_path / str(k), 1)
        except Fault:
            assert {path.stat().st_size for path in (tmp_path / str(k)).glob(".tmp-*")} <= {0}
    assert check_not_mixed(tmp_path / "59") == 1  # beyond the last call


def test_what_a_killed_process_left_is_swept_away_and_nothing_else(tmp_path):
    (tmp_path / ".tmp-half").write_text("{")
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, 1)
    assert {path.name for path in tmp_path.iterdir()} == FILES | {"notes.txt"}


def test_a_run_that_cannot_be_put_into_tables_leaves_no_summary_of_the_one_before(tmp_path):
    write(tmp_path, 1)
    broken = numbered(2)
    broken.sequences[0].token_s = ["soon"]
    with pytest.raises((pa.ArrowException, TypeError, ValueError, struct.error)):
        write_run_folder(tmp_path, "seed: 2\n", {"seed": 2}, [broken], {"run": 2})
    assert check_not_mixed(tmp_path) is None


# ---- processes that die -------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    """A fork server (see writer.py) that writes into tmp_path; call it with an order, get the child's wait status."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.recorder.writer", str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def order(*words):
        print(*words, file=process.stdin, flush=True)
        return int(process.stdout.readline())

    yield order
    process.stdin.close()
    assert process.wait(timeout=30) == 0


def test_a_process_killed_at_any_moment_leaves_a_whole_run_or_no_summary(tmp_path, server):
    moments = random.Random(0)
    for number in range(15):
        status = server("kill", 1_000_000 * number, moments.uniform(0.0, 0.08))
        assert os.WTERMSIG(status) == signal.SIGKILL
        check_not_mixed(tmp_path)
    write(tmp_path, 7)
    assert check_not_mixed(tmp_path) == 7
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_a_disk_that_is_full_before_any_of_the_files_is_whole_gives_an_error_and_no_summary(tmp_path, server):
    write(tmp_path, 1, requests=20)
    sizes = {path.stat().st_size for path in tmp_path.iterdir()}
    for number, most in enumerate([0, *(size - 1 for size in sorted(sizes))], start=2):
        write(tmp_path, 1, requests=20)
        assert os.waitstatus_to_exitcode(server("full", number, most)) == 3
        assert "summary.json" not in runs_in(tmp_path)
        assert not list(tmp_path.glob(".tmp-*"))
    assert os.waitstatus_to_exitcode(server("full", 99, max(sizes) * 2)) == 0
    assert check_not_mixed(tmp_path) == 99


def test_a_run_folder_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(OSError, match="File exists"):
        write(tmp_path / "run", 1)
    assert (tmp_path / "run").read_text() == "mine"


def test_a_column_of_tokens_is_parted_where_one_part_would_be_too_long(monkeypatch):
    rows = [np.arange(n, dtype=np.int32) for n in (3, 2, 0, 9, 1, 4)]
    whole = folder_module._lists(rows, np.int32)
    monkeypatch.setattr(folder_module, "_MOST_IN_A_LIST", 5)
    parted = folder_module._lists(rows, np.int32)
    assert whole.num_chunks == 1
    assert parted.num_chunks == 3  # the row of 9 has one of its own
    assert parted.to_pylist() == whole.to_pylist() == [row.tolist() for row in rows]
    assert parted.type == folder_module._lists([], np.int32).type == pa.list_(pa.int32())
