"""What the tests of eviction share: a policy by its name with its configured settings, changed where asked."""

from __future__ import annotations

from pathlib import Path

import yaml

from pagedlab.eviction.base import EVICTIONS
from pagedlab.settings import OPTIONS

CONF = Path(__file__).resolve().parents[2] / "conf" / "eviction"


def settings_of(name, **changes):
    return OPTIONS["eviction"][name](**yaml.safe_load((CONF / f"{name}.yaml").read_text()) | changes)


def policy(name, capacity, seed=0, **changes):
    return EVICTIONS[name](capacity, settings_of(name, **changes), seed)


# Every policy, and the variants of those whose parameters change what they do.
VARIANTS = {name: {} for name in EVICTIONS} | {
    "clock bits=2": {"bits": 2},
    "slru sglang": {"protected_fraction": 1.0, "promote_hits": 2},
    "slru small": {"protected_fraction": 0.3},
    "s3fifo paper": {"warmup": "paper"},
    "s3fifo half": {"small_fraction": 0.5, "promote_hits": 1, "ghost_fraction": 0.5},
    "lirs half": {"hir_fraction": 0.5, "ghost_fraction": 0.6},
    # Of blocks of four tokens these make costs whole numbers, so that equal ranks are equal in floating point too.
    "gdsf recompute": {"cost": "recompute", "attention_tokens": 2.0},
    "cost_aware short": {"alpha": 0.125, "attention_tokens": 2.0},
    "ttl_pin short": {"ttl_s": 3.0},
}


def variant(name, capacity, seed=0):
    return policy(name.split()[0], capacity, seed, **VARIANTS[name])
