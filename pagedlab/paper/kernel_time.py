"""How long the attention of one layer takes on the machine at hand: paged, and over contiguous keys and values."""

from __future__ import annotations

import time
from itertools import accumulate

import numpy as np

HEADS, DIM, BLOCK = 40, 128, 16  # OPT-13B's, and vLLM's blocks
ROUNDS = 9
# Calls take turns on caches that together are at least this big: nothing is left in the CPU's own.
ROTATE_BYTES = 200 * 10**6


def kernel_us(batch: int, context: int) -> tuple[str, float, float, float, float]:
    """(the kernel's name, microseconds over scattered blocks, of the same kernel over one run a sequence, of torch's
    attention over contiguous keys and values, and the first over the second) of a decode in float32: medians of the
    process's own CPU time over threads, so that other work of the machine counts little, and of the rounds' own ratios.
    Imports torch."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from pagedlab.kernels import memory
    from pagedlab.kernels.base import KERNELS, PagedBatch

    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        """In memory as the engine has it."""
        return memory.zeros(1, shape, torch.float32, torch.device("cpu"))[0].uniform_(-1.7, 1.7, generator=generator)

    blocks = batch * -(-context // BLOCK)
    copies = max(1, -(-ROTATE_BYTES // (2 * 4 * batch * context * HEADS * DIM)))
    paged = [(drawn(blocks, BLOCK, HEADS, DIM), drawn(blocks, BLOCK, HEADS, DIM)) for _ in range(copies)]
    flat = [(drawn(batch, HEADS, context, DIM), drawn(batch, HEADS, context, DIM)) for _ in range(copies)]
    runs = [(drawn(batch, context, HEADS, DIM), drawn(batch, context, HEADS, DIM)) for _ in range(copies)]
    query = drawn(batch, HEADS, DIM)
    starts = list(accumulate([1] * batch, initial=0))

    def step(tables: torch.Tensor) -> PagedBatch:
        return PagedBatch(
            slot_mapping=torch.full((batch,), -1),
            block_tables=tables.view(batch, -1).int(),
            context_lens=torch.full((batch,), context),
            query_start=torch.tensor(starts),
            num_decodes=batch,
            starts=starts,
            contexts=[context] * batch,
        )

    scattered, whole = step(torch.randperm(blocks, generator=generator)), step(torch.arange(batch))
    kernel, scale = KERNELS["cpu"](), DIM**-0.5

    def over_blocks(i: int) -> None:
        kernel.decode(query, *paged[i], scattered, scale)

    def over_runs(i: int) -> None:
        kernel.decode(query, *runs[i], whole, scale)

    def contiguous(i: int) -> None:
        scaled_dot_product_attention(query.unsqueeze(2), *flat[i], scale=scale)

    calls = (over_blocks, over_runs, contiguous)
    took = np.empty((ROUNDS, len(calls)))
    with torch.inference_mode():
        for call in calls:
            call(0)  # what is compiled at first use is
        for number in range(ROUNDS):
            for side, call in enumerate(calls):
                start = time.process_time()
                for i in range(copies):
                    call(i)
                took[number, side] = (time.process_time() - start) / copies / torch.get_num_threads()
    us = np.median(took, axis=0) * 1e6
    return kernel.name, float(us[0]), float(us[1]), float(us[2]), float(np.median(took[:, 0] / took[:, 1]))
