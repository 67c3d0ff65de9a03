"""Policies x capacities over one trace: a row for each, and the bounds that it is measured against."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pagedlab.interrupts import Interrupted
from pagedlab.replay.bounds import infinite_hits, optimal_hits
from pagedlab.replay.cache import replay_flat, replay_prefix
from pagedlab.replay.config import Choice
from pagedlab.replay.trace import Trace

# Told (what is being done, requests done of it): for a progress bar, and to stop by raising Interrupted.
Tick = Callable[[str, int], None]


@dataclass(slots=True)
class Study:
    """rows: one a policy and capacity, as in summary.json. optimal: capacity -> hit ratio of the optimum. Ratios are of
    all references."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    optimal: dict[int, float] = field(default_factory=dict)
    infinite: float = 0.0
    interrupted: bool = False


def run_study(
    trace: Trace, chosen: list[Choice], capacities: list[int], leaf_first: bool, seed: int, tick: Tick
) -> Study:
    """Capacity by capacity, first its bound, then each policy. Interrupted ends it between two requests: what is done
    stays, what is not is left out."""
    study = Study()
    references = list(trace.references())
    study.infinite = infinite_hits(references) / len(references)
    replay = replay_prefix if leaf_first else replay_flat
    try:
        for capacity in sorted(capacities):
            tick(f"belady's bound, {capacity} blocks", 0)
            study.optimal[capacity] = optimal_hits(references, capacity, may_bypass=leaf_first) / len(references)
            for choice in chosen:
                report = partial(tick, f"{choice.label}, {capacity} blocks")
                policy = choice.build(capacity, seed)
                before = time.process_time()
                counts = replay(policy, trace, report)
                cpu_s = time.process_time() - before
                policy.audit()
                hits = counts.prefix_hits if leaf_first else counts.block_hits
                study.rows.append(
                    {
                        "policy": choice.label,
                        "capacity_blocks": capacity,
                        "hit_ratio": hits / counts.references,
                        "opt_gap": study.optimal[capacity] - hits / counts.references,
                        "opt_hit_ratio": study.optimal[capacity],
                        "infinite_hit_ratio": study.infinite,
                        "prefix_hit_ratio": counts.prefix_hits / counts.references,
                        "references": counts.references,
                        "block_hits": counts.block_hits,
                        "prefix_hits": counts.prefix_hits,
                        "evictions": counts.evictions,
                        "uncached": counts.uncached,
                        "cpu_s": cpu_s,
                        "references_per_s": counts.references / max(cpu_s, 1e-9),
                    }
                )
    except Interrupted:
        study.interrupted = True
    return study
