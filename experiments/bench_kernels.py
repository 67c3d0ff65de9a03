"""Attention variants against contiguous scaled_dot_product_attention, and against the machine's read bandwidth.

All of a cell (dtype, batch, context, block size) take turns in one run, in random order every round: what else the
machine does then falls on all alike. The ratios are medians of the rounds' own ratios of process CPU time. GB/s are
those of undisturbed threads: bytes a CPU second, times the threads. The ceiling is torch's sum of a large tensor,
measured among the variants in the same way.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from pagedlab.kernels.base import Kernel, PagedBatch
    from pagedlab.launch import Job

Call = Callable[[int], Any]  # on the caches of this number
_PROMPTS = 2
_CEILING_MB = 256


def main() -> int:
    # Before torch is loaded: an OpenMP thread that spins for the next operation would be counted as work of this one.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return guarded(bench)


def bench(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch

    return launch(bench_job, config_name="bench_kernels").exit_code


def bench_job(job: Job) -> None:
    import pyarrow as pa
    import torch

    from pagedlab.core.errors import ConfigError
    from pagedlab.kernels.base import KERNELS
    from pagedlab.recorder.environment import environment
    from pagedlab.recorder.folder import write_json, write_table

    config = job.config
    unknown = [phase for phase in config.phases if phase not in ("decode", "ragged", "prefill")]
    if unknown:
        raise ConfigError(f"phases={unknown[0]}: expected decode, ragged or prefill")
    sizes = ("batches", "contexts", "block_sizes", "heads", "kv_heads", "head_dim", "rounds")
    for name in sizes:
        values = [config[name]] if isinstance(config[name], int) else list(config[name])
        if not values or any(not isinstance(value, int) or value < 1 for value in values):
            raise ConfigError(f"{name}={config[name]}: expected whole numbers from 1 on")
    if config.heads % config.kv_heads:
        raise ConfigError(f"heads={config.heads}: expected a multiple of kv_heads={config.kv_heads}")
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    kernels = {name: KERNELS[name]() for name in config.variants}
    dtypes = [getattr(torch, name, None) for name in config.dtypes]
    for name, dtype in zip(config.dtypes, dtypes, strict=True):
        if not isinstance(dtype, torch.dtype):
            raise ConfigError(f"dtypes={name}: expected names of torch's types, as float32 or bfloat16")
        for kernel in kernels.values():
            for block_size in config.block_sizes:
                kernel.check(dtype, torch.device("cpu"), config.head_dim, block_size)
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for name, dtype in zip(config.dtypes, dtypes, strict=True):
            for batch in config.batches:
                for context in config.contexts:
                    for block_size in config.block_sizes:
                        for phase in config.phases:
                            cell = Cell(config, kernels, dtype, batch, context, block_size, phase)
                            rows += [{"variant": variant, "dtype": name, **row} for variant, row in cell.measure()]
    show(rows, config)
    job.folder.mkdir(parents=True, exist_ok=True)
    write_table(job.folder / "rows.parquet", pa.Table.from_pylist(rows))
    plot(rows, job.folder)
    facts = {"setting": config.setting, "threads": torch.get_num_threads(), "heads": config.heads}
    facts |= {"kv_heads": config.kv_heads, "head_dim": config.head_dim, "rounds": config.rounds}
    write_json(job.folder / "env.json", environment(config.seed))
    write_json(job.folder / "summary.json", {**facts, "rows": rows})
    print(f"run folder: {job.folder}")


class Cell:
    """One dtype, batch, context, block size and phase: the caches, paged and contiguous, and what runs over them."""

    def __init__(
        self,
        config: Any,
        kernels: dict[str, Kernel],
        dtype: torch.dtype,
        batch: int,
        context: int,
        block_size: int,
        phase: str,
    ):
        import torch

        self.config, self.kernels, self.phase = config, kernels, phase
        self.sizes = {"phase": phase, "context": context, "batch": batch, "block_size": block_size}
        self.generator = torch.Generator().manual_seed(config.seed)
        self.scale = config.head_dim**-0.5
        self.contexts = [context] * (batch if phase == "decode" else _PROMPTS)
        if phase == "ragged":  # evenly from a quarter to the whole
            self.contexts = [context - (3 * context // 4) * i // batch for i in range(batch)]
        blocks = -(-context // block_size)
        pool = (len(self.contexts) * blocks, block_size, config.kv_heads, config.head_dim)
        self.kv_bytes = 2 * sum(self.contexts) * config.kv_heads * config.head_dim * dtype.itemsize
        # Prefills are bound by arithmetic: a few caches will do.
        copies = 2 if phase == "prefill" else max(1, -(-config.rotate_mb * 10**6 // self.kv_bytes))
        self.paged = [tuple(self._draw(pool, dtype) for _ in range(2)) for _ in range(copies)]
        flat = (len(self.contexts), config.kv_heads, context, config.head_dim)
        self.flat = [tuple(self._draw(flat, dtype) for _ in range(2)) for _ in range(copies)]
        tokens = sum(self.contexts) if phase == "prefill" else len(self.contexts)
        self.query = self._draw((tokens, config.heads, config.head_dim), dtype)

    def _draw(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        import torch

        return torch.empty(shape).uniform_(-1.7, 1.7, generator=self.generator).to(dtype)  # of deviation 1

    def measure(self) -> list[tuple[str, dict[str, Any]]]:
        """(variant, its row), medians over the rounds."""
        import numpy as np
        import torch

        wide = torch.ones(_CEILING_MB * 10**6 // 4) if self.phase == "decode" else None
        calls: dict[str, Call] = {"contiguous": self.contiguous()}
        for name, kernel in self.kernels.items():
            calls[name] = self.attend(kernel, shuffled=True)
            calls[f"{name} in order"] = self.attend(kernel, shuffled=False)
        repeats = dict.fromkeys(calls, len(self.paged))
        if wide is not None:
            calls["ceiling"], repeats["ceiling"] = lambda i: wide.sum(), 1
        for call in calls.values():
            call(0)
        cpu, wall = timed(calls, repeats, self.config.rounds, self.config.seed)
        threads = torch.get_num_threads()
        ceiling = _CEILING_MB / 1e3 * threads / np.median(cpu["ceiling"]) if wide is not None else None
        rows = []
        for name in self.kernels:
            row: dict[str, Any] = {
                **self.sizes,
                "ratio_to_contiguous_sdpa": float(np.median(cpu[name] / cpu["contiguous"])),
                "wall_ratio": float(np.median(wall[name] / wall["contiguous"])),
                "paging_overhead": float(np.median(cpu[name] / cpu[f"{name} in order"])),
                "cpu_ms": 1e3 * float(np.median(cpu[name])),
                "wall_ms": 1e3 * float(np.median(wall[name])),
                "contiguous_cpu_ms": 1e3 * float(np.median(cpu["contiguous"])),
                "kv_gb_per_s": None,
                "share_of_read_ceiling": None,
                "read_ceiling_gb_per_s": None,
            }
            if ceiling is not None:
                speed = self.kv_bytes / 1e9 * threads / float(np.median(cpu[name]))
                row |= {"kv_gb_per_s": speed, "share_of_read_ceiling": speed / float(ceiling)}
                row["read_ceiling_gb_per_s"] = float(ceiling)
            rows.append((name, row))
        return rows

    def contiguous(self) -> Call:
        """torch's attention over keys and values without pages: padded to the longest where they are ragged."""
        import torch
        from torch.nn.functional import scaled_dot_product_attention as attention

        kv_heads, dim, sequences = self.config.kv_heads, self.config.head_dim, len(self.contexts)
        if self.phase == "prefill":
            prompts = self.query.view(sequences, -1, self.config.heads, dim).transpose(1, 2)
            return lambda i: attention(prompts, *self.flat[i], is_causal=True, scale=self.scale, enable_gqa=True)
        # The query heads of a group as query positions: keys and values are read once for all of them.
        query = self.query.view(sequences, kv_heads, -1, dim)
        mask = None
        if self.phase == "ragged":
            mask = (torch.arange(max(self.contexts)) < torch.tensor(self.contexts)[:, None])[:, None, None]
        return lambda i: attention(query, *self.flat[i], attn_mask=mask, scale=self.scale)

    def attend(self, kernel: Kernel, shuffled: bool) -> Call:
        batch = self.batch(shuffled)
        if self.phase == "prefill":
            return lambda i: kernel.prefill(self.query, *self.paged[i], batch, self.scale)
        return lambda i: kernel.decode(self.query, *self.paged[i], batch, self.scale)

    def batch(self, shuffled: bool) -> PagedBatch:
        """Blocks in the order of the pool, or dealt out at random."""
        import torch

        from pagedlab.kernels.base import PagedBatch

        blocks, sequences = self.paged[0][0].shape[0], len(self.contexts)
        ids = torch.randperm(blocks, generator=self.generator) if shuffled else torch.arange(blocks)
        fed = self.contexts if self.phase == "prefill" else [1] * sequences
        starts = [sum(fed[:s]) for s in range(sequences + 1)]
        return PagedBatch(
            slot_mapping=torch.full((starts[-1],), -1),
            block_tables=ids.view(sequences, -1).int(),
            context_lens=torch.tensor(self.contexts),
            query_start=torch.tensor(starts),
            num_decodes=0 if self.phase == "prefill" else sequences,
            starts=starts,
            contexts=self.contexts,
        )


def timed(calls: dict[str, Call], repeats: dict[str, int], rounds: int, seed: int) -> tuple[dict[str, Any], ...]:
    """CPU seconds and wall seconds a call, of each round: float64 [rounds] by name."""
    import random

    import numpy as np

    order, dice = list(calls), random.Random(seed)
    cpu, wall = ({name: np.empty(rounds) for name in calls} for _ in range(2))
    for number in range(rounds):
        dice.shuffle(order)
        for name in order:
            call, count = calls[name], repeats[name]
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            for i in range(count):
                call(i)
            cpu[name][number] = (time.process_time() - cpu_start) / count
            wall[name][number] = (time.perf_counter() - wall_start) / count
    return cpu, wall


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
            f"{row['cpu_ms']:.2f}",
            f"{row['ratio_to_contiguous_sdpa']:.2f}",
            f"{row['paging_overhead']:.2f}",
            "" if speed is None else f"{speed:.1f}",
            "" if share is None else f"{share:.0%}",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def plot(rows: list[dict[str, Any]], folder: Path) -> None:
    """Bars of the ratios, where matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("agg")
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
