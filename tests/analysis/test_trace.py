"""`pagedlab trace`: valid JSON whose slices add up to the run, and never cross within a lane."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pagedlab.analysis.trace import events, write_trace
from tests.analysis.served_run import serve_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    words = ["preemption=swap", "kv_num_blocks=9", "workload.num_requests=10", "executor.swap_s=0.001"]
    arrivals = ["workload.arrival.process=poisson", "workload.arrival.rate=5"]
    return serve_run(tmp_path_factory.mktemp("trace") / "run", *words, *arrivals)


def seconds(found, *names):
    return sum(event["dur"] for event in found if event["ph"] == "X" and event["name"] in names) / 1e6


def test_steps_waits_and_moves_add_up_to_the_timeline(run_folder):
    found, rows = list(events(run_folder)), pq.read_table(run_folder / "timeline.parquet").to_pylist()
    ran = sum(row["end_s"] - row["start_s"] for row in rows if row["batch"])
    assert seconds(found, "decode", "prefill and decode") - decoding(found) == pytest.approx(ran)
    assert seconds(found, "idle") == pytest.approx(sum(r["end_s"] - r["start_s"] for r in rows if not r["batch"]))
    summary = json.loads((run_folder / "summary.json").read_text())
    assert summary["swaps"] > 0
    assert seconds(found, "swap out") == pytest.approx(summary["swap_out_s"])
    assert seconds(found, "swap in") == pytest.approx(summary["swap_in_s"])
    assert sum(event["ph"] == "i" for event in found) == 2 * summary["swaps"]


def decoding(found):
    return sum(e["dur"] for e in found if e["ph"] == "X" and e["pid"] == 2 and e["name"] == "decode") / 1e6


def test_the_phases_of_a_request_are_its_end_to_end_time(run_folder):
    found = [event for event in events(run_folder) if event["pid"] == 2]
    e2e = sum(pq.read_table(run_folder / "requests.parquet")["e2e_s"].to_pylist())
    assert seconds(found, "waiting", "to the first token", "decode") == pytest.approx(e2e)
    assert sum(e["dur"] for e in found if e["ph"] == "X" and e["name"].startswith("request")) / 1e6 == pytest.approx(
        e2e
    )


def test_the_counters_hold_every_slot(run_folder):
    pool = json.loads((run_folder / "summary.json").read_text())["kv_num_blocks"] * 16
    counted = [event["args"] for event in events(run_folder) if event["ph"] == "C" and event["name"] == "KV slots"]
    assert {sum(args.values()) for args in counted} == {pool}


def test_slices_of_a_lane_lie_inside_each_other_or_apart(run_folder):
    """What crosses is not drawn."""
    lanes = defaultdict(list)
    for event in events(run_folder):
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in lanes.values():
        open_until = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while open_until and open_until[-1] <= start + 1e-3:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-3
            open_until.append(end)


def test_the_file_is_valid_and_the_same_each_time(run_folder, tmp_path):
    count = write_trace(run_folder, tmp_path / "one.json")
    written = json.loads((tmp_path / "one.json").read_text())
    assert len(written["traceEvents"]) == count
    assert {event["ph"] for event in written["traceEvents"]} == {"M", "X", "i", "C"}
    write_trace(run_folder, tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_the_command_takes_one_run(run_folder, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for folder, code in ((run_folder, 0), (run_folder.parent, 2)):
        command = [sys.executable, "-m", "experiments.trace", str(folder), "--out", str(tmp_path / "t.json")]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == 1
