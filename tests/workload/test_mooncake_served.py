"""Mooncake's trace as requests: prompts are equal exactly where the ids are, so that a cache hits the same."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.config import load_settings
from pagedlab.core.errors import ConfigError, WorkloadError
from pagedlab.engine import serve
from pagedlab.interrupts import Interrupts
from pagedlab.recorder.metrics import summarize
from pagedlab.recorder.recorder import Recorder
from pagedlab.run import build as build_lab
from pagedlab.settings import BlockTraceSettings, SamplingSettings
from pagedlab.workload import mooncake
from tests.config.composed import composed, said_of

SAMPLING = SamplingSettings(0.0, 1.0, 0, True)
ROWS = [
    {"timestamp": 0, "input_length": 20, "output_length": 3, "hash_ids": [1, 2, 3]},
    {"timestamp": 2000, "input_length": 16, "output_length": 0, "hash_ids": [1, 2]},
    {"timestamp": 8000, "input_length": 24, "output_length": 5, "hash_ids": [1, 2, 9]},
]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    return file


def built(file, **changes):
    settings = BlockTraceSettings("mooncake", str(file), 8, None)
    for name, value in changes.items():
        setattr(settings, name, value)
    return mooncake.build(settings, SAMPLING, SimpleNamespace(vocab_size=1000), 0)


def test_lengths_times_and_what_is_equal(path):
    a, b, c = built(path, rate_scale=2.0)
    assert [(r.prompt_tokens, r.max_tokens, r.true_output_tokens) for r in (a, b, c)] == [
        (20, 3, 3),
        (16, 1, 1),
        (24, 5, 5),
    ]
    assert [r.arrival_s for r in (a, b, c)] == [0, 1, 4]
    assert a.prompt.dtype == np.int32
    assert a.prompt[:16].tolist() == b.prompt.tolist() == c.prompt[:16].tolist()
    assert a.prompt[16] != c.prompt[16]


@given(st.lists(st.integers(0, 2**64 - 1), max_size=8), st.integers(2, 64), st.integers(0, 2**63 - 1))
def test_blocks_are_equal_exactly_where_ids_are(ids, size, seed):
    blocks = mooncake.tokens_of(ids, size, 50_000, seed).reshape(len(ids), size)
    assert len({block.tobytes() for block in blocks}) == len(set(ids))
    assert blocks.size == 0 or 0 <= blocks.min() <= blocks.max() < 50_000


def test_the_first_requests_are_those_of_the_whole_trace(path):
    for one, other in zip(built(path, limit=2), built(path), strict=False):
        assert (one.prompt.tolist(), one.arrival_s, one.sampling.seed) == (
            other.prompt.tolist(),
            other.arrival_s,
            other.sampling.seed,
        )


def test_what_is_wrong_is_one_line(path, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"workload\.path=null: expected the file of the trace"):
        built(path, path=None)
    with pytest.raises(ConfigError, match=r"workload\.rate_scale=0: expected"):
        built(path, rate_scale=0)
    with pytest.raises(WorkloadError):
        built(tmp_path / "empty.jsonl")
    said = said_of(
        lambda: composed(
            "workload=mooncake",
            f"workload.path={path}",
            "prefix_cache=radix",
            "block_size=24",
            base=("executor=fingerprint", "model=tiny_llama", "kv_num_blocks=64"),
        )
    )
    assert said == (
        "block_size=24 with prefix_cache=radix: workload=mooncake says what is equal in blocks of 512 tokens, "
        "expected a divisor of that"
    )


@pytest.mark.parametrize("skip", ["true", "false"])
@pytest.mark.parametrize("block_size", [4, 8])
def test_a_simulated_prefix_cache_hits_what_the_ids_share(path, block_size, skip):
    config = composed(
        "executor=simulated", "hardware=a100_80gb", "model=llama3_8b", "workload=mooncake", f"workload.path={path}",
        "workload.block_tokens=8", f"block_size={block_size}", "prefix_cache=hash_chain", "kv_num_blocks=64",
        f"executor.skip={skip}", base=(),
    )  # fmt: skip
    lab = build_lab(load_settings(config), Interrupts())
    recorder = Recorder()
    serve(lab.requests, lab.scheduler, lab.executor, recorder, audit_every=1)
    summary = summarize(recorder, 64, block_size, "completed")
    # The second shares both blocks, but computes one token at least; the third shares two of its three.
    assert [seq.cached_tokens for seq in recorder.sequences] == [0, 16 - block_size, 16]
    assert summary["prefix_hit_tokens"] == 32 - block_size
