"""The pool of simulated reservations: the counts of every pool, run by run, and an audit of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.allocator.pool import BlockPool
from pagedlab.allocator.run_pool import RunPool
from pagedlab.core.errors import InvariantError, OutOfBlocks


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 19), st.integers(1, 9)), max_size=40))
def test_it_counts_as_every_pool_does(calls):
    pools = (BlockPool(20, 4), RunPool(20, 4))
    held: list[list[int]] = []
    for takes, start, length in calls:
        run = list(range(start, min(start + length, 20)))
        if takes:
            free = set(run) <= set(pools[0].free_ids())
            for pool in pools:
                if free:
                    pool.take(run)
                else:
                    with pytest.raises(OutOfBlocks):
                        pool.take(run)
            held += [run] * free
        elif held:
            run = held.pop(start % len(held))
            assert [pool.release(run) for pool in pools] == [len(run)] * 2
        assert len({(p.num_free, p.num_available, p.num_held) for p in pools}) == 1
        assert set(pools[0].free_ids()) == set(pools[1].free_ids())
    for pool in pools:
        pool.audit(held)


def test_the_audit_sees_a_block_twice_and_one_that_is_lost():
    pool = RunPool(6, 4)
    pool.take([1, 2, 3])
    for tables in ([[1, 2, 3], [1]], [[1, 2]], [[1, 2, 4]]):
        with pytest.raises(InvariantError, match="3 blocks are held"):
            pool.audit(tables)


def test_nothing_is_shared_scattered_or_released_twice():
    pool = RunPool(6, 4)
    pool.take([1, 2])
    for refused in (
        lambda: pool.retain([1]),
        lambda: pool.allocate(1),
        lambda: pool.owe(1),
        lambda: pool.take([3, 5]),
        lambda: pool.take([5, 6]),
        lambda: pool.release([2, 3]),
    ):
        with pytest.raises(InvariantError):
            refused()
    assert (pool.num_free, pool.references(1), pool.is_shared(1)) == (4, 1, False)
