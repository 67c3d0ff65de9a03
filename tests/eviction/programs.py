"""Random programs of cache events without Hypothesis: the same for a seed, for hunting seeded faults."""

from __future__ import annotations

import random

from tests.eviction.test_against_naive import CAPACITY, KEYS, RETENTIONS, Bench, Tree

EVENTS = "aaaaaabbbbbooowwfrt"


def program(seed, keys, length=150):
    rng = random.Random(seed)
    return [(rng.choice(EVENTS), rng.randrange(keys), rng.choice(RETENTIONS)) for _ in range(length)]


def run(name, seed):
    """One program against the naive model, flat in even seeds and under leaf-first in odd ones. Three of four are
    small, so that ghosts come back; the others have room for longer stories."""
    keys, capacity = (KEYS, CAPACITY) if seed % 8 > 1 else (2 * KEYS, 2 * CAPACITY)
    events = program(seed, keys)
    bench = (Tree if seed % 2 else Bench)(name, events, capacity)
    for event in events:
        bench.step(*event)
