"""Prompts and chunks of prompts by Numba's machine code: what `prefill_compiled.py` is given."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from pagedlab.kernels.base import PagedBatch
from pagedlab.kernels.threads import run


@dataclass(slots=True)
class _Prompts:
    """The prefills of a step as prompts, tiles of `tile` tokens and pieces (see prefill_compiled.py), int64."""

    prompts: torch.Tensor
    tiles: torch.Tensor
    pieces: torch.Tensor
    first_pieces: torch.Tensor  # of each prompt
    tile: int


def prefill(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """As the contract has it (`base.py`), for a contiguous query whose rows are whole words of 32 bits."""
    from pagedlab.kernels.prefill_compiled import lay_out_body, prefill_body, scratch_bytes, strips_bytes

    heads, dim = query.shape[1:]
    block_size, kv_heads = k_cache.shape[1:3]
    group, bits, threads = heads // kv_heads, 8 * k_cache.element_size(), torch.get_num_threads()
    work = batch.scratch.get("cpu prefill")
    if work is None:
        work = batch.scratch["cpu prefill"] = _prompts(batch, kv_heads, group)
    pieces, items = len(work.pieces), len(work.tiles) * kv_heads
    keys, values = (torch.empty(pieces * size, dtype=torch.uint8) for size in strips_bytes(dim, bits))
    laid_out = (
        *(0, pieces, work.pieces.data_ptr(), work.prompts.data_ptr()),
        *(batch.block_tables.data_ptr(), batch.block_tables.stride(0), k_cache.data_ptr(), v_cache.data_ptr()),
        *(block_size, kv_heads, dim, keys.data_ptr(), values.data_ptr()),
    )
    run(lay_out_body(bits), laid_out, min(threads, pieces))
    out, factor = torch.empty_like(query), torch.tensor([scale * math.log2(math.e)], dtype=torch.float32)
    share = scratch_bytes(work.tile * group, dim, bits)
    scratch = torch.empty(threads * share, dtype=torch.uint8)
    attended = (
        *(0, 0, items, work.tiles.data_ptr(), work.prompts.data_ptr(), work.first_pieces.data_ptr()),
        *(query.data_ptr(), keys.data_ptr(), values.data_ptr(), out.data_ptr(), scratch.data_ptr(), share),
        *(kv_heads, group, dim, factor.data_ptr(), window or 0),
    )
    run(prefill_body(bits), attended, min(threads, items))
    return out


def _prompts(batch: PagedBatch, kv_heads: int, group: int) -> _Prompts:
    from pagedlab.kernels.prefill_compiled import TILE_ROWS
    from pagedlab.kernels.strip_vectors import WIDTH

    tile = max(1, TILE_ROWS // group)
    first_row = batch.starts[batch.num_decodes]
    prompts, tiles, pieces, first_pieces, made = [], [], [], [], 0
    for p, s in enumerate(range(batch.num_decodes, len(batch.contexts))):
        context, row, fed = batch.contexts[s], batch.starts[s], batch.starts[s + 1] - batch.starts[s]
        prompts.append((s, row - first_row, fed, context))
        tiles += [(p, first, min(first + tile, fed)) for first in range(0, fed, tile)]
        first_pieces.append(made)
        for head in range(kv_heads):
            own = np.arange(0, context, WIDTH)
            pieces.append(np.stack([np.full_like(own, p), np.full_like(own, head), own], axis=1))
            made += len(own)
    # The longest first: what is left at the end is short. A tile sees what was cached and what came before it.
    tiles.sort(key=lambda tile: prompts[tile[0]][2] - prompts[tile[0]][3] - tile[2])
    of_pieces = torch.from_numpy(np.concatenate(pieces))
    return _Prompts(torch.tensor(prompts), torch.tensor(tiles), of_pieces, torch.tensor(first_pieces), tile)
