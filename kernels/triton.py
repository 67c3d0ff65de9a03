"""Triton kernels for a CUDA device: grouped query heads, split contexts, tensor-core tiles, pages read in place."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from pagedlab.core.errors import ConfigError
from pagedlab.kernels import triton_configs as configs
from pagedlab.kernels.base import KERNELS, Kernel, PagedBatch

# As a window: further back than any context reaches, and `position - window` is still an int32.
_EVERYTHING = 2**31 - 1


@KERNELS.register("triton")
class TritonKernel(Kernel):
    """No call but swap_blocks waits for the device. decode can be captured in a CUDA graph (see triton_decode).

    With TRITON_INTERPRET=1 it takes CPU tensors, for debugging: `check` still refuses them for serving, being some
    10^5 times too slow, and in bf16 the interpreter computes nonsense.
    tuning: launch configurations, else those of this GPU's file. splits: of a decode, else as many as fill the GPU.
    """

    name = "triton"
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    devices = ("cuda",)
    capturable = True
    head_dims = frozenset(range(16, 257, 16))  # 16-byte accesses, and at least the depth of a tensor-core product

    def __init__(self, tuning: configs.Tuning | None = None, splits: int | None = None):
        try:
            triton = import_module("triton")
        except ImportError:
            raise ConfigError(
                "kernel=triton: the package triton is not installed, expected triton 3.6 or later (pip install triton)"
            ) from None
        if torch.cuda.is_available():
            gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
            self._gpu, self._multiprocessors = gpu.name, gpu.multi_processor_count
        elif triton.knobs.runtime.interpret:
            self._gpu, self._multiprocessors = "interpreter", 1
        else:
            raise ConfigError(
                "kernel=triton: this torch sees no CUDA device, expected one (or TRITON_INTERPRET=1 in the "
                "environment, to debug on a CPU)"
            )
        # The device code, which cannot even be imported without Triton.
        self._decode: Any = import_module("pagedlab.kernels.triton_decode")
        self._prefill: Any = import_module("pagedlab.kernels.triton_prefill")
        self._cache: Any = import_module("pagedlab.kernels.triton_cache")
        self.tuning = tuning or configs.load(self._gpu)
        self.splits = splits
        self._addresses: tuple[tuple[int, ...], torch.Tensor | None] = ((), None)

    def write_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        scratch: dict[Any, Any] | None = None,
    ) -> None:
        _same_layout(k_cache, v_cache)
        with _on(k_cache):
            self._cache.write(key, value, k_cache, v_cache, slot_mapping)

    def decode(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        _same_layout(k_cache, v_cache)
        launch = self.tuning.decode[configs.size_class(query.element_size(), query.shape[2])]
        splits = self.splits
        if splits is None:
            longest = max(batch.contexts[: batch.num_decodes])
            splits = self._decode.choose_splits(
                query.shape[0] * k_cache.shape[2],
                longest if window is None else min(longest, window),
                launch.tile,
                self._multiprocessors * self.tuning.programs_per_sm,
            )
        seen = _EVERYTHING if window is None else min(window, _EVERYTHING)
        with _on(query):
            out: torch.Tensor = self._decode.decode(query, k_cache, v_cache, batch, scale, seen, launch, splits)
        return out

    def prefill(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        _same_layout(k_cache, v_cache)
        launch = self.tuning.prefill[configs.size_class(query.element_size(), query.shape[2])]
        seen = _EVERYTHING if window is None else min(window, _EVERYTHING)
        with _on(query):
            out: torch.Tensor = self._prefill.prefill(query, k_cache, v_cache, batch, scale, seen, launch)
        return out

    def copy_blocks(
        self, k_caches: Sequence[torch.Tensor], v_caches: Sequence[torch.Tensor], pairs: torch.Tensor
    ) -> None:
        caches = (*k_caches, *v_caches)
        if not len(caches) or not len(pairs):
            return
        device = caches[0].device
        pairs = pairs.to(device)
        if not self._cache.copyable(caches):
            for cache in caches:
                cache[pairs[:, 1]] = cache[pairs[:, 0]]
            return
        with _on(caches[0]):
            table = self._table(caches)
            self._cache.copy(table, table, pairs.contiguous(), caches[0][0].numel() * caches[0].element_size())

    def swap_blocks(
        self, sources: Sequence[torch.Tensor], destinations: Sequence[torch.Tensor], pairs: torch.Tensor
    ) -> None:
        if not len(sources) or not len(pairs):
            return
        with _on(sources[0] if sources[0].is_cuda else destinations[0]):
            self._cache.swap(sources, destinations, pairs)

    def _table(self, caches: Sequence[torch.Tensor]) -> torch.Tensor:
        """The caches' addresses on their device, kept: an upload a step would wait for the device."""
        key = tuple(cache.data_ptr() for cache in caches)
        known, table = self._addresses
        if table is None or known != key or table.device != caches[0].device:
            made: torch.Tensor = self._cache.addresses(caches, caches[0].device)
            self._addresses = key, made
            return made
        return table


def _on(tensor: torch.Tensor) -> torch.cuda.device:
    """Triton launches on the current device; for a CPU tensor (-1) there is nothing to make current."""
    return torch.cuda.device(tensor.get_device())


def _same_layout(k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    """One set of offsets serves keys and values."""
    if k_cache.stride() != v_cache.stride():
        raise ValueError(f"k_cache has strides {k_cache.stride()}, v_cache {v_cache.stride()}, expected the same")
