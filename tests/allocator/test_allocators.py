"""What each allocator reserves, refuses and reports, on requests small enough to check by hand."""

import numpy as np
import pytest

from pagedlab.allocator.base import ALLOCATORS, Usage
from pagedlab.allocator.pool import BlockPool
from pagedlab.core.errors import ConfigError, InvariantError, OutOfBlocks
from pagedlab.core.request import Request, Sequence

NAMES = ("paged", "reserve_max", "power_of_two", "oracle", "reserve_output")


def sequence(prompt, max_tokens, true=None, id=0):
    return Sequence(Request(id, np.arange(prompt, dtype=np.int32), max_tokens, true_output_tokens=true))


def allocator(name, num_blocks, block_size=4, max_model_len=32):
    return ALLOCATORS[name](BlockPool(num_blocks, block_size), max_model_len)


# A prompt of 5 that may generate 20 and will generate 9, in blocks of 4, max_model_len 32.
# Slots needed: 5 + 9 - 1 = 13. Slots declared: 5 + 20 - 1 = 24. With the output rounded to 16: 5 + 16 - 1 = 20.
@pytest.mark.parametrize(
    ("name", "table", "reserved", "tail"),
    [
        ("paged", [0, 1], 5, 3),
        ("reserve_max", [0, 1, 2, 3, 4, 5, 6, 7], 32, 0),
        ("reserve_output", [0, 1, 2, 3, 4, 5], 24, 0),
        ("oracle", [0, 1, 2, 3], 13, 3),
        ("power_of_two", [0, 1, 2, 3, 4, 5, 6, 7], 32, 0),  # 20 slots are 5 blocks, a buddy run of 8
    ],
)
def test_what_an_admission_takes(name, table, reserved, tail):
    a = allocator(name, 16)
    seq = sequence(5, 20, true=9)
    assert a.can_admit(seq)
    assert a.admit(seq).table == table
    free = (16 - len(table)) * 4
    assert a.usage() == Usage(tokens=0, reserved=reserved, block_tail=tail, cached_idle=0, free=free)
    assert a.grow(seq.id, 5) == []
    assert a.usage() == Usage(tokens=5, reserved=reserved - 5, block_tail=tail, cached_idle=0, free=free)
    assert a.unused(seq.id, 5) == reserved - 5
    a.audit()


def test_paged_gets_one_block_each_time_its_last_one_is_full():
    a = allocator("paged", 4)
    seq = sequence(3, 10)
    a.admit(seq)
    added = {tokens: a.grow(seq.id, tokens) for tokens in range(3, 14)}
    assert added == {3: [], 4: [], 5: [1], 6: [], 7: [], 8: [], 9: [2], 10: [], 11: [], 12: [], 13: [3]}
    a.audit()


def test_paged_says_none_and_changes_nothing_when_the_pool_is_empty():
    a = allocator("paged", 1)
    seq = sequence(4, 10)
    a.admit(seq)
    a.grow(seq.id, 4)
    before = a.usage()
    assert a.grow(seq.id, 5) is None
    assert a.usage() == before
    a.audit()


@pytest.mark.parametrize("name", NAMES)
def test_release_gives_all_back_and_a_second_release_does_nothing(name):  # case E1
    a = allocator(name, 8)
    seq = sequence(6, 3, true=3)
    table = a.admit(seq).table
    a.grow(seq.id, 6)
    assert a.release(seq.id) == len(table)
    assert a.release(seq.id) == 0
    assert a.usage() == Usage(0, 0, 0, 0, free=32)
    assert sorted(a.pool.free_ids()) == list(range(8))
    a.audit()


@pytest.mark.parametrize("name", NAMES)
def test_a_failed_admission_changes_nothing(name):
    a = allocator(name, 8, max_model_len=20)
    a.admit(sequence(10, 10, true=10, id=0))
    a.pool.take([block for block in a.pool.free_ids() if name == "paged"][:-1])  # leave one block
    seq = sequence(16, 5, true=5, id=1)
    before = (a.usage(), a.pool.free_ids(), dict(a.holdings))
    assert not a.can_admit(seq)
    with pytest.raises(OutOfBlocks):
        a.admit(seq)
    assert (a.usage(), a.pool.free_ids(), a.holdings) == before


