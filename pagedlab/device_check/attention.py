"""Attention against the clock: decodes by how fast they read keys and values, prefills by their arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from pagedlab.device_check.base import Bench, Row
from pagedlab.device_check.timing import median_ms, per_second
from pagedlab.kernels.uniform import Uniform, uniform

DTYPE = torch.bfloat16


def decode(bench: Bench) -> Iterator[Row]:
    """Caches of several GB, so that no cache of the GPU helps: they are not flushed.

    kv_gb_per_s: keys and values once, over the time. ratio_to_contiguous_sdpa: time over that of torch's attention on
    contiguous tensors of the same size, the group's query heads as query positions. paging_overhead: time with blocks
    in random order over time with blocks in order, the kernel being the same.
    """
    sizes, device = bench.sizes, bench.device
    heads, dim = (sizes.heads, sizes.kv_heads), sizes.head_dim
    tokens = sizes.kv_bytes // (2 * sizes.kv_heads * dim * DTYPE.itemsize)
    # One pair of caches in all shapes: to fill them anew for every case would take longer than to measure.
    caches = tuple(torch.randn(tokens * sizes.kv_heads * dim, device=device, dtype=DTYPE) for _ in range(2))
    for context, block_size in product(sizes.contexts, sizes.block_sizes):
        batch = max(1, tokens // context)
        used = batch * context * sizes.kv_heads * dim
        k, v = (cache[:used] for cache in caches)
        contiguous = _contiguous(k, v, batch, context, sizes.heads, sizes.kv_heads)
        sdpa_ms = median_ms(contiguous, device, sizes.repeats, flush=False)
        for kernel in bench.made(DTYPE, dim, block_size):
            row: Row = {
                "kernel": kernel.name,
                "dtype": str(DTYPE).removeprefix("torch."),
                "block_size": block_size,
                "context": context,
                "batch": batch,
            }
            try:
                taken = []
                for shuffled in (True, False):
                    problem = uniform(batch, context, 1, heads, dim, block_size, DTYPE, device, shuffled, (k, v))
                    taken.append(median_ms(problem.attend(kernel), device, sizes.repeats, flush=False))
            except torch.OutOfMemoryError:
                yield row | {"error": "out of memory"}  # of kernel=torch, which gathers what it reads
                continue
            rate = per_second(2 * used * DTYPE.itemsize, taken[0])
            yield row | {
                "ms": taken[0],
                "kv_gb_per_s": rate,
                "share_of_copy_ceiling": _share(rate, bench.ceiling("copy")),
                "share_of_read_ceiling": _share(rate, bench.ceiling("read")),
                "ratio_to_contiguous_sdpa": taken[0] / sdpa_ms,
                "paging_overhead": taken[0] / taken[1],
            }


def _share(rate: float, ceiling: float | None) -> float | None:
    return rate / ceiling if ceiling else None


def _contiguous(
    k: torch.Tensor, v: torch.Tensor, batch: int, context: int, heads: int, kv_heads: int
) -> Callable[[], torch.Tensor]:
    """The same bytes read as keys and values [S, KVH, L, D] of torch's own attention."""
    keys, values = (x.view(batch, kv_heads, context, -1) for x in (k, v))
    query = torch.randn(batch, kv_heads, heads // kv_heads, keys.shape[-1], device=k.device, dtype=k.dtype)
    return lambda: scaled_dot_product_attention(query, keys, values)


def prefill(bench: Bench) -> Iterator[Row]:
    """tflop_per_s: 4 operations a query head, element of a head and visible pair of tokens, over the time.

    ratio_to_contiguous_sdpa: time over that of torch's attention on contiguous tensors, where every query head has keys
    and values of its own.
    """
    sizes, device = bench.sizes, bench.device
    heads, dim, block_size = (sizes.heads, sizes.kv_heads), sizes.head_dim, sizes.block_sizes[0]
    for (sequences, new), cached in product(sizes.prefills, sizes.cached):
        context = cached + new
        operations = 4 * sequences * sizes.heads * dim * (new * cached + new * (new + 1) / 2)
        problem = uniform(sequences, context, new, heads, dim, block_size, DTYPE, device)
        sdpa_ms = _contiguous_prefill_ms(problem, sequences, new, context, bench)
        for kernel in bench.made(DTYPE, dim, block_size):
            taken = median_ms(problem.attend(kernel), device, sizes.repeats)
            yield {
                "kernel": kernel.name,
                "dtype": str(DTYPE).removeprefix("torch."),
                "block_size": block_size,
                "sequences": sequences,
                "new_tokens": new,
                "cached_tokens": cached,
                "ms": taken,
                "tflop_per_s": per_second(operations, taken, 1e12),
                "ratio_to_contiguous_sdpa": taken / sdpa_ms,
            }


def _contiguous_prefill_ms(problem: Uniform, sequences: int, new: int, context: int, bench: Bench) -> float:
    sizes = bench.sizes
    shape = (sequences, sizes.heads, context, sizes.head_dim)
    keys, values = (torch.randn(shape, device=bench.device, dtype=DTYPE) for _ in range(2))
    query = problem.query.view(sequences, new, sizes.heads, -1).transpose(1, 2).contiguous()
    mask = causal_lower_right(new, context)
    return median_ms(
        lambda: scaled_dot_product_attention(query, keys, values, attn_mask=mask), bench.device, sizes.repeats
    )
