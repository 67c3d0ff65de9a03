"""The block pool: what is free, what is held, and what a wrong call may not do."""

import pytest

from pagedlab.allocator.pool import BlockPool
from pagedlab.core.errors import InvariantError, OutOfBlocks


def test_blocks_are_handed_out_in_the_order_they_became_free():
    pool = BlockPool(4, 16)
    assert pool.allocate(3) == [0, 1, 2]
    pool.release([0, 1])
    assert pool.allocate(3) == [3, 1, 0]


def test_a_table_is_released_deepest_block_first():
    pool = BlockPool(3, 16)
    table = pool.allocate(3)
    pool.release(table)
    assert pool.free_ids() == [2, 1, 0]


def test_a_failed_allocation_changes_nothing():
    pool = BlockPool(4, 16)
    pool.allocate(2)
    before = (pool.free_ids(), list(pool.ref))
    with pytest.raises(OutOfBlocks, match="3 blocks asked, 2 free"):
        pool.allocate(3)
    with pytest.raises(OutOfBlocks):
        pool.take([3, 0])
    with pytest.raises(OutOfBlocks):
        pool.take([3, 3])
    assert (pool.free_ids(), pool.ref) == before


def test_chosen_blocks_leave_the_middle_of_the_free_queue():
    pool = BlockPool(5, 1)
    pool.take([1, 3])
    assert pool.free_ids() == [0, 2, 4]
    pool.audit([[1, 3]])


def test_a_shared_block_stays_until_its_last_reference_is_gone():
    pool = BlockPool(2, 4)
    (block,) = pool.allocate(1)
    pool.retain([block])
    assert pool.release([block]) == 0
    assert pool.num_free == 1
    assert pool.release([block]) == 1
    assert pool.num_free == 2


def test_two_references_may_be_dropped_in_one_call_and_free_the_block_once():  # case E2
    pool = BlockPool(2, 4)
    (block,) = pool.allocate(1)
    pool.retain([block])
    assert pool.release([block, block]) == 1
    assert sorted(pool.free_ids()) == [0, 1]
    assert pool.ref == [0, 0]


@pytest.mark.parametrize("ids", [[1], [0, 0], [0, 1]])
def test_releasing_what_is_not_held_is_refused_and_changes_nothing(ids):  # case E3
    pool = BlockPool(2, 4)
    pool.allocate(1)
    with pytest.raises(InvariantError):
        pool.release(ids)
    assert pool.free_ids() == [1]
    assert pool.ref == [1, 0]


def test_a_free_block_cannot_be_shared():
    pool = BlockPool(2, 4)
    with pytest.raises(InvariantError):
        pool.retain([0])


def test_audit_sees_references_that_no_table_explains():
    pool = BlockPool(2, 4)
    table = pool.allocate(1)
    pool.audit([table])
    with pytest.raises(InvariantError, match="1 references, 0 table entries"):
        pool.audit([])
    with pytest.raises(InvariantError, match="1 references, 2 table entries"):
        pool.audit([table, table])
