"""What `bench_engine` compares: for each part its configurations, and what is made of their runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import get_context
from statistics import median
from typing import Any

from pagedlab.config import parse_bytes
from pagedlab.core.errors import ConfigError
from pagedlab.enginebench.bound import Reader
from pagedlab.enginebench.cell import load, run, warm_up
from pagedlab.enginebench.peer import Peer
from pagedlab.settings import Settings

BLOCK_SIZES = (4, 8, 16, 32, 64, 128)
SMALL = 0.2  # of the KV memory
ROUNDS_ALONE = 16  # of one request alone, a second each
_SCALARS = ("wall_s", "cpu_s", "output_tokens_per_s", "output_tokens_per_cpu_s", "mean_batch_size", "kv_waste_fraction")


@dataclass(slots=True)
class Cell:
    """A configuration: what tells it apart, and its runs, in a process of its own."""

    labels: dict[str, Any]
    settings: Settings
    facts: dict[str, Any] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Medians over the runs; the peak memory of the process after all of them."""
        last = self.runs[-1]
        counts = {name: last[name] for name in ("output_tokens", "steps", "preemptions", "completed", "peak_rss_bytes")}
        return {**self.labels, **self.facts, **counts, **{n: median(r[n] for r in self.runs) for n in _SCALARS}}


def variant(settings: Settings, **labels: Any) -> Cell:
    """These settings with other values. Names as in the config, `dtype` and `optimize` of the model."""
    own = deepcopy(settings)
    for name, value in labels.items():
        if name in ("dtype", "optimize"):
            setattr(own.model, name, value)
        elif name == "allocator":
            own.allocator.name = value
        elif name == "requests":
            own.workload.num_requests = value
        else:
            setattr(own, name, value)
    return Cell(labels, own)


def take_turns(
    cells: list[Cell],
    repeats: int,
    peer: Peer | Reader | None = None,
    after: Callable[[Cell, ProcessPoolExecutor], None] = lambda cell, process: None,
) -> list[dict[str, Any]]:
    """Run all cells `repeats` times, one after the other in each round, so that what the machine does besides strikes
    all alike. Returns the peer's runs, which come last in each round. after: what else
    is to be asked of each process."""
    context = get_context("spawn")
    processes = [ProcessPoolExecutor(1, context) for _ in cells]
    of_peer = []
    try:
        for cell, process in zip(cells, processes, strict=True):
            cell.facts = process.submit(load, cell.settings).result()
            process.submit(warm_up).result()
        for _ in range(repeats):
            for cell, process in zip(cells, processes, strict=True):
                cell.runs.append(process.submit(run).result())
            if peer is not None:
                of_peer.append(peer.run())
        for cell, process in zip(cells, processes, strict=True):
            after(cell, process)
    finally:
        for process in processes:
            process.shutdown()
    return of_peer


def ratio(one: Cell | list[dict[str, Any]], other: Cell | list[dict[str, Any]], name: str) -> float:
    """The median of the ratios within each round, in which the two were neighbours."""
    first, second = (x.runs if isinstance(x, Cell) else x for x in (one, other))
    return float(median(a[name] / b[name] for a, b in zip(first, second, strict=True)))


def blocks(settings: Settings, repeats: int) -> dict[str, Any]:
    """Waste and throughput by block size, and the ratio to blocks of 32."""
    cells = [variant(settings, block_size=size) for size in BLOCK_SIZES]
    take_turns(cells, repeats)
    of_32 = next(cell for cell in cells if cell.labels["block_size"] == 32)
    rows = [
        {**cell.row(), "to_32": ratio(cell, of_32, "output_tokens_per_s"), "cpu_to_32": ratio(of_32, cell, "cpu_s")}
        for cell in cells
    ]
    return {"rows": rows}


def memory(settings: Settings, repeats: int, longest: list[int]) -> dict[str, Any]:
    """A fifth of the KV memory, paged and reserving the longest sequence that is allowed, against all of it."""
    fifth = str(int(SMALL * parse_bytes(settings.kv_bytes or "1GiB")))
    full = variant(settings, allocator="paged")
    paged = variant(settings, allocator="paged", kv_bytes=fifth)
    reserved = [variant(settings, allocator="reserve_max", kv_bytes=fifth, max_model_len=tokens) for tokens in longest]
    cells = [full, paged, *reserved]
    take_turns(cells, repeats)
    wanted = full.runs[-1]["completed"]
    for cell in reserved:
        if (completed := cell.runs[-1]["completed"]) != wanted:
            raise ConfigError(
                f"bench.longest={cell.labels['max_model_len']}: reserve_max served {completed} of {wanted} requests in "
                f"a fifth of kv_bytes={settings.kv_bytes}, expected room for the longest sequence, and for each request"
            )
    for cell in cells:
        for one in cell.runs:
            one["per_running_request"] = one["output_tokens_per_s"] / one["mean_batch_size"]
    rows = [
        {**cell.row(), "per_running_request": median(one["per_running_request"] for one in cell.runs)} for cell in cells
    ]
    return {
        "rows": rows,
        "per_running_request_to_full": ratio(paged, full, "per_running_request"),
        "paged_to_reserve_max": {
            tokens: ratio(paged, cell, "output_tokens_per_s") for tokens, cell in zip(longest, reserved, strict=True)
        },
    }


def latency(settings: Settings, repeats: int, weight_bytes: float) -> dict[str, Any]:
    """One request alone: seconds a token, against reading the weights once for each, as fast as the machine reads just
    before and just after: its bandwidth may change from one second to the next."""
    cell = variant(settings, requests=1)
    cell.settings.workload.prompt.distribution = cell.settings.workload.output.distribution = "fixed"
    for lengths, mean in ((cell.settings.workload.prompt, 16), (cell.settings.workload.output, 128)):
        lengths.mean, lengths.sigma, lengths.low, lengths.high = mean, None, None, None
    reads = take_turns([cell], max(repeats, ROUNDS_ALONE), Reader(int(weight_bytes), settings.executor.threads))
    # The first round has no reading just before.
    tokens = [one["wall_s"] / one["output_tokens"] for one in cell.runs[1:]]
    around = [(a["read_s"] + b["read_s"]) / 2 for a, b in pairwise(reads)]
    ratios = sorted(token / read for token, read in zip(tokens, around, strict=True))
    return {
        **cell.row(),
        "token_s": median(tokens),
        "read_weights_s": median(around),
        "to_bound": median(ratios),
        "to_bound_least": ratios[0],
        "to_bound_most": ratios[-1],
    }
