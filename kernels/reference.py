"""The plain variant: one sequence at a time, softmax written out. Slow, any dtype, what the others are held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pagedlab.kernels.base import KERNELS, Kernel, PagedBatch


@KERNELS.register("reference")
class ReferenceKernel(Kernel):
    """Computes in the cache's dtype, half precision in fp32."""

    name = "reference"
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    devices = ("cpu", "cuda")

    def write_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        scratch: dict[Any, Any] | None = None,
    ) -> None:
        block_size = k_cache.shape[1]
        for t, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                k_cache[slot // block_size, slot % block_size] = key[t]
                v_cache[slot // block_size, slot % block_size] = value[t]

    def decode(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        return self._attend(query, k_cache, v_cache, batch, range(batch.num_decodes), scale, window)

    def prefill(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        sequences = range(batch.num_decodes, len(batch.contexts))
        return self._attend(query, k_cache, v_cache, batch, sequences, scale, window)

    def copy_blocks(
        self, k_caches: Sequence[torch.Tensor], v_caches: Sequence[torch.Tensor], pairs: torch.Tensor
    ) -> None:
        for cache in (*k_caches, *v_caches):
            for source, destination in pairs.tolist():
                cache[destination] = cache[source]

    def swap_blocks(
        self, sources: Sequence[torch.Tensor], destinations: Sequence[torch.Tensor], pairs: torch.Tensor
    ) -> None:
        for source, destination in zip(sources, destinations, strict=True):
            for i, j in pairs.tolist():
                destination[j] = source[i]

    def _attend(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: PagedBatch,
        sequences: range,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        block_size = k_cache.shape[1]
        first = batch.starts[sequences.start]
        out = torch.empty_like(query)
        for s in sequences:
            context = batch.contexts[s]
            table = batch.block_tables[s].tolist()
            slots = [(table[p // block_size], p % block_size) for p in range(context)]
            keys = torch.stack([k_cache[block, offset] for block, offset in slots])
            values = torch.stack([v_cache[block, offset] for block, offset in slots])
            begin, end = batch.starts[s] - first, batch.starts[s + 1] - first
            for t in range(begin, end):
                visible = context - (end - begin) + (t - begin) + 1
                oldest = 0 if window is None else max(0, visible - window)
                out[t] = _one_query(query[t], keys[oldest:visible], values[oldest:visible], scale)
        return out


def _one_query(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """query [H, D], keys and values [L, KVH, D]: [H, D]."""
    exact = query.dtype if query.dtype in (torch.float32, torch.float64) else torch.float32
    group = query.shape[0] // keys.shape[1]
    keys = keys.to(exact).repeat_interleave(group, dim=1)
    values = values.to(exact).repeat_interleave(group, dim=1)
    scores = torch.einsum("hd,lhd->hl", query.to(exact), keys) * scale
    return torch.einsum("hl,lhd->hd", torch.softmax(scores, dim=-1), values).to(query.dtype)
