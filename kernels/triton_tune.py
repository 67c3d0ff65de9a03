"""`python -m pagedlab.kernels.triton_tune`: the fastest launch configurations of the GPU at hand, into tuned/.

Every candidate is timed as it will run, through the kernel class, on caches larger than the last-level cache. One that
does not compile or asks for too much shared memory is passed over. Some minutes; nothing else should use the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, TypeAlias

import torch

from pagedlab.core.errors import ConfigError
from pagedlab.kernels import triton_configs as configs
from pagedlab.kernels.base import PagedBatch
from pagedlab.kernels.triton import TritonKernel

_PAGE = 16  # the block size to tune for: the usual one, and the one that asks most of the loads
_KV_HEADS, _GROUP = 8, 4

_Problem: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, PagedBatch]


def tune(only: tuple[tuple[int, int], ...] | None = None) -> configs.Tuning:
    """The fastest Launch of each size class (those of `only`, else all), starting from what is known of this GPU."""
    if not torch.cuda.is_available():
        raise ConfigError("triton_tune: this torch sees no CUDA device, expected the one to tune for")
    known = configs.load(torch.cuda.get_device_name())
    decode, prefill = dict(known.decode), dict(known.prefill)
    per_sm = known.programs_per_sm
    for bits, size in only or tuple(known.decode):
        dtype = torch.float32 if bits == 32 else torch.bfloat16
        batch, alone, prompts = (_problem(dtype, size, *shape) for shape in _SHAPES)
        # On a full batch, which nothing splits: programs_per_sm has no say.
        decode[bits, size] = _fastest(_decodes(), partial(_time, batch, per_sm))
        prefill[bits, size] = _fastest(_prefills(), partial(_time, prompts, per_sm))
        if (bits, size) == (16, 128):
            per_sm = _fastest((1, 2, 3, 4, 6), partial(_time, alone, launch=decode[bits, size]))
    return configs.Tuning(per_sm, decode, prefill)


# (decodes, prefills, context, queries of each prefill): a full batch, a lone long sequence, a chunk behind a prefix.
_SHAPES = ((128, 0, 4096, 1), (1, 0, 65536, 1), (0, 4, 4096, 2048))


def _decodes() -> Iterator[configs.Launch]:
    for tile, warps, stages in product((16, 32, 64, 128), (2, 4, 8), (2, 3, 4)):
        yield configs.Launch(tile, warps, stages)


def _prefills() -> Iterator[configs.Launch]:
    for rows, tile, warps, stages in product((32, 64, 128), (16, 32, 64, 128), (4, 8), (2, 3, 4)):
        yield configs.Launch(tile, warps, stages, rows)


def _problem(dtype: torch.dtype, head_dim: int, decodes: int, prefills: int, context: int, queries: int) -> _Problem:
    """query, k_cache, v_cache, batch: all sequences of one length, their blocks in random order."""
    device = torch.device("cuda")
    sequences, blocks = decodes + prefills, -(-context // _PAGE)
    starts = [s * queries for s in range(sequences + 1)]
    shape = (sequences * blocks, _PAGE, _KV_HEADS, head_dim)
    batch = PagedBatch(
        slot_mapping=torch.full((starts[-1],), -1, dtype=torch.int64, device=device),
        block_tables=torch.randperm(sequences * blocks, device=device).int().view(sequences, blocks),
        context_lens=torch.full((sequences,), context, dtype=torch.int64, device=device),
        query_start=torch.tensor(starts, device=device),
        num_decodes=decodes,
        starts=starts,
        contexts=[context] * sequences,
    )
    query = torch.randn(starts[-1], _KV_HEADS * _GROUP, head_dim, device=device).to(dtype)
    return query, torch.randn(shape, device=device, dtype=dtype), torch.randn(shape, device=device, dtype=dtype), batch


def _time(problem: _Problem, programs_per_sm: int, launch: configs.Launch) -> float:
    """Milliseconds of one call, the median of some 50 ms of them."""
    query, k_cache, v_cache, batch = problem
    table = {configs.size_class(query.element_size(), query.shape[2]): launch}
    kernel = TritonKernel(configs.Tuning(programs_per_sm, table, table))
    call = kernel.decode if batch.num_decodes else kernel.prefill
    do_bench: Callable[..., Any] = import_module("triton.testing").do_bench
    return float(
        do_bench(
            lambda: call(query, k_cache, v_cache, batch, query.shape[-1] ** -0.5), warmup=10, rep=50, quantiles=(0.5,)
        )
    )


def _fastest(candidates: Any, time: Callable[[Any], float]) -> Any:
    """The candidate with the least time; those that cannot be launched here are none."""
    runtime_errors = import_module("triton.runtime.errors")
    compiler_errors = import_module("triton.compiler.errors")
    impossible = (runtime_errors.OutOfResources, runtime_errors.PTXASError, compiler_errors.CompilationError)
    best, least = None, float("inf")
    for candidate in candidates:
        try:
            taken = time(candidate)
        except impossible:
            continue
        if taken < least:
            best, least = candidate, taken
    if best is None:
        raise ConfigError("triton_tune: no launch configuration works on this GPU")
    print(f"{best}: {least:.3f} ms", flush=True)
    return best


def main() -> int:
    """Arguments: size classes such as 16/64, else all. Prints the file written."""
    only = tuple((int(bits), int(size)) for bits, size in (word.split("/") for word in sys.argv[1:]))
    print(configs.save(torch.cuda.get_device_name(), tune(only or None)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
