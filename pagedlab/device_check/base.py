"""What the parts of a device check share: what they are run with, and the rows that they yield.

A part is a generator of rows, flat dictionaries with the units in the names. It yields one as soon as it has it, so
that what is cut off by its time or by a fault of the GPU has left what came before. A row with `passed` says whether
something is right; the others say how fast something is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from pagedlab.core.errors import ConfigError
from pagedlab.kernels.base import KERNELS, Kernel

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured. The defaults are for a data-centre GPU: several times what its caches hold."""

    pool_elements: int = 2**31  # of a cache that offsets of 32 bits do not reach the end of
    kv_bytes: int = 4 * 2**30  # keys and values of a timed decode
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    block_sizes: tuple[int, ...] = (16, 32, 64, 128)
    contexts: tuple[int, ...] = (2048, 8192)
    prefills: tuple[tuple[int, int], ...] = ((4, 2048), (1, 8192))  # (sequences, new tokens of each)
    cached: tuple[int, ...] = (0, 6144)  # tokens before them
    written_tokens: tuple[int, ...] = (64, 8192)
    layers: int = 32
    copied_blocks: int = 256
    swapped_bytes: int = 256 * 2**20  # at most, in one swap
    swapped_layers: int = 8
    graph_batches: tuple[int, ...] = (1, 8)
    graph_context: int = 512
    repeats: int = 15


# For a CPU, to see that the parts work.
TINY = Sizes(
    pool_elements=2**20,
    kv_bytes=2**18,
    heads=6,
    kv_heads=2,
    head_dim=64,
    block_sizes=(16, 32),
    contexts=(64,),
    prefills=((2, 32),),
    cached=(0, 32),
    written_tokens=(8,),
    layers=2,
    copied_blocks=4,
    swapped_bytes=2**20,
    swapped_layers=2,
    graph_batches=(2,),
    graph_context=64,
    repeats=3,
)


@dataclass(slots=True)
class Bench:
    """What a part is run with. rows: those of the parts before it. seconds: what it has. sizes and device: others than
    the defaults in tests, which run every part on the CPU."""

    kernels: tuple[str, ...]
    device: str = "cuda"
    sizes: Sizes = field(default_factory=Sizes)
    rows: list[Row] = field(default_factory=list)
    seconds: float = 60.0

    def made(self, dtype: torch.dtype, head_dim: int, block_size: int) -> Iterator[Kernel]:
        """Those of the kernels that can be loaded here and serve such a cache."""
        for name in self.kernels:
            try:
                kernel = KERNELS[name]()
                kernel.check(dtype, torch.device(self.device), head_dim, block_size)
            except ConfigError:
                continue  # `versions` has the reason
            yield kernel

    def ceiling(self, operation: str) -> float | None:
        """GB/s that the part `ceilings` found for "copy" or "read"."""
        found = [row["gb_per_s"] for row in self.rows if row["part"] == "ceilings" and row["operation"] == operation]
        return max(found, default=None)


@dataclass(frozen=True, slots=True)
class Part:
    """seconds: its budget. Between two rows it is cut there; in the middle of one it is killed soon after.

    judges: that it fails is a fault of the kernels, whatever it was doing.
    """

    name: str
    seconds: float
    run: Callable[[Bench], Iterator[Row]]
    judges: bool = False
