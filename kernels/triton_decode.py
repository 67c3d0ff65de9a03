"""Decode: one program a (sequence, key-value head, split), all query heads of the group together; then the merge.

Launches and their shapes follow from Python ints alone (num_decodes, shapes, and the contexts for the number of
splits), no tensor is read back: decode can be captured in a CUDA graph. Which tiles a split takes is worked out on the
device from context_lens, so that a captured launch is right whatever the contexts at its replay. Capture with contexts
as long as will come: they decide how many splits there are, which is then fixed, and costs speed, not correctness.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped, import-not-found"
# Triton has no types, and its kernels are functions of whatever it makes of their arguments.

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from pagedlab.kernels.base import PagedBatch
from pagedlab.kernels.triton_attend import attend
from pagedlab.kernels.triton_configs import Launch

# A split shorter than this many tiles has no time to fill its pipeline of loads.
MIN_TILES = 2
MAX_SPLITS = 128


def choose_splits(programs: int, longest: int, tile: int, wanted: int) -> int:
    """How many programs share a sequence: enough for `wanted` in the grid, when there are `programs` without."""
    return max(1, min(wanted // programs, -(-longest // tile) // MIN_TILES, MAX_SPLITS))


def decode(
    query: torch.Tensor,  # [D1, H, D]
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    window: int,
    launch: Launch,
    splits: int,
) -> torch.Tensor:
    """Attention of one query a sequence, its context split in `splits`: [D1, H, D]."""
    sequences, heads, head_dim = query.shape
    page, kv_heads = k_cache.shape[1:3]
    group = heads // kv_heads
    padded = triton.next_power_of_2(head_dim)
    out = torch.empty((sequences, heads, head_dim), dtype=query.dtype, device=query.device)
    if splits == 1:
        partial = log_sums = out  # not touched
    else:
        partial = torch.empty((sequences, heads, splits, head_dim), dtype=torch.float32, device=query.device)
        log_sums = torch.empty((sequences, heads, splits), dtype=torch.float32, device=query.device)
    decode_kernel[(sequences * kv_heads, splits)](
        query,
        out,
        partial,
        log_sums,
        k_cache,
        v_cache,
        batch.block_tables,
        batch.context_lens,
        scale * math.log2(math.e),
        window,
        splits,
        query.stride(0),
        query.stride(1),
        *k_cache.stride()[:3],
        batch.block_tables.stride(0),
        KV_HEADS=kv_heads,
        GROUP=group,
        ROWS=max(16, triton.next_power_of_2(group)),  # tensor cores take 16 rows at least
        D=head_dim,
        DP=padded,
        PAGE=page,
        TILE=launch.tile,
        SPLIT=splits > 1,
        num_warps=launch.warps,
        num_stages=launch.stages,
        enable_fp_fusion=True,  # the default of Triton up to 3.9, spelt out for 3.10
    )
    if splits > 1:
        most = triton.next_power_of_2(splits)
        merge_kernel[(sequences, heads)](
            out,
            partial,
            log_sums,
            batch.context_lens,
            window,
            splits,
            D=head_dim,
            DP=padded,
            TILE=launch.tile,
            SPLITS=most,
            num_warps=4 if most * padded <= 8192 else 8,
            enable_fp_fusion=True,
        )
    return out


@triton.jit
def tiles_of(context, window, splits, TILE: tl.constexpr):
    """The tiles [first, end) that hold a token of the window, and how many of them a split takes."""
    first = tl.maximum(context - window, 0) // TILE
    end = tl.cdiv(context, TILE)
    return first, end, tl.maximum(tl.cdiv(end - first, splits), 1)


# window and splits change from call to call: no variant compiled for a 1 or a multiple of 16 among them.
@triton.jit(do_not_specialize=["window", "splits"])
def decode_kernel(
    query,
    out,
    partial,  # fp32 [D1, H, splits, D]: of each split, normalised
    log_sums,  # fp32 [D1, H, splits]: log2 of the sum of its weights
    k_cache,
    v_cache,
    tables,
    contexts,
    scale_log2,
    window,
    splits,
    stride_query,
    stride_query_head,
    stride_block,
    stride_slot,
    stride_head,
    stride_table,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    # Neighbours in the grid are the heads of one sequence: they lie side by side in a page.
    sequence = (tl.program_id(0) // KV_HEADS).to(tl.int64)
    kv_head = tl.program_id(0) % KV_HEADS
    split = tl.program_id(1)
    context = tl.load(contexts + sequence).to(tl.int32)
    first, end, share = tiles_of(context, window, splits, TILE)
    begin = first + split * share
    end = tl.minimum(begin + share, end)
    if begin >= end:
        return  # nothing left for this split: the merge knows, and reads nothing of it
    r = tl.arange(0, ROWS)
    d = tl.arange(0, DP)
    head = kv_head * GROUP + r
    stored = (r < GROUP)[:, None] & (d < D)[None, :]
    q_offsets = sequence * stride_query + head[:, None] * stride_query_head + d[None, :]
    q = tl.load(query + q_offsets, mask=stored, other=0.0)
    acc, total, peak = attend(
        q,
        tl.full([ROWS], 0, tl.int32) + (context - 1),
        window,
        tl.zeros([ROWS, DP], tl.float32),
        tl.zeros([ROWS], tl.float32),
        tl.full([ROWS], float("-inf"), tl.float32),
        begin,
        end,
        tl.maximum(context - window, 0),
        context,
        tables + sequence * stride_table,
        k_cache + kv_head * stride_head,
        v_cache + kv_head * stride_head,
        stride_block,
        stride_slot,
        scale_log2,
        D,
        DP,
        PAGE,
        TILE,
        True,  # one loop, masked throughout: a second one for the last tile would fill its pipeline anew
    )
    acc = acc / total[:, None]
    row = sequence * (KV_HEADS * GROUP) + head
    if SPLIT:
        row = row * splits + split
        tl.store(partial + row[:, None] * D + d[None, :], acc, mask=stored)
        tl.store(log_sums + row, peak + tl.math.log2(total), mask=r < GROUP)
    else:
        tl.store(out + row[:, None] * D + d[None, :], acc.to(out.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize=["window", "splits"])
def merge_kernel(
    out,
    partial,
    log_sums,
    contexts,
    window,
    splits,
    D: tl.constexpr,
    DP: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,  # splits up to a power of two
):
    """The splits of one query head, weighted by their share of the softmax."""
    sequence = tl.program_id(0).to(tl.int64)
    row = sequence * tl.num_programs(1) + tl.program_id(1)
    first, end, share = tiles_of(tl.load(contexts + sequence).to(tl.int32), window, splits, TILE)
    split = tl.arange(0, SPLITS)
    d = tl.arange(0, DP)
    used = split < tl.cdiv(end - first, share)
    log_sum = tl.load(log_sums + row * splits + split, mask=used, other=float("-inf"))
    weights = tl.math.exp2(log_sum - tl.max(log_sum, 0))
    offsets = (row * splits + split)[:, None] * D + d[None, :]
    parts = tl.load(partial + offsets, mask=used[:, None] & (d < D)[None, :], other=0.0)
    merged = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(out + row * D + d, merged.to(out.dtype.element_ty), mask=d < D)
