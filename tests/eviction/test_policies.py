"""What the contract promises of every policy, and a worked example where a naive model would say nothing new."""

from __future__ import annotations

import sys

import pytest

from pagedlab.core.errors import OutOfBlocks
from pagedlab.eviction.base import EVICTIONS, Entry, Retention
from pagedlab.eviction.leaf_first import LeafFirst
from pagedlab.replay.bounds import optimal_hits
from pagedlab.replay.cache import replay_flat
from pagedlab.replay.trace import trace_of_ids
from tests.eviction.lab import VARIANTS, policy, variant
from tests.eviction.test_against_libcachesim import traces


def filled(name, keys, capacity=8, offered=True):
    made = variant(name, capacity)
    made.foretell([*keys, *keys])
    for key in keys:
        made.miss(key)
        made.insert(key)
        if offered:
            made.offer(key)
    return made


@pytest.mark.parametrize("name", VARIANTS)
def test_without_an_offer_there_is_no_victim(name):
    made = filled(name, range(5), offered=False)
    for ask in (made.evict, made.peek, lambda: made.evict_all(1)):
        with pytest.raises(OutOfBlocks):
            ask()
    made.offer(3)
    assert made.evict() == 3
    assert made.num_offered == 0
    made.audit()


@pytest.mark.parametrize("name", VARIANTS)
def test_n_victims_are_all_or_none(name):
    made = filled(name, range(6))
    made.withdraw(2)
    with pytest.raises(OutOfBlocks, match="6 blocks to evict, 5 may be"):
        made.evict_all(6)
    assert made.num_offered == 5
    assert set(made.evict_all(5)) == {0, 1, 3, 4, 5}
    made.audit()


@pytest.mark.parametrize("name", VARIANTS)
def test_to_peek_changes_nothing(name):
    peeked, plain = filled(name, range(8)), filled(name, range(8))
    for made in (peeked, plain):
        for key in (1, 1, 4, 6):
            made.hit(key)
    for _ in range(8):
        announced = [peeked.peek(), peeked.peek()]
        victim = plain.evict()
        assert announced == [victim, victim]
        assert peeked.evict() == victim


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_forgotten_comes_back_as_new(name):
    made = filled(name, range(4))
    for key in range(4):
        made.forget(key)
    made.audit()
    assert made.num_offered == 0
    made.insert(2)
    made.offer(2)
    assert made.evict() == 2


@pytest.mark.parametrize("trace", traces())
@pytest.mark.parametrize("name", list(EVICTIONS))
def test_no_policy_hits_more_than_the_optimum(name, trace):
    keys = traces()[trace][:1000]
    for capacity in (1, 10, 60):
        hits = replay_flat(policy(name, capacity), trace_of_ids(keys)).block_hits
        assert hits <= optimal_hits(keys, capacity, may_bypass=False) <= optimal_hits(keys, capacity, may_bypass=True)


@pytest.mark.parametrize("trace", traces())
@pytest.mark.parametrize("name", ["lru", "belady"])
def test_a_larger_cache_never_hits_less(name, trace):
    keys = traces()[trace][:1000]
    hits = [replay_flat(policy(name, capacity), trace_of_ids(keys)).block_hits for capacity in (1, 2, 3, 5, 9, 30, 90)]
    assert hits == sorted(hits)


def test_random_draws_evenly_and_by_its_seed_alone():
    def victims(seed):
        made = policy("random", 400, seed)
        for key in range(400):
            made.insert(key)
            made.offer(key)
        return made.evict_all(200)

    assert victims(1) == victims(1) != victims(2)
    of_the_first_half = [sum(key < 200 for key in victims(seed)) for seed in range(30)]
    assert 90 < sum(of_the_first_half) / 30 < 110
    assert min(of_the_first_half) < 100 < max(of_the_first_half)


def test_of_blocks_used_together_the_deepest_goes_first_under_lru_with_or_without_leaf_first():
    for made in (policy("lru", 8), LeafFirst(policy("lru", 8))):
        for depth in range(4):
            made.insert(depth, Entry(depth - 1 if depth else None, depth))
        for key in (3, 2, 1, 0):
            made.free(key)
            made.offer(key)
        assert made.evict_all(4) == [3, 2, 1, 0]


