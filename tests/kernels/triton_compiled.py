"""The Triton kernels' machine code without a GPU: compiled ahead of time through the project's own launchers.

A driver that is none says what the target is; a launch then specialises on alignments and strides as it would on a
GPU, compiles, and stops short of running. What came out is read with the cuobjdump that Triton brings along.
`test_triton.py` runs this file, in a process of its own a target: one process cannot both interpret and compile.

That numbers are right is shown in triton_interpreted.py, and how fast it is only on a GPU. Here: no spill to local
memory, registers within a budget, 16-byte accesses to keys and values, products on the tensor cores.
"""

from __future__ import annotations

import os
import re
import subprocess
import types
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from pagedlab.kernels import triton_configs as configs
from pagedlab.kernels.base import KERNELS, PagedBatch

ARCHS = [int(arch) for arch in os.environ.get("PAGEDLAB_AOT_ARCHS", "80,90,100").split(",")]
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TENSOR_CORES = {80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}

# Most registers a thread, by kernel and size class: the highest of Triton 3.6, 3.7.1 and 3.9 and some slack; 3.8 fits.
# 64 K registers a multiprocessor: at 128 a decode has 4 programs of 4 warps there, at 80 it has 6.
BUDGET = {
    ("decode_kernel", (16, 64)): 80,
    ("decode_kernel", (16, 128)): 104,
    ("decode_kernel", (16, 256)): 176,
    ("decode_kernel", (32, 64)): 80,
    ("decode_kernel", (32, 128)): 80,
    ("prefill_kernel", (16, 64)): 192,
    ("prefill_kernel", (16, 128)): 220,
    ("prefill_kernel", (16, 256)): 255,
    ("prefill_kernel", (32, 64)): 96,
    ("prefill_kernel", (32, 128)): 104,
}
SHARED = 99 * 1024  # what a program can have on every GPU since sm_80


class Driver:
    """As much of a driver as a compilation asks for."""

    def __init__(self, arch):
        self.arch = arch

    def get_current_target(self):
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self):
        return self.arch  # compiled kernels are kept by device

    def get_current_stream(self, device):
        return 0

    def get_active_torch_device(self):
        return torch.device("cpu")

    def map_python_to_cpp_type(self, kind):
        return kind


@dataclass
class Code:
    kernel: str
    registers: int
    stack: int
    shared: int
    warps: int
    opcodes: Counter[str]

    def count(self, pattern):
        return sum(n for opcode, n in self.opcodes.items() if re.search(pattern, opcode))


def read(kernel, compiled, folder):
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    usage, sass = (
        subprocess.run([CUOBJDUMP, option, cubin], capture_output=True, text=True, check=True).stdout
        for option in ("-res-usage", "-sass")
    )
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    opcodes = Counter(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.]+)", sass, re.MULTILINE))
    return Code(kernel, int(found[1]), int(found[2]), compiled.metadata.shared, compiled.metadata.num_warps, opcodes)


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """compiled(arch, calls, ...): the code of every kernel that calls(kernel) launches."""
    launched = []
    launch = JITFunction.run

    def compile_only(self, *arguments, grid, warmup, **options):
        code = launch(self, *arguments, grid=grid, warmup=True, **options)
        launched.append((self.fn.__name__, code))
        return code

    monkeypatch.setattr(JITFunction, "run", compile_only)
    gpu = types.SimpleNamespace(name="a GPU that nobody has tuned", multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)

    def run(arch, calls, tuning=None, splits=4):
        triton.runtime.driver.set_active(Driver(arch))
        launched.clear()
        calls(KERNELS["triton"](tuning, splits))
        return [read(name, code, tmp_path) for name, code in launched]

    return run


