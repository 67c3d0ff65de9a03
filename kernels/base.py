"""The kernel contract: attention over a paged KV cache. One variant a file; the executor knows this class alone.

Layout (NHD), per layer: k_cache, v_cache [N, B, KVH, D], N blocks of B slots, KVH key-value heads of size D. Slot s
is block s // B, offset s % B. H query heads, H a multiple of KVH: query head h reads key-value head h // (H / KVH).
Offsets are computed in 64 bits: a pool may have more than 2^31 elements. What lies in slots that no sequence of the
batch owns, and in block-table entries beyond a sequence's last block, is arbitrary (NaN, stale) and never leaks.
Query, key, value and output are contiguous in their last dimension, in the cache's dtype, on the cache's device.
Softmax and sums are computed in fp32 at least, whatever the dtype; the output is rounded once.

Calls trust their arguments: shapes come from the executor, which `check` has cleared once. What a caller can get
wrong is refused there, with what is supported. A variant that cannot be loaded here (no compiler, no GPU, package
missing) raises ConfigError when it is constructed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pagedlab.core.errors import ConfigError
from pagedlab.core.registry import Registry

if TYPE_CHECKING:  # the registry of names must not cost an import of torch
    import torch


@dataclass(slots=True)
class PagedBatch:
    """The shape of one step, the same for every layer. T tokens of S sequences, the D1 decodes (one token) first.

    slot_mapping int64 [T]: where the KV of each fed token goes, -1 for nowhere. block_tables int32 [S, M].
    context_lens int64 [S]: tokens of each sequence in the cache, those of this step included. query_start int64
    [S + 1]: tokens query_start[s] to query_start[s + 1] belong to sequence s, and are its last ones. starts and
    contexts are query_start and context_lens as Python ints, for what is decided on the host without a copy back.
    scratch: what a variant derives once a step and reuses in every layer.
    """

    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    query_start: torch.Tensor
    num_decodes: int
    starts: list[int]
    contexts: list[int]
    scratch: dict[Any, Any] = field(default_factory=dict)


class Kernel(ABC):
    """window: a token sees the last `window` tokens, itself included; None sees all."""

    name: ClassVar[str]
    dtypes: ClassVar[tuple[torch.dtype, ...]]
    devices: ClassVar[tuple[str, ...]]
    # Whether its decode launches can be recorded in a CUDA graph: no synchronisation, no choice by device values.
    capturable: ClassVar[bool] = False
    # What is supported of these two: a set, or every size.
    head_dims: ClassVar[frozenset[int] | None] = None
    block_sizes: ClassVar[frozenset[int] | None] = None

    def check(self, dtype: torch.dtype, device: torch.device, head_dim: int, block_size: int) -> None:
        """ConfigError naming what is supported, when this variant cannot serve such a cache."""
        dtypes = tuple(str(known).removeprefix("torch.") for known in self.dtypes)
        self._check_one("model.dtype", str(dtype).removeprefix("torch."), dtypes)
        self._check_one("executor.device", device.type, self.devices)
        if self.head_dims is not None:
            self._check_one("head size", head_dim, sorted(self.head_dims))
        if self.block_sizes is not None:
            self._check_one("block_size", block_size, sorted(self.block_sizes))

    def _check_one(self, what: str, value: object, known: Sequence[object]) -> None:
        if value not in known:
            expected = ", ".join(map(str, known))
            raise ConfigError(f"kernel={self.name}: {what}={value} unsupported, expected one of {expected}")

    @abstractmethod
    def write_kv(
        self,
        key: torch.Tensor,  # [T, KVH, D]
        value: torch.Tensor,  # [T, KVH, D]
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,  # int64 [T]; -1 writes nothing
        scratch: dict[Any, Any] | None = None,
    ) -> None:
        """Put the new tokens' keys and values into their slots. scratch: of the step's batch, whose slot_mapping this
        is; without it what a variant derives of the slots is derived anew in every call."""

    @abstractmethod
    def decode(
        self,
        query: torch.Tensor,  # [D1, H, D]
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        """Attention of the first num_decodes sequences, one query each: [D1, H, D]."""

    @abstractmethod
    def prefill(
        self,
        query: torch.Tensor,  # [T - D1, H, D]
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        """Causal attention of the other sequences, whose queries are their last tokens: [T - D1, H, D]."""

    @abstractmethod
    def copy_blocks(
        self,
        k_caches: Sequence[torch.Tensor],  # one a layer
        v_caches: Sequence[torch.Tensor],
        pairs: torch.Tensor,  # int64 [P, 2]: source block, destination block
    ) -> None:
        """Copy whole blocks within the cache, in every layer (copy-on-write). No destination is also a source, and no
        destination comes twice: the copies may run in any order."""

    @abstractmethod
    def swap_blocks(
        self,
        sources: Sequence[torch.Tensor],  # caches of one side, k and v of all layers: host to device or back
        destinations: Sequence[torch.Tensor],  # caches of the other side, in the same order, with N of their own
        pairs: torch.Tensor,  # int64 [P, 2] on the CPU: block of the source, block of the destination
    ) -> None:
        """Copy whole blocks between host and device. Done when it returns; ordered after all that came before."""


KERNELS: Registry[type[Kernel]] = Registry(
    "kernel", "pagedlab.kernels", ("reference", "torch", "cpu", "triton", "cupy")
)

# `kernel=auto`: by device, the first that can serve.
AUTO = {"cpu": ("cpu", "torch"), "cuda": ("triton", "torch")}


def make_kernel(name: str, dtype: torch.dtype, device: torch.device, head_dim: int, block_size: int) -> Kernel:
    """The named variant, cleared for such a cache; ConfigError where it cannot serve it."""
    *preferred, last = AUTO.get(device.type, ("torch",)) if name == "auto" else (name,)
    for candidate in preferred:
        with suppress(ConfigError):
            kernel = KERNELS[candidate]()
            kernel.check(dtype, device, head_dim, block_size)
            return kernel
    kernel = KERNELS[last]()
    kernel.check(dtype, device, head_dim, block_size)
    return kernel
