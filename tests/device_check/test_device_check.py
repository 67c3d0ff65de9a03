"""The device check without a device: every part on the CPU at tiny sizes, and what becomes of parts that go wrong.

What it measures here means nothing; that it measures, judges and writes is what is shown, before it meets a GPU.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pagedlab.core.errors import ConfigError
from pagedlab.device_check import worker
from pagedlab.device_check.base import TINY, Bench, Part
from pagedlab.device_check.graphs import graphs
from pagedlab.device_check.memory import memory
from pagedlab.device_check.numerics import numerics
from pagedlab.device_check.parts import PARTS
from pagedlab.device_check.report import summary, wrong
from pagedlab.device_check.timing import median_ms, per_second
from pagedlab.device_check.worker import Outcome, run_parts
from pagedlab.experiments.device_check import check_job, measure
from pagedlab.kernels.base import KERNELS

ROOT = Path(__file__).resolve().parents[2]


def tiny(*kernels, **more):
    return Bench(kernels or ("torch", "cpu"), "cpu", TINY, **more)


# ---- the parts ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found():
    """The rows of each part, from one process, as on a GPU."""
    outcomes = list(run_parts(tiny(), PARTS, 200))
    assert [(o.part, o.status, o.error) for o in outcomes] == [(part.name, "done", None) for part in PARTS]
    assert wrong(outcomes, PARTS) == []
    return {o.part: o.rows for o in outcomes}


def test_all_kernels_are_judged_in_all_their_types(found):
    judged = {(row["kernel"], row["dtype"]) for row in found["numerics"]}
    assert judged == {
        ("torch", "bfloat16"),
        ("torch", "float16"),
        ("torch", "float32"),
        ("cpu", "bfloat16"),
        ("cpu", "float32"),
    }
    assert all(row["passed"] for row in found["numerics"])
    assert {row["what"] for row in found["numerics"]} >= {"attention", "copy_blocks, swap_blocks"}


def test_every_rate_is_its_amount_over_its_time(found):
    for part in ("ceilings", "write", "copy", "swap"):
        assert found[part]
        for row in found[part]:
            assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["ms"] / 1e6) if "bytes" in row else True
            assert row["ms"] > 0
    for row in found["swap"]:
        moved = row["block_bytes"] * row["blocks"] * row["tensors"]
        assert row["gb_per_s"] == pytest.approx(moved / row["ms"] / 1e6)
    assert {row["block_bytes"] for row in found["swap"]} == {4096, 16384, 32768, 131072, 524288}
    assert {row["direction"] for row in found["swap"]} == {"out", "in"}


def test_decodes_are_held_against_the_ceilings_and_contiguous_attention(found):
    ceiling = {row["operation"]: row["gb_per_s"] for row in found["ceilings"] if row["by"] != "amax"}
    ceiling["read"] = max(row["gb_per_s"] for row in found["ceilings"] if row["operation"] == "read")
    assert len(found["decode"]) == 4  # two block sizes, two kernels
    for row in found["decode"]:
        # 256 KiB: eight sequences of 64 tokens, two heads of 64 elements of two bytes, keys and values
        assert row["batch"] * row["context"] * 2 * 64 * 2 * 2 == 2**18
        assert row["kv_gb_per_s"] == pytest.approx(2**18 / row["ms"] / 1e6)
        assert row["share_of_copy_ceiling"] == pytest.approx(row["kv_gb_per_s"] / ceiling["copy"])
        assert row["share_of_read_ceiling"] == pytest.approx(row["kv_gb_per_s"] / ceiling["read"])
        assert row["ratio_to_contiguous_sdpa"] > 0
        assert row["paging_overhead"] > 0


def test_prefills_count_the_pairs_that_are_seen(found):
    assert [row["cached_tokens"] for row in found["prefill"]] == [0, 0, 32, 32]
    for row in found["prefill"]:
        pairs = sum(row["cached_tokens"] + i + 1 for i in range(row["new_tokens"]))
        operations = 4 * row["sequences"] * TINY.heads * TINY.head_dim * pairs
        assert row["tflop_per_s"] == pytest.approx(operations / row["ms"] / 1e9)


def test_an_engine_run_a_kernel_with_preemptions(found):
    assert [row["kernel"] for row in found["engine"]] == ["torch", "cpu"]
    for row in found["engine"]:
        assert row["tokens"] > 50
        assert row["preemptions"] > 0


def test_a_replay_is_held_against_its_launches(monkeypatch):
    monkeypatch.setattr(KERNELS["torch"], "capturable", True)
    (row,) = graphs(tiny("torch", "cpu"), record=lambda launches: launches)
    assert row["passed"]
    assert row["ratio"] == pytest.approx(row["replay_ms"] / row["eager_ms"])

    def stale(launches):
        kept = launches().clone()
        return lambda: kept

    (row,) = graphs(tiny("torch"), record=stale)
    assert not row["passed"]


def test_the_median_of_calls_after_those_that_warm_up():
    slept = iter([0.2, 0.2, 0.01, 0.002, 0.002, 0.002, 0.03])
    assert 2 <= median_ms(lambda: time.sleep(next(slept)), "cpu", repeats=5) < 9.9
    assert per_second(3e9, 1500) == 2


# ---- what is wrong is seen ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["decode", "prefill", "write_kv", "copy_blocks", "swap_blocks"])
def test_a_kernel_that_is_wrong_is_noticed(monkeypatch, method):
    def nothing(self, first, *rest):
        return torch.zeros_like(first) if method in ("decode", "prefill") else None

    monkeypatch.setattr(KERNELS["torch"], method, nothing)
    rows = list(numerics(tiny("torch")))
    what = "copy_blocks, swap_blocks" if "blocks" in method else "attention"
    assert not any(row["passed"] for row in rows if row["what"] == what)
    assert json.dumps(rows, allow_nan=False)  # of NaN, too, a row can be written


def test_wrong_rows_and_judges_that_fail_are_named():
    parts = (Part("right", 1, numerics, judges=True), Part("fast", 1, numerics))
    fine, bad = {"part": "fast", "passed": None, "ms": 2.0}, {"part": "right", "kernel": "x", "passed": False}
    assert wrong([Outcome("fast", "failed", 1, [fine], "OSError: gone"), Outcome("right", "cut", 1, [])], parts) == []
    assert wrong([Outcome("right", "failed", 1, [bad], "ValueError: no")], parts) == [
        "right: ValueError: no",
        "right: wrong with kernel=x",
    ]


CHECKER = """#!{python}
import sys
sys.argv[1:4] == ["--tool", "memcheck", "--error-exitcode"] or sys.exit(3)
kernel = sys.argv[-1]
print("ERROR SUMMARY of", kernel)
if kernel == "slow": import time; time.sleep(60)
sys.exit({{"fine": 0, "bad": int(sys.argv[4]), "odd": 1}}[kernel])
"""


def test_the_memory_checker_says_right_wrong_or_nothing(monkeypatch, tmp_path):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(CHECKER.format(python=sys.executable))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    rows = list(memory(tiny("torch", "fine", "bad", "odd", "slow", seconds=8)))
    assert [(row["kernel"], row["passed"]) for row in rows] == [
        ("fine", True),
        ("bad", False),
        ("odd", None),
        ("slow", None),
    ]
    assert rows[0]["said"] == "ERROR SUMMARY of fine"
    assert rows[3]["said"] == "no answer in 2 s"


@pytest.mark.parametrize(("kernel", "code"), [("cpu", 0), ("none", 1)])
def test_what_the_memory_checker_watches_runs_and_finds_kernels_to_run(kernel, code):
    command = [sys.executable, "-m", "pagedlab.device_check.numerics", "cpu", kernel]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr


# ---- parts that go wrong ------------------------------------------------------------------------------------------


def fine(bench):
    yield {"process": os.getpid(), "before": len(bench.rows)}


def raises(bench):
    yield {"n": 1}
    raise ValueError("out of ideas\nand more")


def dies(bench):
    yield {"n": 1}
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(bench):
    yield {"n": 1}
    time.sleep(60)


def counts(bench):
    for n in range(1000):
        time.sleep(0.02)
        yield {"n": n}


def test_a_part_that_goes_wrong_leaves_its_rows_and_the_rest_goes_on(monkeypatch):
    monkeypatch.setattr(worker, "GRACE_SECONDS", 0.5)
    names = ("fine", fine), ("raises", raises), ("dies", dies), ("hangs", hangs), ("counts", counts), ("last", fine)
    parts = [Part(name, 5 if run is fine else 0.3, run) for name, run in names]
    outcomes = {o.part: o for o in run_parts(tiny(), parts, 100)}
    assert {name: (o.status, o.error) for name, o in outcomes.items()} == {
        "fine": ("done", None),
        "raises": ("failed", "ValueError: out of ideas"),
        "dies": ("failed", "its process ended with exit code -9"),
        "hangs": ("failed", "killed 0 s after its 0 s were over"),
        "counts": ("cut", None),
        "last": ("done", None),
    }
    for name in ("raises", "dies", "hangs"):
        assert outcomes[name].rows == [{"part": name, "n": 1}]
    assert 1 < len(outcomes["counts"].rows) < 40
    assert outcomes["last"].rows[0]["before"] == 4 + len(outcomes["counts"].rows)
    assert outcomes["last"].rows[0]["process"] != outcomes["fine"].rows[0]["process"]


def test_parts_for_which_no_time_is_left_are_named():
    outcomes = list(run_parts(tiny(), [Part("fine", 5, fine), Part("late", 5, fine)], 0.0))
    assert [(o.status, o.rows) for o in outcomes] == [("left out", []), ("left out", [])]


# ---- the command --------------------------------------------------------------------------------------------------


def judge(bench):
    yield {"kernel": "x", "passed": False}


@pytest.mark.parametrize(("part", "code"), [(fine, 0), (judge, 1)])
def test_it_writes_prints_and_ends_by_what_it_found(tmp_path, capsys, part, code):
    folder = tmp_path / "run"
    parts = [Part("first", 5, part), Part("second", 5, fine)]
    assert measure(tiny(), parts, 60, folder) == code
    written = json.loads((folder / "summary.json").read_text())
    assert written["status"] == "completed"
    assert [row["part"] for row in written["rows"]] == ["first", "second"]
    assert [(row["part"], row["status"], row["rows"]) for row in written["parts"]] == [
        ("first", "done", 1),
        ("second", "done", 1),
    ]
    assert len(written["wrong"]) == code
    assert json.loads((folder / "env.json").read_text())["packages"]["torch"]
    said, complained = capsys.readouterr()
    assert said.splitlines()[-1] == f"run folder: {folder}"
    assert complained == ("wrong: first: wrong with kernel=x\n" if code else "")


def test_what_is_killed_leaves_what_it_had(tmp_path, monkeypatch):
    def stopped(bench, parts, seconds):
        yield Outcome("first", "done", 1.0, [{"part": "first", "n": 1}])
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "run_parts", stopped)
    with pytest.raises(KeyboardInterrupt):
        measure(tiny(), [], 60, tmp_path)
    written = json.loads((tmp_path / "summary.json").read_text())
    assert (written["status"], written["rows"]) == ("partial", [{"part": "first", "n": 1}])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(tmp_path):
    command = [sys.executable, "-m", "experiments.device_check", f"hydra.run.dir={tmp_path / 'run'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "device_check: this torch sees no CUDA device, there is nothing to check here\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", ["kernels", "parts"])
def test_a_part_or_a_kernel_that_is_none_is_named(key, tmp_path):
    config = {"kernels": ["triton"], "parts": None} | {key: ["speed"]}
    with pytest.raises(ConfigError, match=f"^{key}: speed is none, expected some of .*(cupy|numerics)"):
        check_job(SimpleNamespace(config=SimpleNamespace(**config), folder=tmp_path))


def test_the_parts_fit_into_four_minutes():
    config = (ROOT / "conf" / "device_check.yaml").read_text()
    seconds = int(config.split("seconds: ")[1].split()[0])
    assert sum(part.seconds for part in PARTS) <= seconds + 20
    assert seconds + worker.GRACE_SECONDS < 240
    assert all(part.name in config for part in PARTS)
    assert math.isfinite(summary([], PARTS, "partial")["seconds"])