def attention(dtype, head_dim, page, group=3, pad=0, parts=("decode", "prefill")):
    """calls: a decode and a prefill. pad: elements between the heads, of which there should be none."""

    def calls(kernel):
        cache = torch.empty(8, page, 2, head_dim + pad, dtype=dtype)[..., :head_dim]
        query = torch.empty(6, 2 * group, head_dim, dtype=dtype)
        tables = torch.zeros(3, 16, dtype=torch.int32)
        lengths, starts = torch.zeros(3, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
        batch = PagedBatch(lengths, tables, lengths, starts, 2, [0, 1, 2, 6], [5, 5, 9])
        queries = {"decode": query[:2], "prefill": query[2:]}
        for part in parts:
            getattr(kernel, part)(queries[part], cache, cache, batch, 0.1)

    return calls


def verify(code, arch, dtype, head_dim, tuning):
    """AssertionError unless the code is as it should be."""
    assert code.stack == 0, f"{code.kernel}: {code.stack} bytes of local memory"
    assert code.count(r"^(LDL|STL)") == 0, f"{code.kernel}: spills"
    assert code.shared <= SHARED
    if code.kernel == "merge_kernel":
        return
    size = configs.size_class(dtype.itemsize, head_dim)
    launch = (tuning.decode if code.kernel == "decode_kernel" else tuning.prefill)[size]
    tile_bytes = launch.tile * size[1] * dtype.itemsize
    accesses = max(1, tile_bytes // (16 * 32 * launch.warps))
    assert code.count(r"^(LDG|LDGSTS)\..*128") >= 2 * accesses, f"{code.kernel}: narrow loads of keys and values"
    assert code.count(r"^(LDG|LDGSTS)\..*[US](8|16)\b") == 0, f"{code.kernel}: loads of single elements"
    assert code.registers <= BUDGET[code.kernel, size], f"{code.kernel}: {code.registers} registers"
    if dtype.itemsize == 2:
        opcode = "HMMA" if code.kernel == "decode_kernel" else TENSOR_CORES[arch]
        assert code.count(f"^{opcode}") > 0, f"{code.kernel}: no {opcode}"


bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
CASES = [
    *((arch, bf16, dim, page) for arch in (80, 90, 100) for dim, page in ((64, 16), (128, 16))),
    *((arch, bf16, 80, 128) for arch in (80, 90)),  # padded to 128; a tile within a page
    *((arch, f32, 64, 16) for arch in (80, 90)),
    (90, f16, 64, 16),
    (90, bf16, 256, 16),
    (80, f32, 128, 16),
]


@pytest.mark.parametrize(("arch", "dtype", "head_dim", "page"), [case for case in CASES if case[0] in ARCHS])
def test_attention(compiled, arch, dtype, head_dim, page):
    tuning = configs.load("a GPU that nobody has tuned")
    codes = compiled(arch, attention(dtype, head_dim, page))
    assert [code.kernel for code in codes] == ["decode_kernel", "merge_kernel", "prefill_kernel"]
    for code in codes:
        print(arch, dtype, head_dim, page, code)
        verify(code, arch, dtype, head_dim, tuning)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("dtype", "dim", "page"), [(bf16, 64, 16), (f32, 80, 1)])
def test_writes_and_copies_move_sixteen_bytes_at_a_time(compiled, arch, dtype, dim, page):
    def calls(kernel):
        rows = torch.empty(6, 1, dim, dtype=dtype)
        cache = torch.empty(8, page, 1, dim, dtype=dtype)
        kernel.write_kv(rows, rows, cache, cache, torch.zeros(6, dtype=torch.int64))
        kernel.copy_blocks([cache], [cache], torch.zeros(3, 2, dtype=torch.int64))

    codes = compiled(arch, calls)
    assert [code.kernel for code in codes] == ["write_kernel", "copy_kernel"]
    for code in codes:
        assert code.stack == 0
        assert code.registers <= 64
        assert code.count(r"^LDG\.E\.128") > 0
        assert code.count(r"^STG\.E\.128") == code.count(r"^STG")
        assert code.count(r"^LDG.*[US](8|16)\b") == 0


# ---- the checks can fail ------------------------------------------------------------------------------------------


@pytest.mark.skipif(90 not in ARCHS, reason="shown on sm_90 alone")
@pytest.mark.parametrize(
    ("parts", "launch", "pad", "complaint"),
    [
        # 65 elements from head to head: no address is known to be a multiple of 16.
        (("decode", "prefill"), None, 1, "decode_kernel: narrow loads.*prefill_kernel: loads of single elements"),
        # What spills takes long to compile: one kernel each.
        (("decode",), configs.Launch(tile=128, warps=1, stages=2), 0, "bytes of local memory"),
        (("prefill",), configs.Launch(tile=128, warps=2, stages=2, rows=64), 0, "registers|bytes of local memory"),
    ],
    ids=["an odd stride", "one warp", "two warps"],
)
def test_a_fault_is_found(compiled, parts, launch, pad, complaint):
    found = configs.load("a GPU that nobody has tuned")
    size = (16, 128)
    tuning = configs.Tuning(2, {size: launch or found.decode[size]}, {size: launch or found.prefill[size]})
    found_faults = []
    for code in compiled(90, attention(bf16, 128, 16, pad=pad, parts=parts), tuning):
        try:
            verify(code, 90, bf16, 128, tuning)
        except AssertionError as error:
            found_faults.append(str(error))
    assert re.search(complaint, " ".join(found_faults), re.DOTALL), found_faults


@pytest.mark.skipif(90 not in ARCHS, reason="shown on sm_90 alone")
def test_missing_tensor_cores_are_found(compiled):
    """fp32 products, held against what half precision must do."""
    tuning = configs.load("a GPU that nobody has tuned")
    for code in compiled(90, attention(f32, 64, 16)):
        code.opcodes.update({"LDG.E.128": 99})
        if code.kernel != "merge_kernel":
            with pytest.raises(AssertionError, match=r"no (HMMA|HGMMA)"):
                verify(code, 90, bf16, 64, tuning)
