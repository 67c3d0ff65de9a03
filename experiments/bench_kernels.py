"""Attention variants against contiguous scaled_dot_product_attention, and against the machine's read bandwidth."""

from __future__ import annotations

import os
import sys
from itertools import product
from typing import TYPE_CHECKING, Any

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from pagedlab.experiments.attention_cells import Sizes
    from pagedlab.kernels.base import Kernel
    from pagedlab.launch import Job

_PHASES = ("decode", "ragged", "prefill")


def main() -> int:
    # Before torch is loaded: an OpenMP thread that spins for the next operation would be counted as work of this one.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return guarded(bench)


def bench(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch

    return launch(bench_job, interrupts, config_name="bench_kernels").exit_code


def bench_job(job: Job) -> None:
    import pyarrow as pa
    import torch
    from rich.console import Console
    from rich.progress import track

    from pagedlab.experiments.attention_cells import Cell, Heads
    from pagedlab.recorder.environment import environment
    from pagedlab.recorder.folder import write_json, write_table

    config = job.config
    cells, dtypes, kernels = checked(config)
    heads = Heads(config.heads, config.kv_heads, config.head_dim)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    rows: list[dict[str, Any]] = []
    jobs = list(product(dtypes.items(), cells))
    err = Console(stderr=True)
    with torch.inference_mode():
        for (name, dtype), sizes in track(jobs, "measuring", console=err, transient=True, disable=not err.is_terminal):
            cell = Cell(sizes, heads, dtype, config.rotate_mb * 10**6, config.seed)
            rows += [{"dtype": name, **row} for row in cell.measure(kernels, config.rounds)]
    show(rows, config)
    job.folder.mkdir(parents=True, exist_ok=True)
    write_table(job.folder / "rows.parquet", pa.Table.from_pylist(rows))
    plot(rows, job.folder)
    facts = {"setting": config.setting, "threads": torch.get_num_threads(), "rounds": config.rounds}
    facts |= {"heads": config.heads, "kv_heads": config.kv_heads, "head_dim": config.head_dim}
    write_json(job.folder / "env.json", environment(config.seed))
    write_json(job.folder / "summary.json", {**facts, "rows": rows})
    print(f"run folder: {job.folder}")


def checked(config: Any) -> tuple[list[Sizes], dict[str, torch.dtype], dict[str, Kernel]]:
    """The cells, dtypes by name and kernels by name; ConfigError before anything is measured."""
    import torch

    from pagedlab.core.errors import ConfigError
    from pagedlab.experiments.attention_cells import Sizes
    from pagedlab.kernels.base import KERNELS, make_kernel

    for name in ("batches", "contexts", "block_sizes", "heads", "kv_heads", "head_dim", "rounds", "rotate_mb"):
        values = [config[name]] if isinstance(config[name], int) else list(config[name])
        if not values or any(type(value) is not int or value < 1 for value in values):
            raise ConfigError(f"{name}={config[name]}: expected whole numbers from 1 on")
    if config.heads % config.kv_heads:
        raise ConfigError(f"heads={config.heads}: expected a multiple of kv_heads={config.kv_heads}")
    for phase in config.phases:
        if phase not in _PHASES:
            raise ConfigError(f"phases={phase}: expected some of {', '.join(_PHASES)}")
    for variant in config.variants:
        if variant not in KERNELS:
            raise ConfigError(f"variants={variant}: no such kernel, expected some of {', '.join(KERNELS)}")
    dtypes: dict[str, torch.dtype] = {}
    for name in config.dtypes:
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise ConfigError(f"dtypes={name}: expected names of torch's types, as float32 or bfloat16")
        dtypes[name] = dtype
    kernels = {}
    for variant, dtype, block_size in product(config.variants, dtypes.values(), config.block_sizes):
        kernels[variant] = make_kernel(variant, dtype, torch.device("cpu"), config.head_dim, block_size)
    sizes = product(config.batches, config.contexts, config.block_sizes, config.phases)
    return [Sizes(phase, context, batch, size) for batch, context, size, phase in sizes], dtypes, kernels


def show(rows: list[dict[str, Any]], config: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"attention, {config.heads}/{config.kv_heads} heads of {config.head_dim} (medians, CPU time)")
    columns = ("phase", "dtype", "batch", "context", "block", "variant", "CPU ms", "x contiguous", "x in order")
    for column in (*columns, "KV GB/s", "of ceiling"):
        table.add_column(column, justify="right")
    for row in rows:
        speed, share = row["kv_gb_per_s"], row["share_of_read_ceiling"]
        table.add_row(
            *(str(row[name]) for name in ("phase", "dtype", "batch", "context", "block_size", "variant")),
            f"{1e3 * row['cpu_s']:.2f}",
            f"{row['ratio_to_contiguous_sdpa']:.2f}",
            f"{row['paging_overhead']:.2f}",
            "" if speed is None else f"{speed:.1f}",
            "" if share is None else f"{share:.0%}",
        )
    out = Console(width=None if sys.stdout.isatty() else 120)
    out.print(table)
    out.print(
        "x contiguous: CPU time over that of torch's attention without pages (ragged: padded). x in order: over the\n"
        "same kernel with its blocks in the order of the pool. ceiling: torch's sum of 256 MB, read in order.",
        style="dim",
        highlight=False,
    )


def plot(rows: list[dict[str, Any]], folder: Path) -> None:
    """Bars of the ratios to contiguous attention, SVG and PNG."""
    from matplotlib.figure import Figure

    variants = sorted({row["variant"] for row in rows})
    cells: dict[str, dict[str, float]] = {}
    for row in rows:
        cell = f"{row['phase']} {row['dtype']}\n{row['batch']} x {row['context']}, block {row['block_size']}"
        cells.setdefault(cell, {})[row["variant"]] = row["ratio_to_contiguous_sdpa"]
    figure = Figure(figsize=(8, 1 + 0.5 * len(cells)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(variants)
    for i, variant in enumerate(variants):
        places = [number + i * height for number, cell in enumerate(cells.values()) if variant in cell]
        axes.barh(places, [cell[variant] for cell in cells.values() if variant in cell], height, label=variant)
    axes.set_yticks([number + 0.4 - height / 2 for number in range(len(cells))], list(cells), fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("CPU time, times that of contiguous scaled_dot_product_attention")
    axes.legend()
    for kind in ("svg", "png"):
        figure.savefig(folder / f"ratios.{kind}")


if __name__ == "__main__":
    sys.exit(main())
