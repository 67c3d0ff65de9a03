"""Every kernel, in each dtype it has, against attention in float64: the problems of the conformance suite.

`python -m pagedlab.device_check.numerics KERNEL ...` is the smallest of them alone, for a memory checker to watch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import torch

from pagedlab.device_check.base import Bench, Row
from pagedlab.kernels.base import Kernel
from pagedlab.kernels.problems import Problem

_HALF_FIRST = (torch.bfloat16, torch.float16, torch.float32)

# What is written is a step of decodes, whole prompts and chunks after cached tokens, ends of blocks among the lengths.
_PREFILLS = ((33, 33), (150, 40), (65, 1), (18, 2))
_SHAPES: tuple[dict[str, Any], ...] = (
    {"decodes": (1, 15, 16, 17, 130, 700), "block_size": 16, "kv_heads": 2, "group": 3, "head_dim": 64},
    {"decodes": (1, 31, 130, 300), "block_size": 16, "kv_heads": 2, "group": 4, "head_dim": 128},
    {"decodes": (5, 129, 260), "block_size": 128, "kv_heads": 1, "group": 8, "head_dim": 80},
    {"decodes": (1, 9, 70), "block_size": 1, "kv_heads": 2, "group": 1, "head_dim": 64, "window": 33},
)
_TINY: dict[str, Any] = {"decodes": (1, 17), "prefills": ((20, 5),), "block_size": 16, "head_dim": 64, "kv_heads": 1}


def numerics(bench: Bench) -> Iterator[Row]:
    for shape in _SHAPES:
        for dtype in _HALF_FIRST:
            for kernel in bench.made(dtype, shape["head_dim"], shape["block_size"]):
                yield judged(kernel, Problem(prefills=_PREFILLS, dtype=dtype, device=bench.device, **shape))
    for dtype in (torch.bfloat16, torch.float32):
        for kernel in bench.made(dtype, 64, 16):
            yield moves(kernel, dtype, bench.device)
    for kernel in bench.made(torch.bfloat16, 64, 16):
        problem = Problem((100,), ((100, 30),), 16, dtype=torch.bfloat16, device=bench.device)
        problem.move_to_the_end_of(bench.sizes.pool_elements // (16 * 2 * 64) + 20)
        yield judged(kernel, problem, f"attention in a pool of {problem.k_cache.numel()} elements")


def judged(kernel: Kernel, problem: Problem, what: str = "attention") -> Row:
    """error_of_allowed: the largest error in units of the tolerance, null where it is not a number."""
    problem.write(kernel)
    error = problem.error(problem.attend(kernel))
    _, block_size, kv_heads, head_dim = problem.k_cache.shape
    return {
        "kernel": kernel.name,
        "what": what,
        "dtype": str(problem.dtype).removeprefix("torch."),
        "head_dim": head_dim,
        "group": problem.queries[0].shape[1] // kv_heads,
        "block_size": block_size,
        "window": problem.window,
        "error_of_allowed": error if math.isfinite(error) else None,
        "passed": error <= 1 and problem.untouched(),
    }


def moves(kernel: Kernel, dtype: torch.dtype, device: str) -> Row:
    """Blocks copied within the cache, to the host and back, bit for bit."""
    shape, host_shape = (40, 16, 2, 64), (50, 16, 2, 64)
    caches = [torch.randn(shape, device=device).to(dtype) for _ in range(4)]
    expected = [cache.clone() for cache in caches]
    pinned = device.startswith("cuda")
    host = [torch.zeros(host_shape, dtype=dtype, pin_memory=pinned) for _ in caches]
    copies = torch.tensor([[0, 39], [1, 38], [0, 37]])
    out = torch.tensor([[i, 2 * i + 1] for i in range(20)])
    for cache in expected:
        cache[copies[:, 1].to(device)] = cache[copies[:, 0].to(device)]
    kernel.copy_blocks(caches[:2], caches[2:], copies.to(device))
    right = all(map(torch.equal, caches, expected))
    kernel.swap_blocks(caches, host, out)
    for cache in caches:
        cache[out[:, 0].to(device)] = 0
    kernel.swap_blocks(host, caches, out.flip(1))
    right &= all(map(torch.equal, caches, expected))
    return {
        "kernel": kernel.name,
        "what": "copy_blocks, swap_blocks",
        "dtype": str(dtype).removeprefix("torch."),
        "passed": right,
    }


def main() -> int:
    """Arguments: the device, then kernels. Exit code 1 where a result is wrong."""
    bench = Bench(kernels=tuple(sys.argv[2:]), device=sys.argv[1])
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        for kernel in bench.made(dtype, 64, 16):
            rows.append(judged(kernel, Problem(dtype=dtype, device=bench.device, **_TINY)))
            rows.append(moves(kernel, dtype, bench.device))
    return 0 if rows and all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
