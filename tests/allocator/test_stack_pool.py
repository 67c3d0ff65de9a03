"""The pool of simulations that takes and gives whole tables: the counts of every pool, and an audit of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.allocator.pool import BlockPool
from pagedlab.allocator.stack_pool import StackPool
from pagedlab.core.errors import InvariantError, OutOfBlocks


@given(st.lists(st.tuples(st.sampled_from(["allocate", "release", "owe", "settle"]), st.integers(0, 9)), max_size=40))
def test_it_counts_as_every_pool_does(calls):
    pools = (BlockPool(20, 4), StackPool(20, 4))
    tables: tuple[list, list] = ([], [])
    owed = 0
    for call, n in calls:
        if call == "settle":
            n = min(n, owed)
        if call == "owe" and n > pools[0].num_free:
            continue
        for pool, held in zip(pools, tables, strict=True):
            if call == "release":
                if held:
                    table = held.pop(n % len(held))
                    assert pool.release(table) == len(table)
            elif call == "owe":
                pool.owe(n)
            else:
                try:
                    held.append(getattr(pool, call)(n))
                except OutOfBlocks:
                    assert n > pool.num_free
        owed += {"owe": n, "settle": -n}.get(call, 0)
        assert len({(p.num_free, p.num_available, p.num_held) for p in pools}) == 1
        assert [len(table) for table in tables[0]] == [len(table) for table in tables[1]]
    for pool, held in zip(pools, tables, strict=True):
        held.append(pool.settle(owed))
        pool.audit(held)
        assert len(set(pool.free_ids()) | {block for table in held for block in table}) == 20


def test_the_audit_sees_a_block_twice_and_one_that_is_lost():
    pool = StackPool(6, 4)
    table = pool.allocate(3)
    with pytest.raises(InvariantError, match="3 free \\+ 4 held, of 6 blocks"):
        pool.audit([table, table[:1]])
    with pytest.raises(InvariantError, match="3 free \\+ 2 held"):
        pool.audit([table[:2]])
    pool.owe(1)
    with pytest.raises(InvariantError, match="1 blocks are owed to nobody"):
        pool.audit([table])


def test_nothing_is_shared_or_chosen_and_no_more_comes_back_than_is_held():
    pool = StackPool(6, 4)
    table = pool.allocate(2)
    for refused in (lambda: pool.retain(table), lambda: pool.take([5]), lambda: pool.release([0, 1, 2])):
        with pytest.raises(InvariantError):
            refused()
    assert (pool.num_free, pool.references(table[0]), pool.is_shared(table[0])) == (4, 1, False)
