"""Seeded faults of allocator, copy-on-write, hashing, eviction, preemption, swap, sums and kernels' masks: each must be
caught, and by what is told."""

from __future__ import annotations

from tests.audit.harness import Check, Found
from tests.audit.tested import tested

# What the seeded faults are in -> the words for pytest that run them.
SUITES = {
    "core": ("tests/engine/test_mutations.py", "-k", "seeded"),
    "prefix cache": ("tests/prefix_cache/test_mutations.py", "-k", "seeded"),
    "swapping": ("tests/preemption/test_mutations.py", "-k", "seeded"),
    "eviction": ("tests/eviction/test_mutations.py", "-k", "seeded"),
    "triton": ("tests/kernels/triton_interpreted.py", "-k", "broken_kernel"),
    "cuda": ("tests/kernels/test_cuda_numerics.py", "-k", "mutant"),
    "cuda barriers": ("tests/kernels/test_cuda_races.py", "-k", "missing_barrier"),
}
# Where a test does not record what caught the fault there is but one that can.
BY = {
    "eviction": "the naive model of the policy",
    "triton": "attention in float64",
    "cuda": "attention in float64",
    "cuda barriers": "the race detector",
}


def pieces(short: bool) -> list[str]:
    """They are tests themselves, hence none in the short form."""
    return [] if short else list(SUITES)


def attempt(suite: str) -> Found:
    found, caught = Found(), {}
    environment = {"TRITON_INTERPRET": "1"} if suite == "triton" else {}
    for test in tested(*SUITES[suite], **environment):
        name = test.name.partition("[")[2].removesuffix("]")
        if test.outcome == "skipped":
            found.figures["skipped"] = found.figures.get("skipped", 0) + 1
            continue
        found.attempt(f"{suite}: {name}", test.outcome == "passed", test.said)
        if test.outcome == "passed":
            caught[f"{suite}: {name}"] = test.caught_by or BY[suite]
    found.figures["caught by"] = caught
    return found


CHECK = Check("seeded faults, each caught", pieces, attempt, 300, limit_s=3000)
