"""In flat mode every policy has exactly the misses of libcachesim, a simulator that shares no line with this one."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from pagedlab.replay.cache import replay_flat
from pagedlab.replay.trace import trace_of_ids
from tests.eviction.lab import policy

LENGTH = 3000
POLICIES = ("lru", "fifo", "lfu", "clock", "sieve", "s3fifo", "arc", "belady")
SIZES = (1, 2, 7, 50, 200)
# Of less than 20 blocks its small queue has no room for one: it caches nothing at all.
S3FIFO_SIZES = (20, 31, 50, 100, 200)


def zipf(rng, skew, objects):
    """Popular keys and a long tail."""
    weights = list(accumulate(1 / rank**skew for rank in range(1, objects + 1)))
    return rng.choices(range(objects), cum_weights=weights, k=LENGTH)


def zipf_with_scans(rng):
    """Every few hundred references 60 keys that never come again."""
    trace, fresh = [], 10_000
    while len(trace) < LENGTH:
        trace += zipf(rng, 0.9, 800)[:240] + list(range(fresh, fresh + 60))
        fresh += 60
    return trace[:LENGTH]


def shifting(rng):
    """The popular ones become others over time."""
    return [key + i // 6 for i, key in enumerate(zipf(rng, 1.1, 300))]


def traces():
    rng = random.Random(1)
    return {
        "zipf": zipf(rng, 1.0, 1000),
        "flat zipf": zipf(rng, 0.6, 500),
        "scans": zipf_with_scans(rng),
        "loop": [i % 90 for i in range(LENGTH)],
        "shifting": shifting(rng),
        "conversations": [100 * (i % 23) + block for i in range(400) for block in range(4 + i // 15)][:LENGTH],
    }


@pytest.fixture(scope="module")
def outside():
    """(policy, trace, size) -> misses."""
    if importlib.util.find_spec("libcachesim") is None:
        pytest.skip("libcachesim is not installed")
    runs = [
        (name, trace, size)
        for name in POLICIES
        for trace in traces()
        for size in (S3FIFO_SIZES if name == "s3fifo" else SIZES)
    ]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "outside.py")],
        input=json.dumps({"traces": traces(), "runs": runs}),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(runs, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("trace", traces())
@pytest.mark.parametrize("name", POLICIES)
def test_the_misses_are_those_of_libcachesim(name, trace, outside):
    references = trace_of_ids(traces()[trace])
    sizes = S3FIFO_SIZES if name == "s3fifo" else SIZES
    ours = {size: LENGTH - replay_flat(policy(name, size), references).block_hits for size in sizes}
    assert ours == {size: outside[name, trace, size] for size in sizes}
