"""A cache of block ids and an eviction policy, nothing else: what a policy does to the hits, without an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagedlab.eviction.base import Entry, Eviction
from pagedlab.eviction.leaf_first import LeafFirst
from pagedlab.replay.trace import Trace

TICK = 1024
"""Requests between two calls of `tick`."""


@dataclass(slots=True)
class Counts:
    """references: blocks asked for. block_hits: of these, how many were cached. prefix_hits: how many were cached with
    all blocks of their request before them, which alone are of use to a prefix cache. uncached: not taken in, as
    everything was in use."""

    references: int = 0
    block_hits: int = 0
    prefix_hits: int = 0
    evictions: int = 0
    uncached: int = 0


def replay_flat(policy: Eviction, trace: Trace, tick: Callable[[int], None] = lambda requests: None) -> Counts:
    """Each block is a reference of its own in a flat cache of policy.capacity blocks, as in a cache simulator: nothing
    is ever in use, and everything may be evicted at any time. tick: called now and then with the requests done."""
    if policy.needs_future:
        policy.foretell(trace.references())
    cached: set[int] = set()
    entries = [Entry(None, depth, trace.block_tokens) for depth in range(max(map(len, trace.requests)))]
    hit, miss, insert, offer, evict = policy.hit, policy.miss, policy.insert, policy.offer, policy.evict
    counts, hits, prefix_hits, room = Counts(trace.num_references), 0, 0, policy.capacity
    for number, (time_s, keys) in enumerate(zip(trace.times_s, trace.requests, strict=True)):
        if not number % TICK:
            tick(number)
        policy.now_s = time_s
        leading = len(keys)  # the hits before the first miss
        for depth, key in enumerate(keys):
            if key in cached:
                hit(key)
                hits += 1
                continue
            if depth < leading:
                leading = depth
            miss(key)
            if room:
                room -= 1
            else:
                cached.remove(evict())
                counts.evictions += 1
            insert(key, entries[depth])
            offer(key)
            cached.add(key)
        prefix_hits += leading
    counts.block_hits, counts.prefix_hits = hits, prefix_hits
    return counts


def replay_prefix(policy: Eviction, trace: Trace, tick: Callable[[int], None] = lambda requests: None) -> Counts:
    """A prefix cache of policy.capacity blocks under leaf-first eviction, one request at a time: it hits the blocks
    that it shares from its start on, takes in the others as far as there is room beside what it uses itself, and lets
    go of them when it ends. The keys of `trace` must be prefixes: equal keys follow equal ones."""
    if policy.needs_future:
        policy.foretell(trace.references())
    leaves = LeafFirst(policy)
    cached: set[int] = set()
    counts = Counts(references=trace.num_references)
    for number, (time_s, keys) in enumerate(zip(trace.times_s, trace.requests, strict=True)):
        if not number % TICK:
            tick(number)
        leaves.now_s = time_s
        shared = next((depth for depth, key in enumerate(keys) if key not in cached), len(keys))
        for key in keys[:shared]:
            leaves.withdraw(key)
            leaves.hit(key)
        counts.prefix_hits += shared
        used = shared
        for depth in range(shared, len(keys)):
            key = keys[depth]
            leaves.miss(key)
            if used < depth:  # the block before it was not taken in
                continue
            if len(cached) == policy.capacity:
                if not leaves.num_offered:
                    continue
                cached.remove(leaves.evict())
                counts.evictions += 1
            leaves.insert(key, Entry(keys[depth - 1] if depth else None, depth, trace.block_tokens))
            cached.add(key)
            used += 1
        for key in reversed(keys[:used]):
            leaves.free(key)
            leaves.offer(key)
        counts.uncached += len(keys) - used
    counts.block_hits = counts.prefix_hits
    return counts
