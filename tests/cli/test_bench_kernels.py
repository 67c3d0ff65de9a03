"""`bench_kernels` as a user meets it: its files, its rows, its one line per error."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from pagedlab.experiments.attention_cells import Cell, Heads, Sizes
from pagedlab.kernels.base import KERNELS

ROOT = Path(__file__).resolve().parents[2]
TINY = ["contexts=[40]", "batches=[3]", "block_sizes=[8]", "rounds=2", "rotate_mb=1"]


def call(*words):
    command = [sys.executable, "-m", "experiments.bench_kernels", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)


def test_a_tiny_run_writes_rows_of_every_variant_dtype_and_phase(tmp_path):
    done = call(*TINY, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"run folder: {tmp_path / 'run'}"
    rows = json.loads((tmp_path / "run" / "summary.json").read_text())["rows"]
    found = {(row["variant"], row["dtype"], row["phase"]) for row in rows}
    phases = ("decode", "ragged", "prefill")
    dtypes = ("float32", "bfloat16")
    assert found == {(v, d, p) for v in ("torch", "cpu") for d in dtypes for p in phases}
    assert len(rows) == len(found)
    for row in rows:
        assert (row["batch"], row["context"], row["block_size"]) == (3, 40, 8)
        assert row["ratio_to_contiguous_sdpa"] > 0
        assert row["paging_overhead"] > 0
        assert (row["kv_gb_per_s"] is None) == (row["phase"] == "prefill")
    assert pq.read_table(tmp_path / "run" / "rows.parquet").to_pylist() == rows
    assert (tmp_path / "run" / "ratios.svg").stat().st_size > 0
    assert (tmp_path / "run" / "ratios.png").stat().st_size > 0


@pytest.mark.parametrize("phase", ["decode", "ragged", "prefill"])
def test_what_is_timed_computes_the_same_attention(phase):
    """In order, over the same keys and values: each variant gives what contiguous attention gives."""
    cell = Cell(Sizes(phase, context=24, batch=4, block_size=8), Heads(6, 2, 16), torch.float32, 1, seed=3)
    tables = cell._batch(shuffled=False).block_tables.long()
    for cache, flat in zip(cell._paged[0], cell._flat[0], strict=True):
        for s, table in enumerate(tables):
            flat[s] = cache[table].flatten(0, 1)[: flat.shape[2]].transpose(0, 1)
    expected = cell.contiguous()(0)
    expected = expected.transpose(1, 2).flatten(0, 1) if phase == "prefill" else expected.flatten(1, 2)
    for name in ("reference", "torch", "cpu"):
        torch.testing.assert_close(cell.attend(KERNELS[name](), shuffled=False)(0), expected, msg=name)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("variants=[fast]", "variants=fast: no such kernel, expected some of"),
        ("dtypes=[int4096]", "dtypes=int4096: expected"),
        ("dtypes=[float16]", "kernel=cpu: model.dtype=float16 unsupported, expected one of float32, bfloat16"),
        ("contexts=[0]", "contexts=[0]: expected whole numbers from 1 on"),
        ("phases=[both]", "phases=both: expected some of decode, ragged, prefill"),
        ("kv_heads=2", "heads=9: expected a multiple of kv_heads=2"),
    ],
)
def test_what_it_cannot_measure_is_said_in_one_line(tmp_path, word, said):
    done = call(*TINY, word, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {said}")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_the_setting_of_the_paper_can_be_chosen(tmp_path):
    words = ["setting=fig18a", "dtypes=[bfloat16]", "variants=[cpu]", "phases=[decode]", "batches=[1]", "contexts=[64]"]
    done = call(*words, "rounds=1", "rotate_mb=1", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["heads"], summary["kv_heads"], summary["head_dim"]) == (40, 40, 128)
