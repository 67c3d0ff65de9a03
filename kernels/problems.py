"""Attention problems with known answers: what every variant is held against, in the tests and on a GPU.

The truth is attention written out in float64 over plain contiguous tensors: no blocks, no tables, no batch. The paged
side is poisoned: NaN in every slot that no token of the batch owns (the tails of last blocks included), garbage in
every block-table entry beyond a sequence's own blocks. One value read from there and the output is NaN, or the read
goes astray.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pagedlab.kernels.base import Kernel, PagedBatch

NAN = float("nan")

# Both absolute and relative. The inputs are rounded before either side sees them, so what is left is the variant's own
# arithmetic: sums of up to a thousand products in the full types, and in the half types the rounding of the
# probabilities and of the result (2^-11 and 2^-8 of themselves). Measured errors are a quarter of these, or less.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}

# What a row of a block table may hold beyond its own blocks: nothing, leavings, and numbers that are no blocks at all.
GARBAGE = (2**31 - 1, -1, 0, -(2**31), 10**6)


def attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int | None = None,
    causal: bool = True,
    kv_head: Callable[[int], int] | None = None,
) -> torch.Tensor:
    """The truth. query [n, H, D] are the last n of the L tokens of keys and values [L, KVH, D]; all float64.

    causal and kv_head (of a query head) are there to be bent, by a test that wants to see a comparison fail.
    """
    n, heads, _ = query.shape
    length, kv_heads, _ = keys.shape
    kv_head = kv_head or (lambda h: h // (heads // kv_heads))
    out = torch.empty_like(query)
    for i in range(n):
        position = length - n + i
        last = position if causal else length - 1
        first = 0 if window is None else max(0, position - window + 1)
        for h in range(heads):
            k, v = keys[first : last + 1, kv_head(h)], values[first : last + 1, kv_head(h)]
            scores = k @ query[i, h] * scale
            weights = torch.exp(scores - scores.max())
            out[i, h] = weights @ v / weights.sum()
    return out


class Problem:
    """A batch twice: as plain tensors a sequence (the truth), and paged into shuffled blocks of a poisoned cache.

    decodes: their context lengths. prefills: (context, queries); context - queries tokens are in the cache already.
    written_k, written_v: the caches as they must be once the new tokens are written.
    """

    def __init__(
        self,
        decodes: Sequence[int] = (),
        prefills: Sequence[tuple[int, int]] = (),
        block_size: int = 8,
        kv_heads: int = 2,
        group: int = 2,
        head_dim: int = 64,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        window: int | None = None,
        seed: int = 0,
        poison: float = NAN,
        more_columns: int = 2,
    ):
        self.window, self.device, self.dtype = window, device, dtype
        self.scale = 3 * head_dim**-0.5  # scores of deviation 3: some tokens count a lot, so losing one shows
        random = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)

        lengths = [(context, 1) for context in decodes] + list(prefills)
        self.num_decodes = len(decodes)
        queries = [draw(n, kv_heads * group, head_dim) for _, n in lengths]
        keys = [draw(context, kv_heads, head_dim) for context, _ in lengths]
        values = [draw(context, kv_heads, head_dim) for context, _ in lengths]

        held = [-(-context // block_size) for context, _ in lengths]
        num_blocks = sum(held) + 3
        ids = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).tolist()  # whatever the seed
        columns = max(held) + more_columns
        tables = [[ids.pop() for _ in range(n)] for n in held]
        garbage = [[GARBAGE[(s + c) % len(GARBAGE)] for c in range(columns)] for s in range(len(held))]
        slots = [
            torch.tensor([table[p // block_size] * block_size + p % block_size for p in range(context)])
            for table, (context, _) in zip(tables, lengths, strict=True)
        ]
        k_cache = torch.full((num_blocks, block_size, kv_heads, head_dim), poison, dtype=dtype)
        v_cache = k_cache.clone()
        written_k, written_v = k_cache.clone(), v_cache.clone()
        for s, (context, n) in enumerate(lengths):
            for cache, rows, upto in (
                (written_k, keys[s], context),
                (written_v, values[s], context),
                (k_cache, keys[s], context - n),
                (v_cache, values[s], context - n),
            ):
                cache.view(-1, kv_heads, head_dim)[slots[s][:upto]] = rows[:upto]
        starts = [0]
        for _, n in lengths:
            starts.append(starts[-1] + n)

        # Put together on the CPU, moved once: a GPU is slow at one token at a time.
        self.queries, self.keys, self.values = ([x.to(device) for x in xs] for xs in (queries, keys, values))
        self.k_cache, self.v_cache = k_cache.to(device), v_cache.to(device)
        self.written_k, self.written_v = written_k.to(device), written_v.to(device)
        self.batch = PagedBatch(
            slot_mapping=torch.cat([s[len(s) - n :] for s, (_, n) in zip(slots, lengths, strict=True)]).to(device),
            block_tables=torch.tensor(
                [t + g[len(t) :] for t, g in zip(tables, garbage, strict=True)], dtype=torch.int32, device=device
            ),
            context_lens=torch.tensor([context for context, _ in lengths], device=device),
            query_start=torch.tensor(starts, device=device),
            num_decodes=self.num_decodes,
            starts=starts,
            contexts=[context for context, _ in lengths],
        )

    def move_to_the_end_of(self, num_blocks: int) -> None:
        """Into the last blocks of a pool of so many, whose others hold whatever was in memory (touched or not). One
        tensor is both caches then, and the keys are the values: what is asked is whether offsets reach that far."""
        first = num_blocks - len(self.k_cache)
        block_size = self.k_cache.shape[1]
        pool = torch.empty((num_blocks, *self.k_cache.shape[1:]), dtype=self.dtype, device=self.device)
        pool[first:] = self.k_cache
        for s, context in enumerate(self.batch.contexts):
            self.batch.block_tables[s, : -(-context // block_size)] += first
        self.batch.slot_mapping += first * block_size
        self.values, self.k_cache, self.v_cache = self.keys, pool, pool
        self.written_v = self.written_k

    def write(self, kernel: Kernel) -> None:
        """The new tokens into their slots."""
        new = [slice(len(k) - len(q), None) for q, k in zip(self.queries, self.keys, strict=True)]
        keys = torch.cat([k[s] for k, s in zip(self.keys, new, strict=True)])
        values = torch.cat([v[s] for v, s in zip(self.values, new, strict=True)])
        kernel.write_kv(keys, values, self.k_cache, self.v_cache, self.batch.slot_mapping, self.batch.scratch)

    def attend(self, kernel: Kernel) -> torch.Tensor:
        """The attention of the whole step, [T, H, D]."""
        query, d = torch.cat(self.queries), self.num_decodes
        arguments = self.k_cache, self.v_cache, self.batch, self.scale, self.window
        parts = []
        if d:
            parts.append(kernel.decode(query[:d], *arguments))
        if d < len(self.queries):
            parts.append(kernel.prefill(query[d:], *arguments))
        return torch.cat(parts)

    def truth(self, **bent: Any) -> torch.Tensor:
        """float64 [T, H, D] on the CPU."""
        exact = [[x.double().cpu() for x in xs] for xs in (self.queries, self.keys, self.values)]
        options = {"scale": self.scale, "window": self.window} | bent
        return torch.cat([attention(q, k, v, **options) for q, k, v in zip(*exact, strict=True)])

    def error(self, out: torch.Tensor) -> float:
        """The largest difference from the truth, in units of what is allowed: at most 1 is right, NaN is infinite."""
        truth, allowed = self.truth(), TOLERANCE[self.dtype]
        off = (out.double().cpu() - truth).abs() / (allowed * (1 + truth.abs()))
        return float(off.nan_to_num(math.inf, math.inf).max())

    def untouched(self) -> bool:
        """Whether the caches hold, bit for bit, what the writes should have left there and nothing else."""
        held = len(self.written_k)
        pairs = (self.k_cache[-held:], self.written_k), (self.v_cache[-held:], self.written_v)
        return all(bool(((a == b) | (a.isnan() & b.isnan())).all()) for a, b in pairs)
