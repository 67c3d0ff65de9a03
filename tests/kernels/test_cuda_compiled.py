"""kernels/cuda/*.cu compiled by NVRTC for GPUs that need not be here: registers, spills, width of the loads."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
import torch

from pagedlab.core.errors import ConfigError
from pagedlab.kernels.cupy import include_folder, source
from tests.kernels.cuda_emulation.emulation import attention

ARCHS = ("sm_80", "sm_90")
# Every dtype and head size, every group: (dtype, head size, groups of one module).
MODULES = [
    (torch.float32, 64, (3,)),
    (torch.float32, 80, (1, 8)),
    (torch.float32, 128, (4,)),
    (torch.float16, 64, (1, 3, 8)),
    (torch.float16, 80, (4,)),
    (torch.float16, 96, (4, 8)),
    (torch.bfloat16, 64, (3, 4)),
    (torch.bfloat16, 96, (1, 16)),
    (torch.bfloat16, 128, (3, 4, 8)),
]
# Four CTAs of 128 threads a multiprocessor: 65536 / 512.
BUDGET = 128
ENTRY = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)


@cache
def compiled(text: str, names: tuple[str, ...], arch: str) -> tuple[bytes, str]:
    """(code, what ptxas said) of these name expressions. Loads nothing and asks for no GPU."""
    core = pytest.importorskip("cuda.core", reason="cuda-core (with NVRTC: cuda-core[cu13]) is not installed")
    try:
        folder = include_folder()
    except ConfigError as error:
        pytest.skip(str(error))
    log = StringIO()
    options = core.ProgramOptions(std="c++17", arch=arch, include_path=[str(folder)], ptxas_options=["-v"])
    code = core.Program(text, "c++", options).compile("cubin", name_expressions=names, logs=log).code
    return code, log.getvalue()


def resources(text: str, names: tuple[str, ...], arch: str) -> list[tuple[str, int, int]]:
    """(mangled name, bytes of stack and spills, registers) of each."""
    _, log = compiled(text, names, arch)
    found = [(name, sum(map(int, local)), int(registers)) for name, *local, registers in ENTRY.findall(log)]
    assert len(found) == len(names), log
    return found


def disassembler() -> str:
    """nvdisasm of the CUDA toolkit, or the one in Triton's wheel."""
    found = shutil.which("nvdisasm")
    triton = find_spec("triton")
    if found is None and triton is not None and triton.submodule_search_locations:
        bundled = Path(triton.submodule_search_locations[0]) / "backends" / "nvidia" / "bin" / "nvdisasm"
        found = str(bundled) if bundled.is_file() else None
    if found is None:
        pytest.skip("no nvdisasm: neither a CUDA toolkit that has it nor Triton")
    return found


def accesses(text: str, name: str, arch: str, folder: Path) -> Counter[str]:
    """How often each load and store instruction is in the machine code."""
    tool = disassembler()
    (folder / "x.cubin").write_bytes(compiled(text, (name,), arch)[0])
    listing = subprocess.run([tool, "-c", folder / "x.cubin"], capture_output=True, text=True, check=True).stdout
    return Counter(re.findall(r"\b(?:LDG|STG|LDL|STL|LD|ST)\.[.\w]+|\b(?:LDL|STL)\b", listing))


def wide_loads(dtype: torch.dtype, group: int) -> int:
    """Of decode: a key and a value a token met at once, and a query row a head of the warp."""
    heads = {1: 1, 3: 3, 4: 4, 8: 4}[group]
    return 2 * (2 if heads == 4 and dtype != torch.float32 else 4) + heads


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("dtype", "head_dim", "groups"), MODULES)
def test_attention_spills_nothing_and_keeps_to_its_registers(arch, dtype, head_dim, groups):
    kernels = dict.fromkeys(kernel for group in groups for kernel in attention(dtype, head_dim, group))
    for file in ("decode.cu", "prefill.cu"):
        names = tuple(name for of, name in kernels if of == file)
        for name, local, registers in resources(source(file), names, arch):
            assert local == 0, name
            assert registers <= (40 if "merge" in name else BUDGET), name


@pytest.mark.parametrize("arch", ARCHS)
def test_copies_spill_nothing(arch):
    names = tuple(f"{kernel}<{unit}>" for kernel in ("write_kv", "copy_blocks") for unit in ("uint4", "unsigned short"))
    for name, local, registers in resources(source("cache.cu"), names, arch):
        assert local == 0, name
        assert registers <= 48, name


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("dtype", "head_dim", "group"), [(torch.float32, 64, 3), (torch.float16, 64, 3), (torch.bfloat16, 128, 8)]
)
def test_queries_keys_and_values_are_loaded_16_bytes_at_a_time(arch, dtype, head_dim, group, tmp_path):
    for file, name in attention(dtype, head_dim, group):
        found = accesses(source(file), name, arch, tmp_path)
        assert not [access for access in found if access.startswith(("LDL", "STL"))], name
        assert not [access for access in found if access.startswith("LDG") and re.search(r"[US](8|16)", access)], name
        if file == "decode.cu" and "merge" not in name:
            assert found["LDG.E.128.CONSTANT"] == wide_loads(dtype, group), name
        elif file == "prefill.cu":
            assert found["LDG.E.128.CONSTANT"] >= 3, name  # queries, keys, values


@pytest.mark.parametrize("kernel", ["write_kv", "copy_blocks"])
def test_copies_move_16_bytes_at_a_time(kernel, tmp_path):
    found = accesses(source("cache.cu"), f"{kernel}<uint4>", "sm_90", tmp_path)
    assert found["LDG.E.128"] == found["STG.E.128"] >= 1
    assert not [access for access in found if re.fullmatch(r"STG\.E(\.U8|\.U16|\.64)?", access)]


# ---- the checks can fail -------------------------------------------------------------------------------------------

WIDE = "return __ldg(reinterpret_cast<const uint4*>(from));"
SCALAR = (
    "const unsigned* word = reinterpret_cast<const unsigned*>(from);"
    "return make_uint4(__ldg(word), __ldg(word + 1), __ldg(word + 2), __ldg(word + 3));"
)


def test_scalar_loads_are_noticed(tmp_path):
    text = source("decode.cu")
    assert WIDE in text
    name = "decode<__half, 64, 3>"
    assert "LDG.E.128.CONSTANT" not in accesses(text.replace(WIDE, SCALAR), name, "sm_90", tmp_path)


def test_spills_are_noticed():
    """Twice as many CTAs a multiprocessor leave half the registers."""
    text = source("decode.cu")
    bound = "__launch_bounds__(DECODE_WARPS * WARP, 4)"
    assert bound in text
    names = ("decode<__nv_bfloat16, 64, 4>",)
    ((_, local, _),) = resources(text.replace(bound, "__launch_bounds__(DECODE_WARPS * WARP, 8)"), names, "sm_90")
    assert local > 0


def test_too_many_registers_are_noticed():
    text = source("decode.cu").replace("__launch_bounds__(DECODE_WARPS * WARP, 4)", "")
    text = text.replace("HEADS * VEC < 32 ? 4 : 2", "8")
    ((_, _, registers),) = resources(text, ("decode<__nv_bfloat16, 64, 4>",), "sm_90")
    assert registers > BUDGET
