"""Hits of every policy on one fixed trace at three sizes: what a change of a policy changes first.

The figures are of the naive models, and for eight policies of libcachesim 0.3.5 as well; `random` has only its own.
"""

from __future__ import annotations

import random

import pytest

from pagedlab.replay.cache import replay_flat
from pagedlab.replay.trace import Trace
from tests.eviction.lab import VARIANTS, variant

SIZES = (20, 60, 150)


def sessions():
    """400 requests of chains of blocks: some sessions come back often and grow, others are seen once."""
    rng = random.Random(7)
    turns, requests = [0] * 60, []
    for number in range(400):
        session = min(int(rng.expovariate(0.08)), 59)
        turns[session] += 1
        length = 2 + min(turns[session], 9)
        tail = [10_000 + 10 * number + i for i in range(2)] if number % 3 == 0 else []
        requests.append([100 * session + i for i in range(length)] + tail)
    return Trace(requests, [float(i) for i in range(len(requests))], block_tokens=4)


GOLDEN = {
    "lru": (263, 907, 1920),
    "fifo": (260, 830, 1753),
    "lfu": (538, 1226, 2281),
    "mru": (159, 375, 1104),
    "filo": (327, 911, 1634),
    "random": (283, 854, 1777),
    "clock": (244, 919, 2058),
    "slru": (506, 1206, 2297),
    "sieve": (494, 1275, 2281),
    "s3fifo": (420, 1183, 2273),
    "arc": (420, 1047, 2195),
    "lirs": (443, 1143, 2265),
    "gdsf": (257, 1052, 2291),
    "priority": (263, 907, 1920),
    "priority_ttl": (263, 907, 1920),
    "cost_aware": (263, 907, 1920),
    "ttl_pin": (263, 907, 1920),
    "belady": (1012, 1915, 2637),
    "clock bits=2": (247, 905, 2219),
    "slru sglang": (332, 1246, 2309),
    "slru small": (358, 1001, 2067),
    "s3fifo paper": (405, 1158, 2249),
    "s3fifo half": (386, 998, 2050),
    "lirs half": (238, 1005, 2115),
    "gdsf recompute": (251, 1084, 2233),
    "cost_aware short": (250, 917, 1935),
    "ttl_pin short": (263, 907, 1920),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_hits_are_those_of_the_golden_table(name):
    trace = sessions()
    hits = tuple(replay_flat(variant(name, size), trace).block_hits for size in SIZES)
    assert hits == GOLDEN[name]


def test_every_policy_has_a_row():
    assert GOLDEN.keys() == VARIANTS.keys()
