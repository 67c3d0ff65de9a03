"""Runs of consecutive blocks, against a plain bitmap."""

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.allocator.runs import Buddy, FirstFit


def longest_run(free: set[int]) -> int:
    best = 0
    for block in free:
        if block - 1 not in free:
            length = 1
            while block + length in free:
                length += 1
            best = max(best, length)
    return best


def how_often(runs, length) -> int:
    """How often a run of `length` can be taken, tried out."""
    runs, times = deepcopy(runs), 0
    while runs.take(length) is not None:
        times += 1
    return times


@given(st.integers(1, 24), st.lists(st.tuples(st.booleans(), st.integers(1, 10)), max_size=60))
def test_first_fit_takes_the_lowest_run_that_holds_it_and_merges_neighbours(num_blocks, program):
    runs, free, taken = FirstFit(num_blocks), set(range(num_blocks)), []
    for give_back, length in program:
        if give_back and taken:
            start, length = taken.pop(length % len(taken))
            runs.give_back(start, length)
            free |= set(range(start, start + length))
        else:
            fits = [s for s in sorted(free) if set(range(s, s + length)) <= free]
            expected = fits[0] if fits else None
            assert runs.count(length) == how_often(runs, length)
            assert runs.take(length) == expected
            if expected is not None:
                taken.append((expected, length))
                free -= set(range(expected, expected + length))
        assert runs.free_ids() == free
        assert not free or runs.count(longest_run(free)) >= 1
        assert runs.count(longest_run(free) + 1) == 0


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=60))
def test_buddy_runs_are_aligned_powers_of_two_and_merge_back_to_the_whole(num_blocks, program):
    runs, free, taken = Buddy(num_blocks), set(range(num_blocks)), []
    for give_back, length in program:
        if give_back and taken:
            start, size = taken.pop(length % len(taken))
            runs.give_back(start, size)
            free |= set(range(start, start + size))
        else:
            assert runs.count(length) == how_often(runs, length)
            start = runs.take(length)
            if start is None:
                size = runs.granted(length)
                aligned = range(0, num_blocks - size + 1, size)
                assert not any(set(range(s, s + size)) <= free for s in aligned)
            else:
                size = runs.granted(length)
                assert size & (size - 1) == 0
                assert length <= size < 2 * length
                assert start % size == 0
                assert set(range(start, start + size)) <= free
                taken.append((start, size))
                free -= set(range(start, start + size))
        assert runs.free_ids() == free
    for start, size in taken:
        runs.give_back(start, size)
    fresh = Buddy(num_blocks)
    assert runs.take(runs.largest_possible()) == fresh.take(fresh.largest_possible())


def test_first_fit_fragments():
    runs = FirstFit(6)
    assert [runs.take(2), runs.take(2), runs.take(2)] == [0, 2, 4]
    runs.give_back(0, 2)
    runs.give_back(4, 2)
    assert runs.count(3) == 0  # 4 blocks are free, no 3 of them side by side
    runs.give_back(2, 2)
    assert runs.take(6) == 0


@pytest.mark.parametrize(("num_blocks", "largest"), [(1, 1), (2, 2), (3, 2), (7, 4), (8, 8), (983, 512)])
def test_the_largest_buddy_run_is_the_largest_power_of_two_in_the_pool(num_blocks, largest):
    assert Buddy(num_blocks).largest_possible() == largest
    assert Buddy(num_blocks).take(largest) == 0
