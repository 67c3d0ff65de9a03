"""Prefill: prompts and chunks of prompts, of any lengths, against what of their sequences is in the cache."""

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


def prefill(
    query: torch.Tensor,  # [T - D1, H, D]
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    window: int,
    launch: Launch,
) -> torch.Tensor:
    """Causal attention of the sequences after the decodes: [T - D1, H, D]."""
    tokens, heads, head_dim = query.shape
    page, kv_heads = k_cache.shape[1:3]
    group = heads // kv_heads
    sequences = len(batch.contexts) - batch.num_decodes
    out = torch.empty((tokens, heads, head_dim), dtype=query.dtype, device=query.device)
    # The most blocks that any division of the tokens among the sequences can need; those left over return at once.
    blocks = tokens * group // launch.rows + sequences
    prefill_kernel[(blocks, kv_heads)](
        query,
        out,
        k_cache,
        v_cache,
        batch.block_tables,
        batch.context_lens,
        batch.query_start,
        sequences,
        batch.num_decodes,
        scale * math.log2(math.e),
        window,
        query.stride(0),
        query.stride(1),
        *k_cache.stride()[:3],
        batch.block_tables.stride(0),
        HEADS=heads,
        GROUP=group,
        ROWS=launch.rows,
        D=head_dim,
        DP=triton.next_power_of_2(head_dim),
        PAGE=page,
        TILE=launch.tile,
        num_warps=launch.warps,
        num_stages=launch.stages,
        enable_fp_fusion=True,  # the default of Triton up to 3.9, spelt out for 3.10
    )
    return out


@triton.jit(do_not_specialize=["sequences", "decodes", "window"])
def prefill_kernel(
    query,
    out,
    k_cache,
    v_cache,
    tables,
    contexts,
    starts,
    sequences,
    decodes,
    scale_log2,
    window,
    stride_query,
    stride_query_head,
    stride_block,
    stride_slot,
    stride_head,
    stride_table,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program a block of ROWS rows and key-value head. A row is a (token, query head of the group) pair, in that
    order: whatever the group, tiles are full but for a sequence's last."""
    # The last blocks of a prompt see the most: they start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    # The sequence of this block: that of sequence s begin at its first row // ROWS + s.
    sequence = 0
    beyond = sequences
    while beyond - sequence > 1:
        middle = (sequence + beyond) // 2
        first_row = (tl.load(starts + decodes + middle).to(tl.int32) - decodes) * GROUP
        before = first_row // ROWS + middle <= block
        sequence = tl.where(before, middle, sequence)
        beyond = tl.where(before, beyond, middle)
    start = tl.load(starts + decodes + sequence).to(tl.int32) - decodes
    count = tl.load(starts + decodes + sequence + 1).to(tl.int32) - decodes - start
    first_row = (block - start * GROUP // ROWS - sequence) * ROWS
    if first_row >= count * GROUP:
        return
    context = tl.load(contexts + decodes + sequence).to(tl.int32)
    row = first_row + tl.arange(0, ROWS)
    token = row // GROUP
    position = context - count + tl.minimum(token, count - 1)
    earliest = context - count + first_row // GROUP
    latest = context - count + tl.minimum((first_row + ROWS - 1) // GROUP, count - 1)

    d = tl.arange(0, DP)
    head = kv_head * GROUP + row % GROUP
    stored = (token < count)[:, None] & (d < D)[None, :]
    q_offsets = (start + token).to(tl.int64)[:, None] * stride_query + head[:, None] * stride_query_head + d[None, :]
    q = tl.load(query + q_offsets, mask=stored, other=0.0)

    lowest = tl.maximum(earliest - window + 1, 0)
    first = lowest // TILE
    end = tl.cdiv(latest + 1, TILE)
    # Up to `full` every row sees every token, and nothing needs a mask; where the window cuts, that is nowhere.
    full = tl.where(first * TILE > latest - window, (earliest + 1) // TILE, first)
    table = tables + (decodes + sequence).to(tl.int64) * stride_table
    k_head = k_cache + kv_head * stride_head
    v_head = v_cache + kv_head * stride_head
    acc = tl.zeros([ROWS, DP], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    for masked in tl.static_range(2):
        acc, total, peak = attend(
            q,
            position,
            window,
            acc,
            total,
            peak,
            full if masked else first,
            end if masked else full,
            lowest,
            latest + 1,
            table,
            k_head,
            v_head,
            stride_block,
            stride_slot,
            scale_log2,
            D,
            DP,
            PAGE,
            TILE,
            masked == 1,
        )
    acc = acc / total[:, None]
    offsets = ((start + token).to(tl.int64) * HEADS + head)[:, None] * D + d[None, :]
    tl.store(out + offsets, acc.to(out.dtype.element_ty), mask=stored)
