"""The attention kernel that serves, over the cache of the executor that serves."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import torch

from pagedlab.executor.torch import TorchExecutor
from pagedlab.kernels.base import PagedBatch
from pagedlab.microprofile.turns import Cell


def fill_cache(executor: TorchExecutor, seed: int) -> None:
    """With numbers: pages that nobody has written yet are all one page of zeros to the machine."""
    generator = torch.Generator().manual_seed(seed)
    shape = executor.k_cache[0].shape
    numbers = torch.empty(shape[1:], dtype=torch.float32).uniform_(-1.7, 1.7, generator=generator)
    for cache in (*executor.k_cache, *executor.v_cache):
        cache.copy_(numbers.expand(shape))


def decode_cell(executor: TorchExecutor, contexts: list[int], block_size: int, heads: int, seed: int) -> Cell:
    batch = _batch(executor, [1] * len(contexts), contexts, block_size, seed)
    sizes = {"contexts": contexts, "block_size": block_size}
    return _cell(executor, "decode", sizes, batch, len(contexts), block_size, heads)


def prefill_cell(executor: TorchExecutor, chunks: list[tuple[int, int]], heads: int, seed: int) -> Cell:
    block_size = executor.k_cache[0].shape[1]
    fed = [new for new, _ in chunks]
    batch = _batch(executor, fed, [new + cached for new, cached in chunks], block_size, seed)
    return _cell(executor, "prefill", {"chunks": [list(c) for c in chunks]}, batch, sum(fed), block_size, heads)


def _cell(
    executor: TorchExecutor,
    operator: str,
    sizes: dict[str, Any],
    batch: PagedBatch,
    tokens: int,
    block_size: int,
    heads: int,
) -> Cell:
    """All layers, each over its own cache, which is read as one of blocks of `block_size`."""
    dim = executor.k_cache[0].shape[3]
    query = torch.full((tokens, heads, dim), 0.1, dtype=executor.model.dtype, device=executor.device)
    run_one = executor.kernel.decode if operator == "decode" else executor.kernel.prefill
    caches = [
        (_reblocked(k, block_size), _reblocked(v, block_size))
        for k, v in zip(executor.k_cache, executor.v_cache, strict=True)
    ]

    def run() -> None:
        batch.scratch.clear()  # as in the first layer of a step
        for k_cache, v_cache in caches:
            run_one(query, k_cache, v_cache, batch, dim**-0.5)

    return Cell(operator, sizes, run)


def _reblocked(cache: torch.Tensor, block_size: int) -> torch.Tensor:
    slots = cache.shape[0] * cache.shape[1] // block_size * block_size
    return cache.view(-1, *cache.shape[2:])[:slots].view(-1, block_size, *cache.shape[2:])


def _batch(executor: TorchExecutor, fed: list[int], contexts: list[int], block_size: int, seed: int) -> PagedBatch:
    """Blocks dealt out at random, as after hours of serving."""
    pool = executor.k_cache[0].shape[0] * executor.k_cache[0].shape[1] // block_size
    blocks = [-(-context // block_size) for context in contexts]
    ids = np.random.default_rng(seed).permutation(pool)[: sum(blocks)].astype(np.int32)
    tables = np.zeros((len(contexts), max(blocks)), dtype=np.int32)
    for row, (end, count) in enumerate(zip(accumulate(blocks), blocks, strict=True)):
        tables[row, :count] = ids[end - count : end]
    starts = [0, *accumulate(fed)]
    return PagedBatch(
        slot_mapping=torch.full((starts[-1],), -1, device=executor.device),
        block_tables=torch.from_numpy(tables).to(executor.device),
        context_lens=torch.tensor(contexts, device=executor.device),
        query_start=torch.tensor(starts, device=executor.device),
        num_decodes=sum(new == 1 for new in fed),
        starts=starts,
        contexts=contexts,
    )


class AttentionAway:
    """Between `remove` and `restore`, the kernel writes keys and values and attends to nothing."""

    def __init__(self, kernel: Any):
        self._kernel = kernel
        self._ready: dict[torch.Size, torch.Tensor] = {}

    def _stub(self, query: torch.Tensor, *args: Any) -> torch.Tensor:
        if query.shape not in self._ready:
            self._ready[query.shape] = torch.full_like(query, 0.5)
        return self._ready[query.shape]

    def remove(self) -> None:
        self._kernel.decode = self._kernel.prefill = self._stub

    def restore(self) -> None:
        del self._kernel.decode, self._kernel.prefill
