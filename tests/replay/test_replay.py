"""The replay in its two modes, and its bounds, against the plainest thing that does the same."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.core.request import Request
from pagedlab.eviction.base import EVICTIONS
from pagedlab.replay.bounds import infinite_hits, optimal_hits
from pagedlab.replay.cache import replay_flat, replay_prefix
from pagedlab.replay.trace import Chains, Trace, trace_of_ids, trace_of_requests
from tests.eviction.lab import policy

ids = st.lists(st.integers(0, 5), max_size=9)


def best_hits(keys, capacity, may_bypass):
    """Every possible choice of victims, tried."""

    @cache
    def best(at, cached):
        if at == len(keys):
            return 0
        key = keys[at]
        if key in cached:
            return 1 + best(at + 1, cached)
        if len(cached) < capacity:
            return best(at + 1, cached | {key})
        outcomes = [best(at + 1, cached - {victim} | {key}) for victim in cached]
        return max([*outcomes, best(at + 1, cached)] if may_bypass else outcomes)

    return best(0, frozenset())


@settings(max_examples=150)
@given(keys=ids, capacity=st.integers(1, 4), may_bypass=st.booleans())
def test_the_optimum_is_the_best_of_all_choices(keys, capacity, may_bypass):
    assert optimal_hits(keys, capacity, may_bypass) == best_hits(tuple(keys), capacity, may_bypass)


@settings(max_examples=100)
@given(keys=st.lists(st.integers(0, 9), min_size=1, max_size=60), capacity=st.integers(1, 6))
def test_belady_as_a_policy_reaches_the_optimum_of_a_flat_cache(keys, capacity):
    hits = replay_flat(policy("belady", capacity), trace_of_ids(keys)).block_hits
    assert hits == optimal_hits(keys, capacity, may_bypass=False)


def test_an_infinite_cache_misses_each_block_once():
    assert infinite_hits([1, 2, 1, 1, 3, 2]) == 3


def prefixes(requests):
    chains = Chains()
    return Trace([chains.keys(request) for request in requests], [float(i) for i in range(len(requests))])


trees = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=25)


def naive_lru_prefix_hits(requests, capacity):
    """An LRU prefix cache as a list of prefixes (tuples), the least recently used first."""
    cached, hits = [], 0
    for request in map(tuple, requests):
        blocks = [request[: i + 1] for i in range(len(request))]
        shared = next((i for i, block in enumerate(blocks) if block not in cached), len(blocks))
        hits += shared
        mine = blocks[:shared]
        for block in blocks[shared:]:
            if len(cached) == capacity:
                free = [c for c in cached if c not in mine and not any(o != c and o[: len(c)] == c for o in cached)]
                if not free:
                    break
                cached.remove(free[0])
            cached.append(block)
            mine.append(block)
        cached = [c for c in cached if c not in mine] + mine[::-1]
    return hits


@settings(max_examples=150)
@given(requests=trees, capacity=st.integers(1, 7))
def test_a_prefix_cache_hits_what_a_list_of_prefixes_hits(requests, capacity):
    counts = replay_prefix(policy("lru", capacity), prefixes(requests))
    assert counts.prefix_hits == counts.block_hits == naive_lru_prefix_hits(requests, capacity)


@pytest.mark.parametrize("name", list(EVICTIONS))
@settings(max_examples=25)
@given(requests=trees, capacity=st.integers(1, 7))
def test_no_policy_exceeds_the_bounds_of_a_prefix_cache(name, requests, capacity):
    trace = prefixes(requests)
    made = policy(name, capacity)
    counts = replay_prefix(made, trace)
    made.audit()
    references = list(trace.references())
    assert counts.prefix_hits <= optimal_hits(references, capacity, may_bypass=True) <= infinite_hits(references)
    assert counts.references == len(references)
    taken_in = counts.references - counts.prefix_hits - counts.uncached
    assert 0 <= taken_in - counts.evictions <= capacity  # what is left in the cache


@settings(max_examples=60)
@given(requests=st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=6), min_size=1, max_size=20))
def test_flat_prefix_hits_are_those_before_a_requests_first_miss(requests):
    trace = Trace(requests, [0.0] * len(requests))
    cached, expected = [], 0
    for request in requests:
        leading = True
        for key in request:
            leading = leading and key in cached
            expected += leading
            if key not in cached:
                cached = [*cached, key][-4:]
    assert replay_flat(policy("fifo", 4), trace).prefix_hits == expected


def test_a_request_larger_than_the_cache_takes_what_room_there_is():
    counts = replay_prefix(policy("lru", 3), prefixes([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]))
    assert (counts.prefix_hits, counts.uncached, counts.evictions) == (3, 4, 0)


def test_chains_tell_apart_equal_blocks_after_different_ones_and_leave_prefix_ids_as_they_are():
    chains = Chains()
    assert chains.keys([7, 8]) == [0, 1]
    assert chains.keys([8]) == [2]
    assert chains.keys([7, 8, 8]) == [0, 1, 3]


def test_the_blocks_of_a_prompt_are_its_full_ones_and_come_by_arrival():
    import numpy as np

    def request(id, tokens, arrival_s):
        return Request(id, np.array(tokens, dtype=np.int32), max_tokens=1, arrival_s=arrival_s)

    trace = trace_of_requests([request(0, [1, 2, 3, 4, 5], 2.0), request(1, [1, 2, 9, 9], 1.0)], block_size=2)
    assert trace.requests == [[0, 1], [0, 2]]
    assert trace.times_s == [1.0, 2.0]
    assert (trace.input_tokens, trace.block_tokens) == (9, 2)
