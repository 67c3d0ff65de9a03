"""What a CUDA graph saves: the decodes of a small batch, layer after layer, launched one by one and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from pagedlab.device_check.base import Bench, Row
from pagedlab.device_check.timing import median_ms
from pagedlab.executor.graphs import Record, cuda_record
from pagedlab.kernels.base import Kernel
from pagedlab.kernels.uniform import Uniform, uniform

DTYPE = torch.bfloat16
_BLOCK = 16


def graphs(bench: Bench, record: Record = cuda_record) -> Iterator[Row]:
    """passed: the replay gives what the launches gave, also after the contexts were shortened in place."""
    sizes = bench.sizes
    heads = sizes.heads, sizes.kv_heads
    for batch in sizes.graph_batches:
        for kernel in bench.made(DTYPE, sizes.head_dim, _BLOCK):
            if not kernel.capturable:
                continue
            step = uniform(batch, sizes.graph_context, 1, heads, sizes.head_dim, _BLOCK, DTYPE, bench.device)
            launches = _layers(step, kernel, sizes.layers)
            replay = record(launches)
            right = torch.equal(replay(), launches())
            step.batch.context_lens -= 5
            right &= torch.equal(replay(), launches())
            eager_ms = median_ms(launches, bench.device, sizes.repeats)
            replay_ms = median_ms(replay, bench.device, sizes.repeats)
            yield {
                "kernel": kernel.name,
                "batch": batch,
                "layers": sizes.layers,
                "context": sizes.graph_context,
                "eager_ms": eager_ms,
                "replay_ms": replay_ms,
                "ratio": replay_ms / eager_ms,
                "passed": right,
            }


def _layers(step: Uniform, kernel: Kernel, layers: int) -> Callable[[], torch.Tensor]:
    """A layer's output is the query of the next."""
    scale = step.query.shape[-1] ** -0.5

    def launches() -> torch.Tensor:
        step.batch.scratch.clear()  # as an executor's recording does
        x = step.query
        for _ in range(layers):
            x = kernel.decode(x, step.k_cache, step.v_cache, step.batch, scale)
        return x

    return launches
