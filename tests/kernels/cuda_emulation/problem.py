"""Attention over a NaN-poisoned pool, and the truth in float64."""

from __future__ import annotations

import torch

from pagedlab.kernels.base import Kernel, PagedBatch

# Inputs are rounded before both sides see them and sums are fp32 on both devices: what is left is the output's own
# rounding (2^-11 and 2^-8, relative), and an fp32 sum of some hundred products.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
GARBAGE = (2**31 - 1, -1, -(2**31))


class Problem:
    """Decodes (context lengths), then prefills (context, queries), in shuffled blocks.

    NaN in every slot that no sequence owns; beyond a sequence's blocks its table row holds `garbage`, and goes on for
    at least `beyond` entries.
    """

    def __init__(
        self,
        decodes=(),
        prefills=(),
        *,
        dtype=torch.float32,
        head_dim=64,
        group=3,
        kv_heads=2,
        block_size=8,
        window=None,
        garbage=GARBAGE,
        beyond=2,
        seed=0,
    ):
        self.dtype, self.group, self.window = dtype, group, window
        self.scale = 3 * head_dim**-0.5  # scores of deviation 3: losing one token shows
        random = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(shape, generator=random).to(dtype)

        lengths = [(context, 1) for context in decodes] + list(prefills)
        self.queries = [draw(n, kv_heads * group, head_dim) for _, n in lengths]
        self.keys = [draw(context, kv_heads, head_dim) for context, _ in lengths]
        self.values = [draw(context, kv_heads, head_dim) for context, _ in lengths]
        held = [-(-context // block_size) for context, _ in lengths]
        ids = torch.randperm(sum(held) + 3, generator=random).tolist()
        shape = (len(ids), block_size, kv_heads, head_dim)
        self.k_cache = torch.full(shape, float("nan"), dtype=dtype)
        self.v_cache = torch.full(shape, float("nan"), dtype=dtype)
        tables = torch.empty(len(lengths), max(held) + beyond, dtype=torch.int32)
        for s, (context, _) in enumerate(lengths):
            own = torch.tensor([ids.pop() for _ in range(held[s])])
            tables[s] = torch.tensor([garbage[(s + c) % len(garbage)] for c in range(tables.shape[1])])
            tables[s, : held[s]] = own
            slots = own.repeat_interleave(block_size)[:context], torch.arange(context) % block_size
            self.k_cache[slots], self.v_cache[slots] = self.keys[s], self.values[s]
        starts = [0]
        for _, n in lengths:
            starts.append(starts[-1] + n)
        self.batch = PagedBatch(
            slot_mapping=torch.zeros(0, dtype=torch.int64),
            block_tables=tables,
            context_lens=torch.tensor([context for context, _ in lengths]),
            query_start=torch.tensor(starts),
            num_decodes=len(decodes),
            starts=starts,
            contexts=[context for context, _ in lengths],
        )

    def attend(self, kernel: Kernel) -> torch.Tensor:
        query, d = torch.cat(self.queries), self.batch.num_decodes
        arguments = self.k_cache, self.v_cache, self.batch, self.scale, self.window
        parts = [kernel.decode(query[:d], *arguments)] if d else []
        if d < len(self.queries):
            parts.append(kernel.prefill(query[d:], *arguments))
        return torch.cat(parts)

    def truth(self) -> torch.Tensor:
        out = []
        for q, k, v in zip(self.queries, self.keys, self.values, strict=True):
            k, v = (x.double().repeat_interleave(self.group, 1) for x in (k, v))
            position = torch.arange(len(k) - len(q), len(k))[:, None]
            other = torch.arange(len(k))[None, :]
            hidden = other > position
            if self.window is not None:
                hidden |= other <= position - self.window
            scores = torch.einsum("qhd,khd->hqk", q.double(), k) * self.scale
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            out.append(torch.einsum("hqk,khd->qhd", weights, v))
        return torch.cat(out)

    def error(self, kernel: Kernel) -> float:
        """The largest difference, in units of what is allowed: NaN counts as infinite."""
        out = self.attend(kernel)
        assert out.dtype == self.dtype
        truth, allowed = self.truth(), TOLERANCE[self.dtype]
        off = (out.double() - truth).abs() / (allowed + allowed * truth.abs())
        return float(off.nan_to_num(torch.inf, torch.inf).max())
