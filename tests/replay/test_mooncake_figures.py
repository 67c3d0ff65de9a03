"""The public Mooncake conversation trace: hit ratios that an independent implementation printed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pagedlab.replay.bounds import infinite_hits
from pagedlab.replay.cache import replay_flat, replay_prefix
from pagedlab.replay.trace import Trace
from pagedlab.settings import BlockTraceSettings
from pagedlab.workload.mooncake import read
from tests.eviction.lab import policy

PACKED = Path(__file__).parents[3] / "shared" / "data" / "mooncake" / "conversation_trace.jsonl.gz"
# Percent of 288,500 references, flat, 10,000 blocks.
FLAT = {"lru": 21.12, "fifo": 18.65, "arc": 22.25, "lfu": 13.18, "sieve": 13.18, "gdsf": 21.71, "belady": 36.64}
FLAT |= {"s3fifo": 19.25}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    if not PACKED.exists():
        pytest.skip("the trace is not beside this repository")
    path = tmp_path_factory.mktemp("mooncake") / "trace.jsonl"
    path.write_bytes(gzip.decompress(PACKED.read_bytes()))
    settings = BlockTraceSettings("mooncake", str(path), 512, None)
    requests = list(read(settings, path))
    return Trace([r.blocks for r in requests], [r.time_s for r in requests], 512)


def test_the_trace_is_the_published_one(trace):
    references = list(trace.references())
    assert (len(trace.requests), len(references), len(set(references))) == (12031, 288500, 182790)
    assert round(100 * infinite_hits(references) / len(references), 2) == 36.64


@pytest.mark.parametrize("name", FLAT)
def test_the_hit_ratio_is_the_independent_one(name, trace):
    counts = replay_flat(policy(name, 10_000), trace)
    assert round(100 * counts.block_hits / counts.references, 2) == FLAT[name]


def test_fifo_breaks_prefixes_and_leaf_first_does_not(trace):
    flat = replay_flat(policy("fifo", 10_000), trace)
    assert round(100 * flat.prefix_hits / flat.references, 2) == 18.15
    assert replay_prefix(policy("fifo", 10_000), trace).prefix_hits > flat.prefix_hits
