"""python -m tests.kernels.cuda_emulation.big_pool VARIANT: a step in a pool of more than 2^31 elements. Exit status 0:
right, 1: wrong; a signal ends a variant that leaves the pool.

Memory that is never touched costs nothing: of 4.3 GB, a few pages are.
"""

from __future__ import annotations

import sys
from unittest import mock

import torch

from tests.kernels.cuda_emulation.emulation import EmulatedKernel, Library, Variant, attention
from tests.kernels.cuda_emulation.problem import Problem

# Units of one element, as narrow as they come: of 16 bytes there are 2^31 in a pool of 34 GB only.
UNIT = "unsigned short", 2
COPIES = ("cache.cu", "write_kv<unsigned short>"), ("cache.cu", "copy_blocks<unsigned short>")
KERNELS = (*attention(torch.float16, 64, 1), *COPIES)
_OFFSET = "static_cast<i64>(block)", "static_cast<int>(block)"
NARROW = {
    "decode in 32 bits": ("decode.cu", *_OFFSET),
    "prefill in 32 bits": ("prefill.cu", *_OFFSET),
    "write_kv in 32 bits": (
        "cache.cu",
        "k_cache[slot * row_units + unit]",
        "k_cache[static_cast<int>(slot * row_units + unit)]",
    ),
    "copy_blocks in 32 bits": (
        "cache.cu",
        "pairs[2 * static_cast<i64>(blockIdx.x)] * block_units",
        "static_cast<int>(pairs[2 * static_cast<i64>(blockIdx.x)] * block_units)",
    ),
}
VARIANTS = (
    Variant("sound", KERNELS),
    *(Variant(name, tuple(k for k in KERNELS if k[0] == m[0]), (m,)) for name, m in NARROW.items()),
)


class Mixed(EmulatedKernel):
    """Sound kernels, but those of a variant where it has them."""

    def _launch(self, kernel, grid, threads, *arguments):
        variant, self.variant = self.variant, self.variant if (self.variant, *kernel) in self.built.index else "sound"
        super()._launch(kernel, grid, threads, *arguments)
        self.variant = variant


def main(variant: str) -> int:
    kernel = Mixed(Library.of(*VARIANTS), variant)
    mock.patch("pagedlab.kernels.cupy._unit", return_value=UNIT).start()
    problem = Problem((20, 3), ((21, 4),), dtype=torch.float16, group=1, kv_heads=1, block_size=16)
    small, blocks = problem.k_cache, len(problem.k_cache)
    pool = torch.empty((2**31 // (16 * 64) + blocks + 2, 16, 1, 64), dtype=torch.float16)
    first = len(pool) - blocks
    # The small pools move to the end of the big one (the keys are the values: one pool is enough), a slot at a time.
    slots = torch.arange(blocks * 16)
    rows = small.view(-1, 1, 64)
    kernel.write_kv(rows, rows, pool, pool, slots + (first - 1) * 16)
    pairs = torch.arange(first - 1, first - 1 + blocks)[:, None].repeat(1, 2)
    for pair in pairs.flip(0):  # one block up, from the last one on
        pair[1] += 1
        kernel.copy_blocks([pool], [], pair[None])
    problem.batch.block_tables += first
    problem.k_cache = problem.v_cache = pool
    problem.values = problem.keys
    return int(problem.error(kernel) > 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
