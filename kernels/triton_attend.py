"""The loop that decode and prefill share: some query rows of one key-value head against the pages of one sequence."""

# mypy: ignore-errors
# Device code alone: a language of its own, that Triton's compiler checks.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend(
    q,  # [ROWS, DP]
    position,  # int32 [ROWS], ascending: where each row is in its sequence
    window,  # a row sees the tokens of (position - window, position]
    acc,  # fp32 [ROWS, DP]
    total,  # fp32 [ROWS]
    peak,  # fp32 [ROWS]
    begin,
    end,  # the tiles to visit, each with a token in [lowest, limit)
    lowest,
    limit,  # no row sees a token outside [lowest, limit): what lies there may be NaN, and its page no page at all
    table,  # int32: the sequence's row of the block table
    k_head,
    v_head,  # the caches, from the key-value head on
    stride_block,
    stride_slot,
    scale_log2,  # the scale times log2(e): exp2 is one instruction, exp is two
    D: tl.constexpr,
    DP: tl.constexpr,  # D up to a power of two
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,  # False: every row sees every token of these tiles
):
    """Online softmax over tiles of TILE tokens: acc, total and peak, carried on."""
    d = tl.arange(0, DP)
    for tile in range(begin, end):
        token = tile * TILE + tl.arange(0, TILE)
        inside = (token >= lowest) & (token < limit)
        if PAGE % TILE == 0:
            # The whole tile in one page, which is then the page of a token that is seen.
            page = tl.load(table + tile * TILE // PAGE).to(tl.int64)
            row = page * stride_block + (tile * TILE % PAGE + tl.arange(0, TILE)) * stride_slot
        else:
            pages = tl.load(table + token // PAGE, mask=inside, other=0).to(tl.int64)
            row = pages * stride_block + (token % PAGE) * stride_slot
        offsets = row[:, None] + d[None, :]
        # Zero, not just unseen: a weight of 0 times NaN is NaN, and so is a score.
        if MASKED:
            valid = inside[:, None] & (d < D)[None, :]
            k = tl.load(k_head + offsets, mask=valid, other=0.0)
            v = tl.load(v_head + offsets, mask=valid, other=0.0)
        elif D == DP:
            k = tl.load(k_head + offsets)
            v = tl.load(v_head + offsets)
        else:
            k = tl.load(k_head + offsets, mask=(d < D)[None, :], other=0.0)
            v = tl.load(v_head + offsets, mask=(d < D)[None, :], other=0.0)
        # ieee: fp32 stays fp32, where the tensor cores would round it to tf32.
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        if MASKED:
            seen = (token[None, :] <= position[:, None]) & (token[None, :] > position[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        # A row that has seen nothing yet has no peak: -inf - -inf is NaN.
        shift = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
        shrink = tl.math.exp2(peak - shift)
        weights = tl.math.exp2(scores - shift[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        peak = higher
    return acc, total, peak
