"""What it costs to build a decode step's inputs: persistent tables and deltas against rebuilding them each step."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from pagedlab.launch import Job


def main() -> int:
    return guarded(bench)


def bench(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch

    return launch(bench_job, interrupts, config_name="bench_inputs").exit_code


def bench_job(job: Job) -> None:
    from rich.console import Console
    from rich.table import Table

    from pagedlab.recorder.folder import write_json

    config = job.config
    rows = [measure(config.batch, context, config.block_size, config.repeats) for context in config.contexts]
    table = Table(title=f"inputs of a decode step, batch {config.batch}, block {config.block_size} (medians)")
    for column in ("context", "rebuilt, ms", "deltas, ms", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row["context"]), f"{row['rebuilt_ms']:.3f}", f"{row['deltas_ms']:.3f}", f"{row['ratio']:.0f}x"
        )
    Console().print(table)
    job.folder.mkdir(parents=True, exist_ok=True)
    write_json(job.folder / "summary.json", {"batch": config.batch, "block_size": config.block_size, "rows": rows})
    print(f"run folder: {job.folder}")


def measure(batch: int, context: int, block_size: int, repeats: int) -> dict[str, Any]:
    """Both ways take turns over the same plans, one block added to a sixteenth of the rows each step."""
    import numpy as np

    from pagedlab.core.plan import Admission, Growth, Plan
    from pagedlab.core.request import Request, Sequence
    from pagedlab.executor.inputs import InputBuilder

    length = context + repeats + 1
    blocks = -(-context // block_size)
    builder = InputBuilder(batch, length, block_size)
    sequences, tables, admissions = [], [], []
    for row in range(batch):
        request = Request(row, np.arange(context, dtype=np.int32), repeats + 1)
        ids = list(range(row * blocks, (row + 1) * blocks))
        sequences.append(Sequence(request, row=row, computed=context - 1))
        tables.append(list(ids))
        admissions.append(Admission(row, request, request.prompt, ids))
    builder.apply(Plan(admitted=admissions))
    builder.computed[:] = context - 1
    everyone, tokens = np.arange(batch), np.zeros(batch, dtype=np.int32)
    seconds: dict[str, list[float]] = {"rebuilt_ms": [], "deltas_ms": []}
    for step in range(repeats):
        plan = Plan(batch=sequences, num_tokens=[1] * batch)
        for row in range(step % block_size, batch, block_size):
            needed = -(-sequences[row].num_tokens // block_size)
            if needed > len(tables[row]):
                plan.grown.append(Growth(row, len(tables[row]), [row]))
                tables[row].append(row)

        start = time.perf_counter()
        longest = max(len(table) for table in tables)
        np.array([table + [0] * (longest - len(table)) for table in tables], dtype=np.int32)
        slots = [
            tables[row][(seq.num_tokens - 1) // block_size] * block_size + (seq.num_tokens - 1) % block_size
            for row, seq in enumerate(sequences)
            if (seq.num_tokens - 1) // block_size < len(tables[row])
        ]
        np.array(slots, dtype=np.int64)
        seconds["rebuilt_ms"].append(1e3 * (time.perf_counter() - start))

        start = time.perf_counter()
        builder.apply(plan)
        builder.build(plan)
        builder.append(everyone, tokens)
        seconds["deltas_ms"].append(1e3 * (time.perf_counter() - start))
        for seq in sequences:
            seq.computed += 1
            seq.output.append(0)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    return {"context": context, **medians, "ratio": medians["rebuilt_ms"] / medians["deltas_ms"]}


if __name__ == "__main__":
    sys.exit(main())
