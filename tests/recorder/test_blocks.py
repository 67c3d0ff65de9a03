"""The map of the pool: who holds which block, sampled so that no run is too long for it."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from pagedlab.engine import serve
from pagedlab.recorder.blocks import CACHED_IDLE, FREE, BlockMap
from pagedlab.recorder.recorder import Recorder
from tests.analysis.served_run import serve_run
from tests.lab import make_executor, make_scheduler, request


def mapped(requests, num_blocks, block_map=None, **choices):
    scheduler = make_scheduler(num_blocks, **choices)
    recorder = Recorder(block_map=block_map or BlockMap())
    serve(requests, scheduler, make_executor(scheduler), recorder, audit_every=1)
    return recorder


def test_each_block_is_its_holders_or_free():
    """R(6, 3) in blocks of 4: two for the prompt, the third token is the last and needs no slot of a third block."""
    seen = mapped([request(6, 3, id=0), request(3, 1, id=1)], 4).block_map
    assert seen.steps == [0, 1, 2]
    assert [holder.tolist() for holder in seen.holders] == [[0, 0, 1, FREE], [0, 0, FREE, FREE], [0, 0, FREE, FREE]]
    assert seen.references[0].tolist() == [1, 1, 1, 0]


def test_shared_blocks_have_several_references_and_idle_ones_a_code_of_their_own():
    two = [request(list(range(9)), 2, id=i, arrival=a) for i, a in ((0, 0.0), (1, 10.0))]
    seen = mapped(two, 6, prefix_cache="hash_chain").block_map
    first, last = seen.holders[0], seen.holders[-1]
    assert sorted(first.tolist()) == [FREE, FREE, FREE, 0, 0, 0]
    assert set(last.tolist()) <= {FREE, CACHED_IDLE, 1}
    forked = mapped([request(8, 3, temperature=1.0, n=2)], 8).block_map
    assert max(references.max() for references in forked.references) == 2


def test_a_shared_block_is_named_after_the_first_that_holds_it():
    two = [request(list(range(9)), 8, id=i, arrival=a) for i, a in ((0, 0.0), (1, 0.03))]
    seen = mapped(two, 12, prefix_cache="hash_chain").block_map
    shared = [holder[references > 1] for holder, references in zip(seen.holders, seen.references, strict=True)]
    assert sum(len(holders) for holders in shared) > 2
    assert {int(holder) for holders in shared for holder in holders} == {0}


def test_what_is_held_is_what_the_timeline_says():
    requests = [request(5 + 3 * i, 6 + i, id=i, arrival=0.5 * i) for i in range(6)]
    recorder = mapped(requests, 12)
    held = 12 - recorder.steps.column("usage.free") // 4
    for step, holder in zip(recorder.block_map.steps, recorder.block_map.holders, strict=True):
        assert np.count_nonzero(holder >= 0) == held[step]


@pytest.mark.parametrize("steps", [7, 8, 9, 100, 1000])
def test_samples_are_bounded_and_evenly_spread_and_few_are_looked_at(steps):
    scheduler = make_scheduler(20)
    looked, seen = 0, BlockMap(most_samples=8, most_blocks=5)
    for step in range(steps):
        before = seen.steps[-1:]
        seen.see(float(step), step, scheduler.allocator)
        looked += seen.steps[-1:] != before
    assert len(seen.steps) <= 8
    assert seen.steps[0] == 0
    assert len(set(np.diff(seen.steps))) == 1
    assert steps - seen.steps[-1] <= 2 * (seen.steps[1] - seen.steps[0])
    assert looked <= 8 + 5 * np.log2(max(steps / 8, 1) + 1)
    assert seen.blocks.tolist() == [0, 5, 10, 14, 19]


@pytest.mark.parametrize("executor", [["executor=fingerprint"], ["executor=simulated", "hardware=a100_40gb"]])
def test_the_run_is_the_same_with_a_map_and_without(tmp_path, executor):
    one = serve_run(tmp_path / "one", *executor, "kv_num_blocks=64", "record_blocks=true")
    other = serve_run(tmp_path / "other", *executor, "kv_num_blocks=64")
    for name in ("requests", "timeline", "events"):
        assert pq.read_table(one / f"{name}.parquet").equals(pq.read_table(other / f"{name}.parquet"))
    assert not (other / "blocks.parquet").exists()
    timeline, blocks = pq.read_table(one / "timeline.parquet"), pq.read_table(one / "blocks.parquet")
    free = timeline["kv_free"].to_numpy() + timeline["kv_external"].to_numpy()
    for row in blocks.to_pylist():
        assert 16 * row["holder"].count(FREE) == free[row["step"]]
