"""Numba's machine code over the block table itself: nothing is gathered for a decode. Prefills: `cpu_prefill.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from pagedlab.core.errors import ConfigError
from pagedlab.kernels.base import KERNELS, Kernel, PagedBatch
from pagedlab.kernels.cpu_prefill import prefill
from pagedlab.kernels.threads import run
from pagedlab.kernels.torch import TorchKernel

SPLIT = 256  # tokens: a shorter piece is not worth a thread of its own
_SERIAL = 256  # tokens that one thread writes in less time than others take to wake up


@dataclass(slots=True)
class Work:
    """The decodes of a step as items and merges (see cpu_compiled.py), int64; rows: of output, pieces included."""

    items: torch.Tensor
    merges: torch.Tensor
    rows: int


@KERNELS.register("cpu")
class CpuKernel(Kernel):
    """fp32 arithmetic on fp32 and bf16 keys and values. Compiles at first use (some seconds), then loads from disk."""

    name = "cpu"
    dtypes = (torch.float32, torch.bfloat16)
    devices = ("cpu",)

    def __init__(self) -> None:
        try:
            from pagedlab.kernels import cpu_compiled
        except ImportError as error:
            raise ConfigError(f"kernel=cpu: needs numba ({error}), expected it installed, or kernel=torch") from None
        self._compiled = cpu_compiled
        cpu_compiled.write_body()  # compiled now, not in a measured step; the decode's follows at the warm-up
        cpu_compiled.merge_body()
        self._torch = TorchKernel()

    def write_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        scratch: dict[Any, Any] | None = None,
    ) -> None:
        tokens = key.shape[0]
        key, value = key.contiguous(), value.contiguous()
        caches = k_cache.data_ptr(), v_cache.data_ptr()
        row_bytes = k_cache.shape[2] * k_cache.shape[3] * k_cache.element_size()
        fields = (0, tokens, key.data_ptr(), value.data_ptr(), *caches, slot_mapping.data_ptr(), row_bytes)
        run(self._compiled.write_body(), fields, 1 if tokens <= _SERIAL else torch.get_num_threads())

    def decode(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        _, heads, head_dim = query.shape
        block_size, kv_heads = k_cache.shape[1:3]
        threads = torch.get_num_threads()
        key = ("cpu", window, threads)
        work = batch.scratch.get(key)
        if work is None:
            contexts = batch.contexts[: batch.num_decodes]
            work = batch.scratch[key] = divide(contexts, window, threads, self._compiled.TILE)
        scaled = (query.float() * (scale * math.log2(math.e))).contiguous()  # the softmax is in powers of two
        out = torch.empty(work.rows, heads, head_dim)
        statistics = torch.empty(2, work.rows, heads)
        scratch = torch.empty(threads * self._compiled.scratch_bytes(heads), dtype=torch.uint8)
        fields = (
            *(0, 0, work.items.data_ptr(), len(work.items), scaled.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr()),
            *(batch.block_tables.data_ptr(), batch.block_tables.stride(0), out.data_ptr()),
            *(statistics[0].data_ptr(), statistics[1].data_ptr(), scratch.data_ptr()),
            *(block_size, kv_heads, heads // kv_heads, head_dim, work.merges.data_ptr(), len(work.merges)),
        )
        run(self._compiled.decode_body(8 * k_cache.element_size()), fields, min(threads, len(work.items)))
        if len(work.merges):
            run(self._compiled.merge_body(), fields, 1)
        return out[: batch.num_decodes].to(query.dtype)

    def prefill(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        if query.shape[2] * query.element_size() % 4:  # two numbers of bf16 to a word
            return self._torch.prefill(query, k_cache, v_cache, batch, scale, window)
        return prefill(query.contiguous(), k_cache, v_cache, batch, scale, window)

    def copy_blocks(
        self, k_caches: Sequence[torch.Tensor], v_caches: Sequence[torch.Tensor], pairs: torch.Tensor
    ) -> None:
        """By NumPy: for a few blocks a layer, starting torch's threads costs more than the copy."""
        sources, destinations = pairs.numpy().T
        for kept in (*k_caches, *v_caches):
            array = kept.view(torch.uint8).numpy()
            array[destinations] = array[sources]

    def swap_blocks(
        self, sources: Sequence[torch.Tensor], destinations: Sequence[torch.Tensor], pairs: torch.Tensor
    ) -> None:
        self._torch.swap_blocks(sources, destinations, pairs)


def divide(contexts: list[int], window: int | None, threads: int, tile: int) -> Work:
    """One item a sequence, the longest first; cut where otherwise a thread would be left with most of the tokens."""
    begins = [0 if window is None else max(0, context - window) for context in contexts]
    total = sum(contexts) - sum(begins)
    limit = max(SPLIT, -(-total // (2 * threads)))
    items, merges, rows = [], [], len(contexts)
    for s, (begin, end) in enumerate(zip(begins, contexts, strict=True)):
        pieces = -(-(end - begin) // limit)
        if pieces == 1:
            items.append((s, begin, end, s))
            continue
        size = -(-(end - begin) // (pieces * tile)) * tile
        cuts = [*range(begin, end, size), end]
        merges.append((s, rows, len(cuts) - 1))
        for first, last in pairwise(cuts):
            items.append((s, first, last, rows))
            rows += 1
    items.sort(key=lambda item: item[1] - item[2])
    return Work(torch.tensor(items), torch.tensor(merges, dtype=torch.int64), rows)
