"""kernels/triton_tune.py without a GPU: a clock of the test's own says how fast a candidate is."""

from __future__ import annotations

import importlib
import sys
import types

import pytest
import torch

from pagedlab.core.errors import ConfigError
from pagedlab.kernels import triton_configs as configs
from pagedlab.kernels.base import KERNELS
from pagedlab.kernels.uniform import uniform

pytest.importorskip("triton")
tuner = importlib.import_module("pagedlab.kernels.triton_tune")
OutOfResources = importlib.import_module("triton.runtime.errors").OutOfResources
CompilationError = importlib.import_module("triton.compiler.errors").CompilationError

GPU = "NVIDIA Imagined 1000"
# What the clock below likes best.
DECODE = configs.Launch(tile=32, warps=4, stages=3)
PREFILL = configs.Launch(tile=64, warps=8, stages=2, rows=64)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """An imagined GPU, and tuned/ with the default alone."""
    (tmp_path / "default.json").write_text((configs.TUNED / "default.json").read_text())
    monkeypatch.setattr(configs, "TUNED", tmp_path)
    properties = types.SimpleNamespace(name=GPU, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: GPU)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    return tmp_path / "nvidia-imagined-1000.json"


@pytest.fixture
def clock(monkeypatch):
    """Milliseconds grow with the distance from the best; one or another candidate cannot be launched at all."""
    timed = []

    def time(problem, programs_per_sm, launch):
        dtype, size, (sequences, _, queries) = problem
        timed.append((dtype, size, sequences, queries, programs_per_sm, launch))
        if launch.tile == 16:
            raise OutOfResources(300_000, 232_448, "shared memory")
        if launch.stages == 4:
            raise RuntimeError("PassManager::run failed")
        if sequences == 1:  # the lone long sequence: the number of programs is what is asked
            return abs(programs_per_sm - 4)
        best = DECODE if queries == 1 else PREFILL
        return sum(abs(getattr(launch, part) - getattr(best, part)) for part in ("tile", "warps", "stages", "rows"))

    monkeypatch.setattr(tuner, "_problem", lambda dtype, size, *shape: (dtype, size, shape))
    monkeypatch.setattr(tuner, "_time", time)
    return timed


def test_the_fastest_of_each_size_class_is_what_the_next_kernel_runs(gpu, clock, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["triton_tune"])
    assert tuner.main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(gpu)
    kernel = KERNELS["triton"]()
    assert set(kernel.tuning.decode.values()) == {DECODE}
    assert set(kernel.tuning.prefill.values()) == {PREFILL}
    assert set(kernel.tuning.decode) == {(bits, size) for bits in (16, 32) for size in (64, 128, 256)}
    assert kernel.tuning.programs_per_sm == 4
    assert {(dtype, size) for dtype, size, *_ in clock} == {
        (dtype, size) for dtype in (torch.bfloat16, torch.float32) for size in (64, 128, 256)
    }


def test_a_size_class_alone_leaves_the_others_as_they_were(gpu, clock, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["triton_tune", "32/64"])
    assert tuner.main() == 0
    default, found = configs.load("another"), configs.load(GPU)
    assert found.decode == default.decode | {(32, 64): DECODE}
    assert found.prefill == default.prefill | {(32, 64): PREFILL}
    assert found.programs_per_sm == default.programs_per_sm
    assert {(dtype, size) for dtype, size, *_ in clock} == {(torch.float32, 64)}


def test_what_is_stopped_keeps_the_classes_that_were_done(gpu, clock, monkeypatch):
    time = tuner._time

    def stopping(problem, *rest, **more):
        if problem[1] == 128:
            raise KeyboardInterrupt
        return time(problem, *rest, **more)

    monkeypatch.setattr(tuner, "_time", stopping)
    with pytest.raises(KeyboardInterrupt):
        tuner.tune(((16, 64), (16, 128)))
    assert configs.load(GPU).decode[16, 64] == DECODE
    assert configs.load(GPU).decode[16, 128] == configs.load("another").decode[16, 128]


def test_a_fault_of_the_gpu_is_no_candidate_that_does_not_fit(gpu, clock, monkeypatch):
    def fault(*_, **more):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(tuner, "_time", fault)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        tuner.tune(((16, 64),))
    assert not gpu.exists()


def test_where_nothing_can_be_launched_it_says_so(gpu, clock, monkeypatch):
    def nothing(*_, **more):
        raise CompilationError("", None, "no")

    monkeypatch.setattr(tuner, "_time", nothing)
    with pytest.raises(ConfigError, match="no launch configuration works on this GPU"):
        tuner.tune(((16, 64),))


@pytest.mark.parametrize("queries", [1, 8])
def test_a_candidate_is_timed_through_the_kernel_that_will_run_it(gpu, monkeypatch, queries):
    calls = []

    class Kernel:
        def __init__(self, tuning):
            self.tuning = tuning

        def decode(self, query, *_):
            calls.append(("decode", len(query), self.tuning.decode[16, 64], self.tuning.programs_per_sm))

        def prefill(self, query, *_):
            calls.append(("prefill", len(query), self.tuning.prefill[16, 64], self.tuning.programs_per_sm))

    def do_bench(call, warmup, rep, quantiles):
        call()
        return 1.25

    monkeypatch.setattr(tuner, "TritonKernel", Kernel)
    monkeypatch.setattr(importlib.import_module("triton.testing"), "do_bench", do_bench)
    monkeypatch.setattr(tuner, "uniform", lambda *shape: uniform(*shape[:-1], "cpu"))
    problem = tuner._problem(torch.bfloat16, 64, 3, 32, queries)
    assert tuner._time(problem, 5, PREFILL) == 1.25
    assert calls == [("decode" if queries == 1 else "prefill", 3 * queries, PREFILL, 5)]


def test_what_is_no_size_class_is_named(gpu, clock, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["triton_tune", "16/80"])
    assert tuner.main() == 2
    said = capsys.readouterr().err
    assert said == (
        "error: triton_tune: 16/80 is no size class, expected some of 16/64, 16/128, 16/256, 32/64, 32/128, 32/256\n"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_a_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["triton_tune"])
    assert tuner.main() == 2
    assert capsys.readouterr().err.startswith("error: triton_tune: this torch sees no CUDA device, expected ")
