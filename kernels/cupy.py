"""CUDA C kernels (kernels/cuda/*.cu), compiled by NVRTC through CuPy when first used, on torch's tensors and stream."""

from __future__ import annotations

import math
import os
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pagedlab.core.errors import ConfigError
from pagedlab.kernels.base import KERNELS, Kernel, PagedBatch

# What a launch takes: the address of a tensor, or a number of exactly the parameter's type.
Argument = torch.Tensor | np.generic

_SOURCES = Path(__file__).parent / "cuda"
_TYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
_LOG2_E = math.log2(math.e)
_NO_WINDOW = 2**31 - 1

_PREFILL_ROWS = 32  # prefill.cu's ROWS
_COPY_THREADS = 256  # cache.cu's

# Tokens of a split: not fewer, or the merge costs more than it saves; a multiple of what a CTA takes at once.
_MIN_SPLIT, _SPLIT_STEP, _MAX_SPLITS = 256, 64, 64
_WAVES = 8  # CTAs a multiprocessor to aim for: four fit, twice that evens out ragged lengths

# Copies between host and device of less than this are bound by their number: one kernel that reads and writes
# page-locked memory wins. Above, the copy engine does.
_SMALL_COPY = 32 * 1024


def source(file: str) -> str:
    """A .cu with the shared header put in its place. CuPy caches what it compiled by the text it was given: a header
    found by `#include` could change without being noticed."""
    text = (_SOURCES / file).read_text(encoding="utf-8")
    return text.replace('#include "paged.cuh"', (_SOURCES / "paged.cuh").read_text(encoding="utf-8"))


@cache
def include_folder(*, needed: tuple[str, ...] = ("cuda_fp16.h", "cuda_bf16.h")) -> Path:
    """The folder of the CUDA headers, which neither CuPy nor NVRTC brings along."""
    site = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    roots = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    candidates = [root / "include" for root in roots]
    candidates += sorted(site.glob("cu[0-9]*/include"), reverse=True)  # nvidia-cuda-runtime, CUDA 13 and later
    candidates += [site / "cuda_runtime" / "include", Path("/usr/local/cuda/include")]
    candidates += sorted(Path("/usr/local").glob("cuda-*/include"), reverse=True)
    for folder in candidates:
        if all((folder / name).is_file() for name in needed):
            return folder
    raise ConfigError(
        f"kernel=cupy: CUDA headers {', '.join(needed)} not found, expected a CUDA toolkit in CUDA_PATH or the "
        "package nvidia-cuda-runtime (pip install 'pagedlab[gpu]')"
    )