def test_leaf_first_saves_the_start_of_a_sequence_that_fifo_would_take():
    """Two sequences share block 0: 0-1-2 and 0-3."""

    def victims(made):
        for key, parent, depth in ((0, None, 0), (1, 0, 1), (2, 1, 2), (3, 0, 1)):
            made.insert(key, Entry(parent, depth))
        for key in (2, 1, 3, 0):
            made.offer(key)
        return made.evict_all(4)

    assert victims(policy("fifo", 8)) == [0, 1, 2, 3]
    assert victims(LeafFirst(policy("fifo", 8))) == [2, 1, 3, 0]


def test_under_leaf_first_all_idle_blocks_count_as_evictable():
    made = LeafFirst(policy("lru", 8))
    for depth in range(4):
        made.insert(depth, Entry(depth - 1 if depth else None, depth))
    made.offer(3)
    made.offer(2)
    assert (made.num_offered, made.policy.num_offered) == (2, 1)
    made.withdraw(2)  # a request takes the blocks up to 2
    assert made.evict_all(1) == [3]
    with pytest.raises(OutOfBlocks):
        made.evict()


def test_a_pin_is_broken_only_where_nothing_else_may_go_and_ends_with_its_time():
    made = policy("ttl_pin", 8, ttl_s=10.0)
    made.insert(1, retention=Retention(ttl_s=100.0))
    made.insert(2)
    made.now_s = 5.0
    made.insert(3)
    for key in (1, 2, 3):
        made.offer(key)
    made.now_s = 10.0
    assert made.evict() == 2  # its ten seconds are over
    assert made.evict() == 3  # ends at 15, before the end of 1
    assert made.evict() == 1


def test_a_priority_holds_for_its_time_and_is_renewed_by_a_use():
    made = policy("priority_ttl", 8)
    made.insert(1, retention=Retention(priority=90, ttl_s=10.0))
    made.insert(2)
    made.insert(3, retention=Retention(priority=20, ttl_s=10.0))
    for key in (1, 2, 3):
        made.offer(key)
    made.now_s = 9.0
    assert made.peek() == 3
    made.now_s = 10.0
    assert made.peek() == 1  # all three have the default now, and 1 was used first
    made.hit(1, Retention(priority=90, ttl_s=10.0))
    assert made.evict_all(3) == [2, 3, 1]


def test_priority_is_the_highest_of_a_blocks_requests():
    made = policy("priority", 8)
    made.insert(1, retention=Retention(priority=80))
    made.hit(1, Retention(priority=10))
    made.insert(2, retention=Retention(priority=50))
    for key in (1, 2):
        made.offer(key)
    assert made.evict_all(2) == [2, 1]


def test_cost_aware_keeps_what_is_dear_to_compute_again_for_longer():
    """Blocks of four tokens, attention as dear as the weights at eight: block 5 of a sequence costs 2.8 first ones."""
    for alpha, order in ((0.0, ["deep", "flat"]), (1.0, ["flat", "deep"])):
        made = policy("cost_aware", 8, alpha=alpha, attention_tokens=8.0)
        made.insert(0, Entry(None, 5, 4))
        made.insert(1, Entry(None, 0, 4))
        made.offer(0)
        made.offer(1)
        assert [("deep", "flat")[key] for key in made.evict_all(2)] == order


CONSTANT = ("lru", "fifo", "random", "clock", "slru", "sieve", "s3fifo", "arc", "lirs")


@pytest.mark.parametrize("name", CONSTANT)
def test_the_steps_of_a_reference_do_not_grow_with_the_cache(name):
    """Counted in executed lines of Python, which no busy machine disturbs: at sixteen times the capacity, not a tenth
    more."""

    def lines(capacity):
        keys = [(i * 7919) % (2 * capacity) for i in range(3 * capacity)]
        count = 0

        def trace(frame, event, argument):
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            replay_flat(policy(name, capacity), trace_of_ids(keys))
        finally:
            sys.settrace(before)
        return count / len(keys)

    assert lines(1600) < 1.1 * lines(100)
