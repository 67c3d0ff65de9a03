"""The kernel contract: attention over a paged KV cache. One variant a file; the executor knows this class alone.

Layout (NHD), per layer: k_cache, v_cache [N, B, KVH, D], N blocks of B slots, KVH key-value heads of size D. Slot s
is block s // B, offset s % B. H query heads, H a multiple of KVH: query head h reads key-value head h // (H / KVH).
Offsets are computed in 64 bits: a pool may have more than 2^31 elements. What lies in slots that no sequence of the
batch owns, and in block-table entries beyond a sequence's last block, is arbitrary (NaN, stale) and never leaks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
    [S + 1]. query_lens and contexts are the same numbers as Python ints, for variants that loop over sequences.
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

    def check(self, dtype: torch.dtype, device: torch.device) -> None:
        """ConfigError naming what is supported, when this variant cannot serve such a cache."""
        if dtype not in self.dtypes:
            known = ", ".join(str(d).removeprefix("torch.") for d in self.dtypes)
            raise ConfigError(
                f"kernel={self.name}: model.dtype={str(dtype).removeprefix('torch.')} unsupported, expected {known}"
            )
        if device.type not in self.devices:
            raise ConfigError(f"kernel={self.name}: device {device} unsupported, expected {', '.join(self.devices)}")

    @abstractmethod
    def write_kv(
        self,
        key: torch.Tensor,  # [T, KVH, D]
        value: torch.Tensor,  # [T, KVH, D]
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,  # int64 [T]; -1 writes nothing
    ) -> None:
        """Put the new tokens' keys and values into their slots."""

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


KERNELS: Registry[type[Kernel]] = Registry("kernel", "pagedlab.kernels", ("reference", "torch"))