@KERNELS.register("cupy")
class CupyKernel(Kernel):
    """Any block size and group; a kernel is compiled per dtype, head size and group when first called for."""

    name = "cupy"
    dtypes = tuple(_TYPES)
    devices = ("cuda",)
    capturable = True
    head_dims = frozenset({64, 80, 96, 128})

    def __init__(self) -> None:
        self._functions: dict[tuple[int, str, str], Callable[..., None]] = {}
        self._address_tables: dict[tuple[int, ...], torch.Tensor] = {}
        self._connect()

    def write_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        scratch: dict[Any, Any] | None = None,
    ) -> None:
        tokens = slot_mapping.shape[0]
        if tokens == 0:
            return
        key, value = _rows(key), _rows(value)
        row_bytes = k_cache.shape[2] * k_cache.shape[3] * k_cache.itemsize
        unit, size = _unit(row_bytes)
        row_units = row_bytes // size
        blocks = min(-(-tokens * row_units // _COPY_THREADS), 2**16)
        self._launch(
            ("cache.cu", f"write_kv<{unit}>"),
            (blocks, 1, 1),
            _COPY_THREADS,
            key,
            np.int64(key.stride(0) * key.itemsize // size),
            value,
            np.int64(value.stride(0) * value.itemsize // size),
            k_cache,
            v_cache,
            slot_mapping.contiguous(),
            np.int64(tokens),
            np.int32(row_units),
        )

    def decode(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        sequences, heads, head_dim = query.shape
        _, block_size, kv_heads, _ = k_cache.shape
        kind, group = _TYPES[query.dtype], heads // kv_heads
        query, tables = _rows(query), _tables(batch)
        out = torch.empty((sequences, heads, head_dim), dtype=query.dtype, device=query.device)
        head_tiles = kv_heads * _head_tiles(group)
        key = ("cupy", window, head_tiles)
        if key not in batch.scratch:
            batch.scratch[key] = self._plan(batch, window, head_tiles, query.device)
        splits, split_tokens = batch.scratch[key]
        # Of one split nothing is read or written here, but an address there must be.
        partial = stats = out
        if splits > 1:
            partial = torch.empty((sequences, heads, splits, head_dim), dtype=torch.float32, device=query.device)
            stats = torch.empty((sequences, heads, splits, 2), dtype=torch.float32, device=query.device)
        shown = np.int32(_NO_WINDOW if window is None else window)
        self._launch(
            ("decode.cu", f"decode<{kind}, {head_dim}, {group}>"),
            (sequences, head_tiles, splits),
            128,
            query,
            np.int64(query.stride(0)),
            k_cache,
            v_cache,
            tables,
            np.int64(tables.stride(0)),
            batch.context_lens,
            out,
            partial,
            stats,
            np.float32(scale * _LOG2_E),
            np.int32(block_size),
            *_reciprocal(block_size),
            np.int32(kv_heads),
            shown,
            np.int32(split_tokens),
        )
        if splits > 1:
            self._launch(
                ("decode.cu", f"merge<{kind}, {head_dim}>"),
                (sequences * heads, 1, 1),
                head_dim,
                partial,
                stats,
                batch.context_lens,
                out,
                np.int32(heads),
                np.int32(splits),
                np.int32(split_tokens),
                shown,
            )
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
        tokens, heads, head_dim = query.shape
        _, block_size, kv_heads, _ = k_cache.shape
        kind, group = _TYPES[query.dtype], heads // kv_heads
        query, first = _rows(query), batch.num_decodes
        tables = _tables(batch)[first:]
        out = torch.empty((tokens, heads, head_dim), dtype=query.dtype, device=query.device)
        # A grid as wide as the longest prefill, CTAs beyond a shorter one's end return at once: a list of tiles would
        # have to be copied to the device, and waited for.
        longest = max(end - begin for begin, end in pairwise(batch.starts[first:]))
        self._launch(
            ("prefill.cu", f"prefill<{kind}, {head_dim}, {group}>"),
            (-(-longest * group // _PREFILL_ROWS), kv_heads, len(batch.contexts) - first),
            128,
            query,
            np.int64(query.stride(0)),
            k_cache,
            v_cache,
            tables,
            np.int64(tables.stride(0)),
            batch.context_lens[first:],
            batch.query_start[first:],
            out,
            np.float32(scale * _LOG2_E),
            np.int32(block_size),
            *_reciprocal(block_size),
            np.int32(kv_heads),
            np.int32(_NO_WINDOW if window is None else window),
        )
        return out

    def copy_blocks(
        self, k_caches: Sequence[torch.Tensor], v_caches: Sequence[torch.Tensor], pairs: torch.Tensor
    ) -> None:
        caches = [*k_caches, *v_caches]
        if pairs.shape[0] and caches:
            self._move(caches, caches, pairs, caches[0].device)

    def swap_blocks(
        self, sources: Sequence[torch.Tensor], destinations: Sequence[torch.Tensor], pairs: torch.Tensor
    ) -> None:
        if not (pairs.shape[0] and sources):
            return
        device, host = sources[0], destinations
        if device.device.type == "cpu":
            device, host = destinations[0], sources
        block_bytes = device[0].numel() * device.itemsize
        if block_bytes < _SMALL_COPY and all(tensor.is_pinned() for tensor in host):
            self._move(sources, destinations, pairs, device.device)
        else:
            self._copy_runs(sources, destinations, pairs, device.device)
        self._wait(device.device)

    def _move(
        self,
        sources: Sequence[torch.Tensor],
        destinations: Sequence[torch.Tensor],
        pairs: torch.Tensor,
        device: torch.device,
    ) -> None:
        """Whole blocks of all tensors in one launch; host tensors must be page-locked."""
        block_bytes = sources[0][0].numel() * sources[0].itemsize
        unit, size = _unit(block_bytes)
        pairs = pairs.to(device).contiguous()
        self._launch(
            ("cache.cu", f"copy_blocks<{unit}>"),
            (pairs.shape[0], len(sources), 1),
            _COPY_THREADS,
            self._addresses(sources, device),
            self._addresses(destinations, device),
            pairs,
            np.int64(block_bytes // size),
        )

    def _addresses(self, tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
        """int64 [tensors] on the device. A cache lives as long as its executor: made once."""
        addresses = tuple(tensor.data_ptr() for tensor in tensors)
        if addresses not in self._address_tables:
            self._address_tables[addresses] = torch.tensor(addresses, dtype=torch.int64, device=device)
        return self._address_tables[addresses]

    def _plan(self, batch: PagedBatch, window: int | None, head_tiles: int, device: torch.device) -> tuple[int, int]:
        """(splits, tokens of a split) for the step's decodes: splits of one size, so that lengths may differ."""
        visible = [min(context, window or context) for context in batch.contexts[: batch.num_decodes]]
        wanted = sum(visible) * head_tiles / (_WAVES * self._multiprocessors(device))
        tokens = max(_MIN_SPLIT, math.ceil(wanted), math.ceil(max(visible) / _MAX_SPLITS))
        tokens = -(-tokens // _SPLIT_STEP) * _SPLIT_STEP
        return -(-max(visible) // tokens), tokens

    # ---- CuPy; a test that runs the kernels elsewhere replaces what follows ----

    def _connect(self) -> None:
        """ConfigError when there is nothing to compile with, or to run on."""
        try:
            # By name: the checker knows no stubs of it, and it is not installed everywhere.
            self._cupy: Any = import_module("cupy")
        except ImportError:
            raise ConfigError("kernel=cupy: CuPy is not installed, try pip install 'pagedlab[gpu]'") from None
        if not (torch.cuda.is_available() and self._cupy.cuda.is_available()):
            raise ConfigError(
                "kernel=cupy: no CUDA device that both torch and CuPy see; on a machine with one, "
                "pip install 'pagedlab[gpu]' and a CUDA build of torch"
            )
        include_folder()

    def _multiprocessors(self, device: torch.device) -> int:
        return int(torch.cuda.get_device_properties(device).multi_processor_count)

    def _launch(self, kernel: tuple[str, str], grid: tuple[int, int, int], threads: int, *arguments: Argument) -> None:
        """Enqueue a kernel, (file, name expression), on torch's current stream of the first tensor's device."""
        first = next(argument for argument in arguments if isinstance(argument, torch.Tensor))
        index = first.device.index
        values = [np.uint64(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in arguments]
        with self._cupy.cuda.Device(index), self._stream(first.device):
            function = self._functions.get((index, *kernel))
            if function is None:
                function = self._functions[index, *kernel] = self._compile(*kernel)
            function(grid, (threads, 1, 1), tuple(values))

    def _compile(self, file: str, expression: str) -> Callable[..., None]:
        options = ("-std=c++17", f"-I{include_folder()}")
        module = self._cupy.RawModule(code=source(file), options=options, name_expressions=(expression,))
        function: Callable[..., None] = module.get_function(expression)
        return function

    def _stream(self, device: torch.device) -> Any:
        """Torch's current stream as CuPy's."""
        stream = torch.cuda.current_stream(device)
        if hasattr(stream, "__cuda_stream__") and hasattr(self._cupy.cuda.Stream, "from_external"):
            return self._cupy.cuda.Stream.from_external(stream)
        return self._cupy.cuda.ExternalStream(stream.cuda_stream, device.index)

    def _copy_runs(
        self,
        sources: Sequence[torch.Tensor],
        destinations: Sequence[torch.Tensor],
        pairs: torch.Tensor,
        device: torch.device,
    ) -> None:
        """One asynchronous copy per tensor and run of neighbouring blocks."""
        runtime = self._cupy.cuda.runtime
        stream = torch.cuda.current_stream(device).cuda_stream
        runs = _runs(pairs)
        with self._cupy.cuda.Device(device.index):
            for source_, destination in zip(sources, destinations, strict=True):
                size = source_[0].numel() * source_.itemsize
                for i, j, count in runs:
                    to, from_ = destination.data_ptr() + j * size, source_.data_ptr() + i * size
                    runtime.memcpyAsync(to, from_, count * size, runtime.memcpyDefault, stream)

    def _wait(self, device: torch.device) -> None:
        torch.cuda.current_stream(device).synchronize()


@cache
def _reciprocal(divisor: int) -> tuple[np.uint32, np.int32]:
    """(multiplier, shift): n // divisor is n * multiplier >> shift, 0 <= n < 2^31 (Granlund, Montgomery 1994)."""
    shift = 31 + (divisor - 1).bit_length()
    return np.uint32(-(-(1 << shift) // divisor)), np.int32(shift)


def _head_tiles(group: int) -> int:
    """CTAs of decode.cu a key-value head (its TILES)."""
    parts = 2 if group > 4 else 1
    return -(-group // (parts * (4 if group > 8 else -(-group // parts))))


def _tables(batch: PagedBatch) -> torch.Tensor:
    """The block tables, entries of a row next to each other."""
    tables = batch.block_tables
    return tables if tables.stride(1) == 1 else tables.contiguous()


def _rows(x: torch.Tensor) -> torch.Tensor:
    """x [T, heads, D] with the heads of a token in one piece that 16-byte loads can take."""
    stride = x.stride(0) * x.itemsize
    if x.stride(2) == 1 and x.stride(1) == x.shape[2] and x.data_ptr() % 16 == 0 and stride % 16 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _unit(size: int) -> tuple[str, int]:
    """The widest unit that so many bytes are a multiple of, and its size: 16 for every supported head size."""
    for unit, width in (("uint4", 16), ("uint2", 8), ("unsigned int", 4)):
        if size % width == 0:
            return unit, width
    return "unsigned short", 2


def _runs(pairs: torch.Tensor) -> list[tuple[int, int, int]]:
    """(source, destination, count): pairs whose blocks follow each other on both sides, together."""
    runs: list[tuple[int, int, int]] = []
    for i, j in pairs.tolist():
        if runs and (i, j) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((i, j, 1))
    return runs
