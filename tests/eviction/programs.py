"""Random programs of cache events without Hypothesis: the same for a seed, for hunting seeded faults."""

from __future__ import annotations

import random

from tests.eviction.test_against_naive import KEYS, RETENTIONS, Bench, Tree

EVENTS = "aaaaaabbwoofrxt"


def program(seed, length=150):
    rng = random.Random(seed)
    return [(rng.choice(EVENTS), rng.randrange(KEYS), rng.choice(RETENTIONS)) for _ in range(length)]


def run(name, seed):
    """One program against the naive model, flat in even seeds and under leaf-first in odd ones."""
    events = program(seed)
    bench = (Tree if seed % 2 else Bench)(name, events)
    for event in events:
        bench.step(*event)
