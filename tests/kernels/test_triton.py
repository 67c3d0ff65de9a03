"""kernel=triton without a GPU. What is interpreted and what is compiled needs processes of its own: Triton reads
TRITON_INTERPRET when it is imported, and an interpreted library cannot be compiled (nor the other way round)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pagedlab.core.errors import ConfigError
from pagedlab.kernels import triton_configs as configs
from pagedlab.kernels.base import KERNELS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def run(*command, interpret, cache=None, **more):
    names = ("TRITON_INTERPRET", "TRITON_CACHE_DIR", "PYTEST_ADDOPTS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"TRITON_INTERPRET": "1"} if interpret else {"TRITON_CACHE_DIR": str(cache)}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])} | more
    command = [sys.executable, *map(str, command)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def pytest_passes(file, *options, **environment):
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / file, *options, **environment)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@needs_triton
@pytest.mark.parametrize("part", ["broken", "not broken"])
def test_interpreted(part):
    """In two parts, for two processors."""
    pytest_passes("triton_interpreted.py", "-k", part, interpret=True)


@needs_triton
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_compiled(arch, tmp_path):
    pytest_passes("triton_compiled.py", interpret=False, cache=tmp_path, PAGEDLAB_AOT_ARCHS=str(arch))


@needs_triton
def test_a_pool_of_more_than_two_to_the_31_elements(tmp_path):
    """4 GiB of address space, most of it never touched."""
    done = run(HERE / "triton_interpreted.py", tmp_path, interpret=True)
    assert (done.returncode, done.stdout) == (0, "as in float64\n"), done.stderr


@needs_triton
@pytest.mark.parametrize("mutation", ["page", "pages"])
def test_offsets_in_32_bits_are_noticed_in_such_a_pool(tmp_path, mutation):
    done = run(HERE / "triton_interpreted.py", tmp_path, mutation, interpret=True)
    assert done.returncode == -11 or "Tensor-likes are not close" in done.stderr, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_a_line(monkeypatch):
    if importlib.util.find_spec("triton") is not None:
        with pytest.raises(ConfigError, match=r"^kernel=triton: this torch sees no CUDA device, expected one .*$"):
            KERNELS["triton"]()
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ConfigError, match=r"^kernel=triton: the package triton is not installed, expected .*$"):
        KERNELS["triton"]()


def test_a_gpu_finds_its_own_configurations_and_an_unknown_one_the_default(monkeypatch, tmp_path):
    default = configs.load("NVIDIA Something 9000")
    sizes = {(bits, size) for bits in (16, 32) for size in (64, 128, 256)}
    assert set(default.decode) == set(default.prefill) == sizes
    assert configs.size_class(2, 80) == (16, 128)
    monkeypatch.setattr(configs, "TUNED", tmp_path)
    configs.save("NVIDIA H200", default)
    assert configs.file_of("NVIDIA H200").name == "nvidia-h200.json"
    assert configs.load("NVIDIA H200") == default


@pytest.mark.parametrize("path", sorted(configs.TUNED.glob("*.json")), ids=lambda path: path.stem)
def test_every_file_of_configurations_is_whole(path):
    tuning = configs.parse(json.loads(path.read_text()))
    assert tuning.programs_per_sm >= 1
    for launch in (*tuning.decode.values(), *tuning.prefill.values()):
        for value in (launch.tile, launch.rows):
            assert value >= 16
            assert value & (value - 1) == 0
        assert launch.warps in (1, 2, 4, 8, 16)
