"""Batches to time: sequences of one length over caches without a gap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pagedlab.kernels.base import Kernel, PagedBatch


@dataclass(slots=True)
class Uniform:
    """query [T, H, D], k_cache and v_cache [N, B, KVH, D]."""

    query: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    batch: PagedBatch

    def attend(self, kernel: Kernel) -> Callable[[], torch.Tensor]:
        """The call to time, of decodes or of prefills."""
        call = kernel.decode if self.batch.num_decodes else kernel.prefill
        arguments = self.query, self.k_cache, self.v_cache, self.batch, self.query.shape[-1] ** -0.5
        return lambda: call(*arguments)


def uniform(
    sequences: int,
    context: int,
    queries: int,  # of each sequence; 1 makes them decodes
    heads: tuple[int, int],  # of query, of key and value
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    device: str,
    shuffled: bool = True,
    caches: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Uniform:
    """Random numbers, in blocks in random order or (shuffled=False) in the order of the sequences.

    caches: these instead of new ones, of sequences x context x KVH x D elements each, in any shape.
    """
    blocks = -(-context // block_size)
    starts = [s * queries for s in range(sequences + 1)]
    shape = (sequences * blocks, block_size, heads[1], head_dim)
    if caches is None:
        caches = torch.randn(shape, device=device, dtype=dtype), torch.randn(shape, device=device, dtype=dtype)
    order = torch.randperm if shuffled else torch.arange
    batch = PagedBatch(
        slot_mapping=torch.full((starts[-1],), -1, dtype=torch.int64, device=device),
        block_tables=order(sequences * blocks, device=device).int().view(sequences, blocks),
        context_lens=torch.full((sequences,), context, dtype=torch.int64, device=device),
        query_start=torch.tensor(starts, device=device),
        num_decodes=sequences if queries == 1 else 0,
        starts=starts,
        contexts=[context] * sequences,
    )
    query = torch.randn(starts[-1], heads[0], head_dim, device=device).to(dtype)
    return Uniform(query, caches[0].view(shape), caches[1].view(shape), batch)
