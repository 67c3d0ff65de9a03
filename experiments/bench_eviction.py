"""What a reference costs in a flat cache, by policy and capacity: flat for those that claim O(1), and the slope."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from pagedlab.eviction.base import Eviction
    from pagedlab.launch import Job


CONTROL = "bare OrderedDict"
REQUEST = 16
"""References of a request."""


def main() -> int:
    return guarded(bench)


def bench(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch

    return launch(bench_job, interrupts, config_name="bench_eviction").exit_code


def bench_job(job: Job) -> None:
    from rich.console import Console
    from rich.table import Table

    from pagedlab.recorder.folder import write_json
    from pagedlab.replay.config import choice_of

    config = job.config
    made: dict[str, Callable[[int], Eviction]] = {CONTROL: bare_order}
    for name in config.policies:
        made[name] = partial(choice_of(name, "policies").build, seed=config.seed)
    table = Table(title="ns of CPU a reference, half of them hits (best of the repeats)", title_justify="left")
    table.add_column("policy")
    for capacity in config.capacities:
        table.add_column(f"{capacity} blocks", justify="right")
    table.add_column("slope, ns per doubling", justify="right")
    rows = []
    for name, make in made.items():
        costs = {c: measure(make, c, config.references, config.repeats, config.seed) for c in config.capacities}
        rows.append({"policy": name, "ns": {str(c): ns for c, ns in costs.items()}, "slope_ns": slope(costs)})
        table.add_row(name, *(f"{ns:.0f}" for ns in costs.values()), f"{slope(costs):+.0f}")
    Console(width=120).print(table)
    print(f"The {CONTROL} does the same number of steps at every capacity: its slope is the machine's memory.")
    job.folder.mkdir(parents=True, exist_ok=True)
    write_json(job.folder / "summary.json", {"references": config.references, "seed": config.seed, "rows": rows})
    print(f"run folder: {job.folder}")


def bare_order(capacity: int) -> Eviction:
    """LRU as an OrderedDict alone, in which nothing can be in use: the least that a replay can cost."""
    from collections import OrderedDict

    from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, Entry, Retention
    from pagedlab.eviction.lru import Lru

    class BareOrder(Lru):
        def __init__(self, capacity: int):
            super().__init__(capacity)
            self._order: OrderedDict[int, None] = OrderedDict()

        def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
            self._order[key] = None

        def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
            self._order.move_to_end(key)

        def offer(self, key: int) -> None:
            """Everything may always go."""

        def evict(self) -> int:
            return self._order.popitem(last=False)[0]

    return BareOrder(capacity)


def measure(make: Callable[[int], Eviction], capacity: int, references: int, repeats: int, seed: int) -> float:
    """Nanoseconds a reference. The keys are uniform over twice the capacity, so that at every capacity about half of
    the references hit and the others evict. The cache is filled before."""
    import numpy as np

    from pagedlab.replay.cache import replay_flat
    from pagedlab.replay.trace import Trace

    keys = [*range(capacity), *np.random.default_rng(seed).integers(2 * capacity, size=references).tolist()]
    requests = [keys[i : i + REQUEST] for i in range(0, len(keys), REQUEST)]
    trace = Trace(requests, [0.0] * len(requests))
    best = float("inf")
    for _ in range(repeats):
        full: list[tuple[int, float]] = []  # references done and the CPU time, at each tick once the cache is full

        def tick(done: int, full: list[tuple[int, float]] = full) -> None:
            if done * REQUEST >= capacity:
                full.append((done * REQUEST, time.process_time()))

        replay_flat(make(capacity), trace, tick)
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