@pytest.mark.parametrize(
    ("name", "max_tokens", "need"),
    [
        ("paged", 30, 9),  # 5 + 30 - 1 = 34 slots
        ("reserve_output", 30, 9),
        ("reserve_max", 1, 10),  # max_model_len 40
        ("oracle", 30, 9),
        ("power_of_two", 28, 16),  # 5 + 32 - 1 = 36 slots, 9 blocks, a run of 16
    ],
)
def test_a_request_that_can_never_fit_is_refused_with_both_numbers(name, max_tokens, need):
    a = allocator(name, 8, max_model_len=40)
    request = sequence(5, max_tokens, true=max_tokens, id=7).request
    assert f"request 7 can need {need} blocks" in a.refusal(request)
    assert "the pool can give 8 at most" in a.refusal(request)


def test_a_buddy_pool_counts_only_its_largest_run():
    a = allocator("power_of_two", 7, max_model_len=40)
    assert a.refusal(sequence(5, 8, true=8).request) is None  # 12 slots, 3 blocks, a run of 4
    assert "the pool can give 4 at most (of 7)" in a.refusal(sequence(5, 16, true=16).request)


def test_free_blocks_that_do_not_lie_side_by_side_are_no_room_for_a_run():
    a = allocator("reserve_output", 6)
    a.admit(sequence(5, 4, id=0))
    a.admit(sequence(5, 4, id=1))
    a.admit(sequence(5, 4, id=2))
    a.release(0)
    a.release(2)
    assert a.pool.num_free == 4
    assert not a.can_admit(sequence(6, 4, id=3))


def test_only_growing_sequences_keep_a_watermark_free():
    assert not allocator("paged", 4).can_admit(sequence(12, 5), keep_free=2)
    assert allocator("paged", 4).can_admit(sequence(12, 5), keep_free=1)
    assert allocator("reserve_output", 4).can_admit(sequence(12, 5), keep_free=2)


@pytest.mark.parametrize("name", ["oracle", "power_of_two"])
def test_an_oracle_needs_the_true_length(name):
    with pytest.raises(ConfigError, match="no known output length"):
        allocator(name, 8).can_admit(sequence(5, 20))


@pytest.mark.parametrize("name", ["reserve_max", "reserve_output", "paged"])
def test_no_other_allocator_looks_at_the_true_length(name):
    class Sealed(Request):
        def __getattribute__(self, key):
            if key == "true_output_tokens":
                raise AssertionError("true_output_tokens was read")
            return super().__getattribute__(key)

    a = allocator(name, 16)
    seq = Sequence(Sealed(0, np.arange(5, dtype=np.int32), 9))
    assert a.refusal(seq.request) is None
    assert a.can_admit(seq)
    a.admit(seq)
    a.grow(seq.id, 6)
    a.release(seq.id)


def test_admitting_twice_is_a_fault():
    a = allocator("paged", 8)
    a.admit(sequence(4, 4))
    with pytest.raises(InvariantError, match="admitted twice"):
        a.admit(sequence(4, 4))


def test_outgrowing_a_reservation_is_a_fault():
    a = allocator("oracle", 8)
    a.admit(sequence(4, 4, true=2))
    with pytest.raises(InvariantError, match="outgrow"):
        a.grow(0, 6)


@pytest.mark.parametrize("block_size", [1, 3, 16, 256])
def test_the_split_sums_to_the_pool_at_any_block_size(block_size):
    a = ALLOCATORS["paged"](BlockPool(10, block_size), 10 * block_size)
    a.admit(sequence(2 * block_size, 4, id=0))
    a.admit(sequence(block_size + 1, 4, id=1))
    a.grow(0, 2 * block_size)
    a.grow(1, 1)
    assert a.usage().total == 10 * block_size
    a.audit()
