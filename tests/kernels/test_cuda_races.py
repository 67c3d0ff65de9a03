"""kernels/cuda/*.cu under ThreadSanitizer, one OS thread per CUDA thread, at tiny shapes. And without their barriers.

The launches are those of kernel=cupy's host code, recorded and repeated by a program of its own: ThreadSanitizer must
own the whole process. Blocks run one after another, so that a race between blocks cannot be seen (they share nothing:
splits meet in a second kernel), and shuffles order memory here as they do not on a GPU.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from tests.kernels.cuda_emulation.emulation import Recording, Variant, attention, build, skip_without_tools
from tests.kernels.cuda_emulation.problem import Problem

ATTENTION = attention(torch.float16, 64, 3)
BARRIERS = {
    "decode": ("decode.cu", "__syncthreads();"),
    "prefill: keys are there": ("prefill.cu", "__syncthreads();  // keys (and once the queries) are there"),
    "prefill: weights are there": ("prefill.cu", "__syncthreads();  // weights are there, keys no longer needed"),
    "prefill: values are there": ("prefill.cu", "__syncthreads();  // values are there"),
    "prefill: values are done with": ("prefill.cu", "__syncthreads();  // values and weights no longer needed"),
}
VARIANTS = (
    Variant("sound", ATTENTION),
    *(
        Variant(name, tuple(k for k in ATTENTION if k[0] == file), ((file, barrier, ""),))
        for name, (file, barrier) in BARRIERS.items()
    ),
)


@pytest.fixture(scope="module")
def program() -> tuple[Path, dict[tuple[str, str, str], int]]:
    skip_without_tools()
    return build(VARIANTS, ["-O1", "-g1", "-fsanitize=thread"], ".tsan")


def run(program, folder: Path, variant: str, *, decodes=(), prefills=()) -> subprocess.CompletedProcess[str]:
    path, index = program
    kernel = Recording(index, split_tokens=16)
    problem = Problem(decodes, prefills, dtype=torch.float16, kv_heads=1)
    problem.attend(kernel)
    assert kernel.launches
    recorded = folder / "launches"
    kernel.save(recorded, variant)
    options = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1 exitcode=66"}
    done = subprocess.run([path, recorded], env=options, capture_output=True, text=True)
    if "unexpected memory mapping" in done.stderr:  # an old libtsan on a kernel with much address randomisation
        pytest.skip("ThreadSanitizer does not run on this machine: unexpected memory mapping")
    return done


def test_no_data_race(program, tmp_path):
    done = run(program, tmp_path, "sound", decodes=(9, 21), prefills=((20, 15),))
    assert done.returncode == 0, done.stderr[-4000:]
    assert not done.stderr


@pytest.mark.parametrize("name", BARRIERS)
def test_a_missing_barrier_is_reported(program, tmp_path, name):
    lengths = {"decodes": (9,)} if name == "decode" else {"prefills": ((40, 3),)}
    done = run(program, tmp_path, name, **lengths)
    assert done.returncode == 66
    assert "WARNING: ThreadSanitizer: data race" in done.stderr
