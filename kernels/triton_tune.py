"""`python -m pagedlab.kernels.triton_tune [16/64 ...]`: the fastest launch configurations of the GPU here, into tuned/.

Every candidate is timed as it will run, through the kernel class, on caches larger than the last-level cache. One that
does not compile or asks for too much shared memory is passed over. A size class is some hundred compilations of seconds
each; its winners are written as soon as they are known. Nothing else should use the GPU meanwhile.

Never run on a GPU so far: the tests drive it with a clock of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import torch

from pagedlab.core.errors import ConfigError
from pagedlab.kernels import triton_configs as configs
from pagedlab.kernels.triton import TritonKernel
from pagedlab.kernels.uniform import Uniform, uniform

_PAGE = 16  # the block size to tune for: the usual one, and the one that asks most of the loads
_KV_HEADS, _GROUP = 8, 4


def tune(only: tuple[tuple[int, int], ...] = ()) -> Path:
    """The fastest Launch of each size class (those of `only`, else all), starting from what is known of this GPU, in
    its file."""
    if not torch.cuda.is_available():
        raise ConfigError("triton_tune: this torch sees no CUDA device, expected the one to tune for")
    gpu = torch.cuda.get_device_name()
    known = configs.load(gpu)
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
        configs.save(gpu, configs.Tuning(per_sm, decode, prefill))
        del batch, alone, prompts  # before the next ones are made: gigabytes each
    return configs.file_of(gpu)


# (sequences, context, queries of each): a full batch, a lone long sequence, chunks behind a prefix.
_SHAPES = ((128, 4096, 1), (1, 65536, 1), (4, 4096, 2048))


def _decodes() -> Iterator[configs.Launch]:
    for tile, warps, stages in product((16, 32, 64, 128), (2, 4, 8), (2, 3, 4)):
        yield configs.Launch(tile, warps, stages)


def _prefills() -> Iterator[configs.Launch]:
    for rows, tile, warps, stages in product((32, 64, 128), (16, 32, 64, 128), (4, 8), (2, 3, 4)):
        yield configs.Launch(tile, warps, stages, rows)


def _problem(dtype: torch.dtype, head_dim: int, sequences: int, context: int, queries: int) -> Uniform:
    heads = _KV_HEADS * _GROUP, _KV_HEADS
    return uniform(sequences, context, queries, heads, head_dim, _PAGE, dtype, "cuda")


def _time(problem: Uniform, programs_per_sm: int, launch: configs.Launch) -> float:
    """Milliseconds of one call, the median of some 50 ms of them."""
    table = {configs.size_class(problem.query.element_size(), problem.query.shape[2]): launch}
    call = problem.attend(TritonKernel(configs.Tuning(programs_per_sm, table, table)))
    do_bench: Callable[..., Any] = import_module("triton.testing").do_bench
    return float(do_bench(call, warmup=10, rep=50, quantiles=(0.5,)))


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
        except RuntimeError as error:
            if "PassManager" not in str(error):  # all that Triton says where a pass of its compiler fails
                raise
            continue
        if taken < least:
            best, least = candidate, taken
    if best is None:
        raise ConfigError("triton_tune: no launch configuration works on this GPU")
    print(f"{best}: {least:.3f} ms", flush=True)
    return best


def main() -> int:
    """Arguments: size classes such as 16/64 (bits of the dtype, head size), else all. Prints the file written."""
    known = {f"{bits}/{size}": (bits, size) for bits, size in configs.load("any").decode}
    try:
        for word in sys.argv[1:]:
            if word not in known:
                raise ConfigError(f"triton_tune: {word} is no size class, expected some of {', '.join(known)}")
        print(tune(tuple(known[word] for word in sys.argv[1:])))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
