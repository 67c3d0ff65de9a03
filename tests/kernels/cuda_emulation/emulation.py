"""The CUDA sources, whole or mutated, built by g++ with cuda_cpu.h, and the `cupy` kernel launching those."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from filelock import FileLock

from pagedlab.core.errors import ConfigError
from pagedlab.kernels.cupy import CupyKernel, include_folder, source

_HERE = Path(__file__).resolve().parent
_BUILDS = _HERE.parents[2] / ".pytest_cache" / "cuda_emulation"

# On the host the CUDA headers include some that the package nvidia-cuda-runtime does not have: nvidia-cuda-crt and
# nvidia-cuda-cccl do.
_HEADERS = ("cuda_fp16.h", "cuda_bf16.h", "crt/host_defines.h", "nv/target")

# Of the kernels built: (variant, file, name expression) to a number.
Index = dict[tuple[str, str, str], int]

FILES = ("decode.cu", "prefill.cu", "cache.cu")
TYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


@dataclass(frozen=True)
class Variant:
    """The sources with some text replaced, and what of them to instantiate: (file, name expression)."""

    name: str
    kernels: tuple[tuple[str, str], ...]
    mutations: tuple[tuple[str, str, str], ...] = ()  # (file, text, what to put in its place)

    def text(self, file: str) -> str:
        text = source(file)
        for mutated, before, after in self.mutations:
            if mutated == file:
                assert before in text, f"{self.name}: {file} no longer holds {before!r}"
                text = text.replace(before, after)
        return text


def attention(dtype: torch.dtype, head_dim: int, group: int) -> tuple[tuple[str, str], ...]:
    kind = TYPES[dtype]
    return (
        ("decode.cu", f"decode<{kind}, {head_dim}, {group}>"),
        ("decode.cu", f"merge<{kind}, {head_dim}>"),
        ("prefill.cu", f"prefill<{kind}, {head_dim}, {group}>"),
    )


def skip_without_tools() -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ to run CUDA C on the CPU with")
    try:
        include_folder(needed=_HEADERS)
    except ConfigError as error:
        pytest.skip(str(error))


def _translation_unit(variants: Sequence[Variant]) -> tuple[str, Index]:
    """All variants in one, each file of each in a namespace: the CUDA headers are slow to parse. And what is where."""
    text, index, entries = ['#include "cuda_cpu.h"\n#include "replay.h"\n'], {}, []
    for v, variant in enumerate(variants):
        for f, file in enumerate(FILES):
            wanted = [name for of, name in variant.kernels if of == file]
            if not wanted:
                continue
            text.append(f"namespace v{v}_{f} {{\n{variant.text(file)}\n}}\n")
            for name in wanted:
                i = index[variant.name, file, name] = len(entries)
                text.append(
                    f'extern "C" void kernel_{i}(const unsigned* grid, unsigned threads, void** arguments) {{\n'
                    f"  emulation::launch(v{v}_{f}::{name}, grid, threads, arguments);\n}}\n"
                )
                entries.append(f"kernel_{i}")
    table = ", ".join(entries)
    text.append(
        "int main(int, char** arguments) {\n"
        f"  const emulation::Kernel kernels[] = {{{table}}};\n"
        "  return emulation::replay(arguments[1], kernels);\n}\n"
    )
    return "".join(text), index


def build(variants: Sequence[Variant], flags: Sequence[str], suffix: str) -> tuple[Path, Index]:
    """Compile, or find what was compiled of the same text; two test workers may ask at once."""
    text, index = _translation_unit(variants)
    command = ["g++", "-std=c++20", "-w", "-fno-strict-aliasing", "-pthread", *flags]
    command += [f"-I{_HERE}", f"-I{include_folder(needed=_HEADERS)}"]
    parts = [text, *command, *((_HERE / name).read_text() for name in ("cuda_cpu.h", "replay.h"))]
    built = _BUILDS / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}{suffix}"
    _BUILDS.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{built}.lock"):
        if not built.exists():
            unit = built.with_suffix(".cpp")
            unit.write_text(text)
            part = built.with_suffix(".part")
            done = subprocess.run([*command, "-o", part, unit], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-4000:]
            os.replace(part, built)
    return built, index


@dataclass(eq=False)
class Library:
    """Kernels of some variants, callable in this process."""

    path: Path
    index: Index
    functions: ctypes.CDLL = field(init=False)

    def __post_init__(self) -> None:
        self.functions = ctypes.CDLL(str(self.path))

    @classmethod
    def of(cls, *variants: Variant) -> Library:
        return _library(variants)

    def run(
        self, variant: str, kernel: tuple[str, str], grid: Sequence[int], threads: int, arguments: Sequence[np.generic]
    ) -> None:
        kept = [np.array([value]) for value in arguments]
        pointers = (ctypes.c_void_p * len(kept))(*[value.ctypes.data for value in kept])
        function = getattr(self.functions, f"kernel_{self.index[variant, *kernel]}")
        function((ctypes.c_uint * 3)(*grid), ctypes.c_uint(threads), pointers)


@cache
def _library(variants: tuple[Variant, ...]) -> Library:
    return Library(*build(variants, ["-O1", "-shared", "-fPIC"], ".so"))


class EmulatedKernel(CupyKernel):
    """kernel=cupy, its own host code included, on CPU tensors. split_tokens: splits of this size, however short."""

    devices = ("cpu",)

    def __init__(self, library: Library, variant: str = "sound", split_tokens: int | None = None):
        super().__init__()
        self.built, self.variant, self.split_tokens = library, variant, split_tokens
        self.launched: list[tuple[str, tuple[int, int, int]]] = []

    def decode(self, *arguments, **options):
        def poisoned(shape, dtype, device):
            return torch.full(shape, float("nan"), dtype=dtype, device=device)

        with mock.patch.object(torch, "empty", poisoned):  # what a split leaves unwritten must not be read
            return super().decode(*arguments, **options)

    def _plan(self, batch, window, head_tiles, device):
        if self.split_tokens is None:
            return super()._plan(batch, window, head_tiles, device)
        visible = max(min(context, window or context) for context in batch.contexts[: batch.num_decodes])
        return -(-visible // self.split_tokens), self.split_tokens

    def _connect(self):
        pass

    def _multiprocessors(self, device):
        return 1

    def _launch(self, kernel, grid, threads, *arguments):
        self.launched.append((kernel[1].partition("<")[0], grid))
        values = [np.uint64(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in arguments]
        self.built.run(self.variant, kernel, grid, threads, values)

    def _copy_runs(self, sources, destinations, pairs, device):
        for source_, destination in zip(sources, destinations, strict=True):
            for i, j in pairs.tolist():
                destination[j] = source_[i]

    def _wait(self, device):
        pass


class Recording(EmulatedKernel):
    """Launches nothing: notes the launches, to be replayed by a program of its own."""

    def __init__(self, index: Index, split_tokens: int | None = None):
        CupyKernel.__init__(self)
        self.index, self.split_tokens = index, split_tokens
        self.buffers: dict[int, tuple[int, bytes]] = {}  # by address: number, content when first seen
        self.launches: list[tuple[tuple[str, str], list[int]]] = []
        self._alive: list[torch.Tensor] = []  # or a freed tensor's address would come again

    def _launch(self, kernel, grid, threads, *arguments):
        numbers = [*grid, threads, len(arguments)]
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                storage = argument.untyped_storage()
                address = storage.data_ptr()
                self._alive.append(argument)
                if address not in self.buffers:
                    self.buffers[address] = (len(self.buffers), ctypes.string_at(address, storage.nbytes()))
                numbers += [self.buffers[address][0], argument.data_ptr() - address]
            else:
                numbers += [-1, *struct.unpack("<q", argument.tobytes().ljust(8, b"\0"))]
        self.launches.append((kernel, numbers))

    def save(self, path: Path, variant: str) -> None:
        """For replay.h. The launches are of one variant's kernels."""
        number = struct.Struct("<q").pack
        with path.open("wb") as file:
            file.write(number(len(self.buffers)))
            for _, content in self.buffers.values():
                file.write(number(len(content)) + content)
            file.write(number(len(self.launches)))
            for kernel, numbers in self.launches:
                file.write(number(self.index[variant, *kernel]) + b"".join(map(number, numbers)))
