"""Blocks copied within the cache, and between it and the host's memory."""

from __future__ import annotations

import numpy as np
import torch

from pagedlab.executor.torch import TorchExecutor
from pagedlab.microprofile.turns import Cell


def move_cells(executor: TorchExecutor, blocks: list[int], seed: int) -> list[Cell]:
    """A swap is one way and then the other: it counts as two."""
    cells: list[Cell] = []
    caches = executor.k_cache + executor.v_cache
    host = [torch.empty((max(blocks, default=0), *cache.shape[1:]), dtype=cache.dtype) for cache in caches]
    for memory in host:
        memory.zero_()  # its pages are there from now on
    kernel, dice = executor.kernel, np.random.default_rng(seed)
    for count in blocks:
        ids = torch.from_numpy(dice.permutation(executor.num_blocks)[: 2 * count])
        within = ids.view(count, 2).to(executor.device)
        out = torch.stack([ids[:count], torch.arange(count)], dim=1)
        back = out.flip(1)

        def copy(pairs: torch.Tensor = within) -> None:
            kernel.copy_blocks(executor.k_cache, executor.v_cache, pairs)

        def swap(out: torch.Tensor = out, back: torch.Tensor = back) -> None:
            kernel.swap_blocks(caches, host, out)
            kernel.swap_blocks(host, caches, back)

        cells.append(Cell("copy", {"blocks": count}, copy))
        cells.append(Cell("swap", {"blocks": count}, swap, 2))
    return cells
