"""One short run of the whole engine a kernel: greedy tokens in fp32 must be those of kernel=torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from hydra import compose, initialize_config_module

from pagedlab.config import load_settings
from pagedlab.device_check.base import Bench, Row
from pagedlab.engine import serve
from pagedlab.interrupts import Interrupts
from pagedlab.recorder.recorder import Recorder
from pagedlab.run import build

# Heads of 64, which every kernel has; prompts in chunks, ragged decodes, a pool so tight that some are preempted.
_WORDS = (
    "model=tiny_llama",
    "model.config.hidden_size=256",
    "workload=synthetic",
    "workload.num_requests=8",
    "workload.prompt.high=90",
    "workload.output.high=40",
    "scheduler.max_num_batched_tokens=64",
    "max_model_len=160",
    "kv_num_blocks=30",
)


def engine(bench: Bench) -> Iterator[Row]:
    """passed: the same tokens. With executor.cuda_graphs where the kernel's launches can be recorded."""
    expected, preemptions = run("torch", bench.device, graphs=False)
    yield _row("torch", False, expected, preemptions, any(expected))
    for kernel in bench.made(torch.float32, 64, 16):
        for graphs in (False, True):
            if kernel.name == "torch" or (graphs and not (kernel.capturable and bench.device.startswith("cuda"))):
                continue
            tokens, preemptions = run(kernel.name, bench.device, graphs)
            yield _row(kernel.name, graphs, tokens, preemptions, tokens == expected)


def _row(kernel: str, graphs: bool, tokens: list[list[int]], preemptions: int, passed: bool) -> Row:
    count = sum(map(len, tokens))
    return {
        "kernel": kernel,
        "cuda_graphs": graphs,
        "tokens": count,
        "preemptions": preemptions,
        "passed": passed,
    }


def run(kernel: str, device: str, graphs: bool) -> tuple[list[list[int]], int]:
    """Tokens of each request, and how often one was preempted."""
    words = [*_WORDS, f"kernel={kernel}", f"executor.device={device}", f"executor.cuda_graphs={str(graphs).lower()}"]
    with initialize_config_module("pagedlab.conf", version_base="1.3"):
        settings = load_settings(compose("config", overrides=words))
    lab = build(settings, Interrupts())
    recorder = Recorder()
    try:
        serve(lab.requests, lab.scheduler, lab.executor, recorder, audit_every=1)
    finally:
        lab.executor.close()
    return [list(seq.output) for seq in recorder.sequences], len(recorder.preemptions)
