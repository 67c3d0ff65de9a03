"""Gather the pages, then torch's scaled_dot_product_attention: runs wherever torch runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from pagedlab.kernels.base import KERNELS, Kernel, PagedBatch

# Sequences are padded to the longest of their bucket; a bucket ends where padding would exceed this share.
_MAX_PADDING = 0.25


@dataclass(slots=True)
class _Bucket:
    """Decodes of about one length. stale: (sequence, position) pairs beyond a context, to be zeroed once gathered."""

    sequences: torch.Tensor  # int64 [S]
    tables: torch.Tensor  # int64 [S, M]
    mask: torch.Tensor  # bool [S, 1, 1, M * B], True where the query looks
    stale: tuple[torch.Tensor, torch.Tensor]


@dataclass(slots=True)
class _Chunk:
    """A prefill. mask: bool [queries, context], None for a whole prompt whose every token sees all before it."""

    rows: slice  # of the prefills' queries
    context: int
    table: torch.Tensor  # int64 [M]
    mask: torch.Tensor | None


@KERNELS.register("torch")
class TorchKernel(Kernel):
    name = "torch"
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
        scratch = {} if scratch is None else scratch
        if "written" not in scratch:
            scratch["written"] = _written(slot_mapping)
        rows, slots = scratch["written"]
        if rows is not None:
            key, value = key[rows], value[rows]
        k_cache.view(-1, *k_cache.shape[2:]).index_copy_(0, slots, key)
        v_cache.view(-1, *v_cache.shape[2:]).index_copy_(0, slots, value)

    def decode(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        kv_heads, head_dim = k_cache.shape[2:]
        grouped = query.view(query.shape[0], kv_heads, -1, head_dim)
        out = torch.empty_like(grouped)
        key = ("decode", window)
        if key not in batch.scratch:
            batch.scratch[key] = _buckets(batch, k_cache.shape[1], window)
        for bucket in batch.scratch[key]:
            k = _gather(k_cache, bucket)
            v = _gather(v_cache, bucket)
            # Query heads of a group as query positions: K and V are read once for the whole group.
            out[bucket.sequences] = scaled_dot_product_attention(
                grouped[bucket.sequences], k, v, attn_mask=bucket.mask, scale=scale
            )
        return out.view_as(query)

    def prefill(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        out = torch.empty_like(query)
        key = ("prefill", window)
        if key not in batch.scratch:
            batch.scratch[key] = _chunks(batch, k_cache.shape[1], window)
        for chunk in batch.scratch[key]:
            k = k_cache[chunk.table].flatten(0, 1)[: chunk.context].transpose(0, 1)
            v = v_cache[chunk.table].flatten(0, 1)[: chunk.context].transpose(0, 1)
            q = query[chunk.rows].transpose(0, 1)
            out[chunk.rows] = scaled_dot_product_attention(
                q[None],
                k[None],
                v[None],
                attn_mask=chunk.mask,
                is_causal=chunk.mask is None,
                scale=scale,
                enable_gqa=True,
            )[0].transpose(0, 1)
        return out

    def copy_blocks(
        self, k_caches: Sequence[torch.Tensor], v_caches: Sequence[torch.Tensor], pairs: torch.Tensor
    ) -> None:
        for cache in (*k_caches, *v_caches):
            cache[pairs[:, 1]] = cache[pairs[:, 0]]

    def swap_blocks(
        self, sources: Sequence[torch.Tensor], destinations: Sequence[torch.Tensor], pairs: torch.Tensor
    ) -> None:
        for source, destination in zip(sources, destinations, strict=True):
            blocks = source[pairs[:, 0].to(source.device)]
            destination[pairs[:, 1].to(destination.device)] = blocks.to(destination.device)


def _written(slot_mapping: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Rows that have a slot (None: all have one) and their slots. On a GPU the host waits here: once a step then."""
    rows = torch.nonzero(slot_mapping >= 0)[:, 0]
    return (None, slot_mapping) if len(rows) == len(slot_mapping) else (rows, slot_mapping[rows])


def _chunks(batch: PagedBatch, block_size: int, window: int | None) -> list[_Chunk]:
    chunks = []
    first = batch.starts[batch.num_decodes]
    for s in range(batch.num_decodes, len(batch.contexts)):
        rows, context = slice(batch.starts[s] - first, batch.starts[s + 1] - first), batch.contexts[s]
        table = batch.block_tables[s, : -(-context // block_size)].long()
        queries = rows.stop - rows.start
        whole = queries == context and window is None
        mask = None if whole else _causal_mask(queries, context, window, table.device)
        chunks.append(_Chunk(rows, context, table, mask))
    return chunks


def _causal_mask(queries: int, context: int, window: int | None, device: torch.device) -> torch.Tensor:
    """bool [queries, context]: the queries are the last tokens of the context."""
    position = torch.arange(context - queries, context, device=device)[:, None]
    other = torch.arange(context, device=device)[None, :]
    mask = other <= position
    return mask if window is None else mask & (other > position - window)


def _buckets(batch: PagedBatch, block_size: int, window: int | None) -> list[_Bucket]:
    """Split the decodes by length: padding all to the longest would copy and multiply mostly nothing."""
    order = sorted(range(batch.num_decodes), key=lambda s: batch.contexts[s])
    groups: list[list[int]] = []
    blocks = [-(-context // block_size) for context in batch.contexts]
    total = 0
    for s in order:
        total += blocks[s]
        if groups and (len(groups[-1]) + 1) * blocks[s] <= total * (1 + _MAX_PADDING):
            groups[-1].append(s)
        else:
            groups.append([s])
            total = blocks[s]
    buckets = []
    for group in groups:
        sequences = torch.tensor(group, device=batch.block_tables.device)
        length = blocks[group[-1]] * block_size
        tables = batch.block_tables[sequences, : blocks[group[-1]]].long()
        context = batch.context_lens[sequences][:, None]
        position = torch.arange(length, device=tables.device)[None, :]
        beyond = position >= context
        mask = ~beyond if window is None else ~beyond & (position >= context - window)
        stale = torch.nonzero(beyond, as_tuple=True)
        # A table entry beyond the sequence's own blocks may be anything: read block 0 there, its slots are zeroed.
        tables = tables.masked_fill(beyond[:, ::block_size], 0)
        buckets.append(_Bucket(sequences, tables, mask[:, None, None, :], (stale[0], stale[1])))
    return buckets


def _gather(cache: torch.Tensor, bucket: _Bucket) -> torch.Tensor:
    """Pages of a bucket's sequences, stale slots zeroed (0 x NaN is NaN): [S, KVH, M * B, D]."""
    pages = cache[bucket.tables].flatten(1, 2)
    pages[bucket.stale] = 0
    return pages.transpose(1, 2)
