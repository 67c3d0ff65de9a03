"""What `bench_kernels` measures: one cell of its table, the calls that take turns in it, and their times."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from pagedlab.kernels import memory
from pagedlab.kernels.base import Kernel, PagedBatch

Call = Callable[[int], Any]  # on the caches of this number
_PROMPTS = 2  # a prefill is bound by arithmetic: more of them would only take longer
_CEILING_BYTES = 256_000_000


@dataclass(frozen=True, slots=True)
class Heads:
    heads: int
    kv_heads: int
    dim: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """phase: decode (one token a sequence), ragged (the same, contexts from a quarter of `context` to the whole) or
    prefill (two prompts of `context` tokens, nothing cached)."""

    phase: str
    context: int
    batch: int
    block_size: int

    def contexts(self) -> list[int]:
        if self.phase == "ragged":
            return [self.context - (3 * self.context // 4) * i // self.batch for i in range(self.batch)]
        return [self.context] * (self.batch if self.phase == "decode" else _PROMPTS)


class Cell:
    """Caches of one shape and dtype, paged and contiguous, and what runs over them.

    Each call works on the next of several caches, rotate_bytes together at least: nothing is left in the CPU's own.
    """

    def __init__(self, sizes: Sizes, heads: Heads, dtype: torch.dtype, rotate_bytes: int, seed: int):
        self.sizes, self.heads = sizes, heads
        self.contexts = sizes.contexts()
        self._generator = torch.Generator().manual_seed(seed)
        self._seed = seed
        sequences, longest = len(self.contexts), max(self.contexts)
        self.kv_bytes = 2 * sum(self.contexts) * heads.kv_heads * heads.dim * dtype.itemsize
        copies = 2 if sizes.phase == "prefill" else max(1, -(-rotate_bytes // self.kv_bytes))
        pool = (sequences * -(-longest // sizes.block_size), sizes.block_size, heads.kv_heads, heads.dim)
        flat = (sequences, heads.kv_heads, longest, heads.dim)
        self._paged = [(self._draw(pool, dtype), self._draw(pool, dtype)) for _ in range(copies)]
        self._flat = [(self._draw(flat, dtype), self._draw(flat, dtype)) for _ in range(copies)]
        self._fed = self.contexts if sizes.phase == "prefill" else [1] * sequences
        self._query = self._draw((sum(self._fed), heads.heads, heads.dim), dtype)
        self._scale = float(heads.dim) ** -0.5

    def _draw(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Of deviation 1, in memory as the executor has it: contiguous attention gets the same."""
        drawn = torch.empty(shape).uniform_(-1.7, 1.7, generator=self._generator)
        return memory.zeros(1, shape, dtype, torch.device("cpu"))[0].copy_(drawn)

    def measure(self, kernels: dict[str, Kernel], rounds: int) -> list[dict[str, Any]]:
        """A row for each kernel: medians over the rounds. Ratios are medians of the rounds' own ratios."""
        (wide,) = memory.zeros(1, (_CEILING_BYTES // 4,), torch.float32, torch.device("cpu"))
        wide.fill_(1)
        calls: dict[str, Call] = {"contiguous": self.contiguous(), "ceiling": lambda i: wide.sum()}
        for name, kernel in kernels.items():
            calls[name] = self.attend(kernel, shuffled=True)
            calls[f"{name} in order"] = self.attend(kernel, shuffled=False)
        repeats = {name: 1 if name == "ceiling" else len(self._paged) for name in calls}
        cpu, wall = timed(calls, repeats, rounds, self._seed)
        # GB/s of undisturbed threads: bytes a CPU second, times the threads.
        threads = torch.get_num_threads()
        ceiling = _CEILING_BYTES / 1e9 * threads / float(np.median(cpu["ceiling"]))
        rows = []
        for name in kernels:
            speed = self.kv_bytes / 1e9 * threads / float(np.median(cpu[name]))
            # Paired within a round, as the ratios are: a machine's bandwidth may change from one second to the next.
            share = self.kv_bytes / _CEILING_BYTES * float(np.median(cpu["ceiling"] / cpu[name]))
            reads = self.sizes.phase != "prefill"  # a prefill reads each key many times, from the CPU's caches
            rows.append(
                {
                    "variant": name,
                    "phase": self.sizes.phase,
                    "context": self.sizes.context,
                    "batch": self.sizes.batch,
                    "block_size": self.sizes.block_size,
                    "ratio_to_contiguous_sdpa": float(np.median(cpu[name] / cpu["contiguous"])),
                    "wall_ratio_to_contiguous_sdpa": float(np.median(wall[name] / wall["contiguous"])),
                    "paging_overhead": float(np.median(cpu[name] / cpu[f"{name} in order"])),
                    "kv_gb_per_s": speed if reads else None,
                    "share_of_read_ceiling": share if reads else None,
                    "read_ceiling_gb_per_s": ceiling,
                    "cpu_s": float(np.median(cpu[name])),
                    "wall_s": float(np.median(wall[name])),
                    "contiguous_cpu_s": float(np.median(cpu["contiguous"])),
                    "contiguous_wall_s": float(np.median(wall["contiguous"])),
                }
            )
        return rows

    def contiguous(self) -> Call:
        """torch's attention over keys and values without pages: padded to the longest where they are ragged."""
        heads, sequences = self.heads, len(self.contexts)
        if self.sizes.phase == "prefill":
            prompts = self._query.view(sequences, -1, heads.heads, heads.dim).transpose(1, 2)
            return lambda i: scaled_dot_product_attention(
                prompts, *self._flat[i], is_causal=True, scale=self._scale, enable_gqa=True
            )
        # The query heads of a group as query positions: keys and values are read once for all of them.
        query = self._query.view(sequences, heads.kv_heads, -1, heads.dim)
        mask = None
        if self.sizes.phase == "ragged":
            mask = (torch.arange(max(self.contexts)) < torch.tensor(self.contexts)[:, None])[:, None, None]
        return lambda i: scaled_dot_product_attention(query, *self._flat[i], attn_mask=mask, scale=self._scale)

    def attend(self, kernel: Kernel, shuffled: bool) -> Call:
        batch = self._batch(shuffled)
        run = kernel.prefill if self.sizes.phase == "prefill" else kernel.decode
        return lambda i: run(self._query, *self._paged[i], batch, self._scale)

    def _batch(self, shuffled: bool) -> PagedBatch:
        """Blocks in the order of the pool, or dealt out at random."""
        blocks, sequences = self._paged[0][0].shape[0], len(self.contexts)
        ids = torch.randperm(blocks, generator=self._generator) if shuffled else torch.arange(blocks)
        starts = [0, *accumulate(self._fed)]
        return PagedBatch(
            slot_mapping=torch.full((starts[-1],), -1),
            block_tables=ids.view(sequences, -1).int(),
            context_lens=torch.tensor(self.contexts),
            query_start=torch.tensor(starts),
            num_decodes=0 if self.sizes.phase == "prefill" else sequences,
            starts=starts,
            contexts=self.contexts,
        )


def timed(
    calls: dict[str, Call], repeats: dict[str, int], rounds: int, seed: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Process CPU seconds and wall seconds a call, of each round: float64 [rounds] by name.

    All take turns, in random order every round: what else the machine does falls on all alike.
    """
    order: Sequence[str] = list(calls)
    dice = random.Random(seed)
    cpu, wall = ({name: np.empty(rounds) for name in calls} for _ in range(2))
    for call in calls.values():
        call(0)  # what is compiled or chosen at first use is
    for number in range(rounds):
        for name in dice.sample(order, len(order)):
            call, count = calls[name], repeats[name]
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            for i in range(count):
                call(i)
            cpu[name][number] = (time.process_time() - cpu_start) / count
            wall[name][number] = (time.perf_counter() - wall_start) / count
    return cpu, wall
