"""What a reference costs in a flat cache, by policy and capacity: flat for those that claim O(1), and the slope."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from pagedlab.launch import Job
    from pagedlab.replay.config import Choice


def main() -> int:
    return guarded(bench)


def bench(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch

    return launch(bench_job, config_name="bench_eviction").exit_code


def bench_job(job: Job) -> None:
    from rich.console import Console
    from rich.table import Table

    from pagedlab.recorder.folder import write_json
    from pagedlab.replay.config import choice_of

    config = job.config
    table = Table(title="ns of CPU a reference, half of them hits (best of the repeats)", title_justify="left")
    table.add_column("policy")
    for capacity in config.capacities:
        table.add_column(f"{capacity} blocks", justify="right")
    table.add_column("slope, ns per doubling", justify="right")
    rows = []
    for name in config.policies:
        choice = choice_of(name, "policies")
        costs = {c: measure(choice, c, config.references, config.repeats, config.seed) for c in config.capacities}
        rows.append({"policy": name, "ns": {str(c): ns for c, ns in costs.items()}, "slope_ns": slope(costs)})
        table.add_row(name, *(f"{ns:.0f}" for ns in costs.values()), f"{slope(costs):+.0f}")
    Console(width=120).print(table)
    job.folder.mkdir(parents=True, exist_ok=True)
    write_json(job.folder / "summary.json", {"references": config.references, "seed": config.seed, "rows": rows})
    print(f"run folder: {job.folder}")


def measure(choice: Choice, capacity: int, references: int, repeats: int, seed: int) -> float:
    """Nanoseconds a reference. The keys are uniform over twice the capacity, so that at every capacity about half of
    the references hit and the others evict. The cache is filled before."""
    import numpy as np

    from pagedlab.replay.cache import replay_flat
    from pagedlab.replay.trace import trace_of_ids

    keys = np.random.default_rng(seed).integers(2 * capacity, size=references).tolist()
    trace = trace_of_ids([*range(capacity), *keys])
    best = float("inf")
    for _ in range(repeats):
        full: list[tuple[int, float]] = []  # references done and the CPU time, of each tick once the cache is full

        def tick(done: int, full: list[tuple[int, float]] = full) -> None:
            if done >= capacity:
                full.append((done, time.process_time()))

        replay_flat(choice.build(capacity, seed), trace, tick)
        (first, started_s), (last, ended_s) = full[0], full[-1]
        best = min(best, 1e9 * (ended_s - started_s) / (last - first))
    return best


def slope(costs: dict[int, float]) -> float:
    """Nanoseconds more for each doubling of the capacity, by least squares: 0 is O(1), a constant above is O(log n)."""
    import numpy as np

    if len(costs) < 2:
        return 0.0
    return float(np.polyfit(np.log2(list(costs)), list(costs.values()), 1)[0])


if __name__ == "__main__":
    sys.exit(main())
