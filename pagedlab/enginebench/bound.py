"""The least time that a run can take on this machine.

Its products at the measured peak, its weights and keys and values at the measured bandwidth: the roofline of Williams,
Waterman and Patterson (2009).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pagedlab.executor.packed import PackedLinear
from pagedlab.model.architecture import Architecture

_ROWS, _SIZE, _WEIGHTS = 512, 1536, 16
_READ_BYTES = 1 << 29
_SUMS = 9
_SECONDS = 1.0  # tries go on for so long


def machine(dtype: str, threads: int | None) -> dict[str, float]:
    """flops: of a product of 512 rows, over weights that change, torch's or ours, whichever is faster; bytes_per_s: of
    a sum over 512 MiB. The best of several tries: what the machine can do, not what it does while others run."""
    if threads:
        torch.set_num_threads(threads)
    kind: torch.dtype = getattr(torch, dtype)
    x = torch.randn(_ROWS, _SIZE).to(kind)
    weights = [torch.randn(_SIZE, _SIZE).to(kind) for _ in range(_WEIGHTS)]
    packed = [PackedLinear(weight, None) for weight in weights]
    memory = torch.ones(_READ_BYTES // 4)
    with torch.inference_mode():
        products_s = min(
            _best(lambda: [torch.nn.functional.linear(x, weight) for weight in weights]),
            _best(lambda: [linear(x) for linear in packed]),
        )
        read_s = _best(lambda: memory.sum())
    return {"flops": _WEIGHTS * 2.0 * _ROWS * _SIZE**2 / products_s, "bytes_per_s": _READ_BYTES / read_s}


class Reader:
    """Sums as many bytes as a model's weights have, to see how long it takes at the moment, on so many threads (null:
    torch's own choice)."""

    def __init__(self, size: int, threads: int | None = None):
        if threads:
            torch.set_num_threads(threads)
        self._memory = torch.ones(size // 4)

    def run(self) -> dict[str, Any]:
        """read_s: the median of a few, seconds."""
        seconds = []
        for _ in range(_SUMS):
            start = time.perf_counter()
            self._memory.sum()
            seconds.append(time.perf_counter() - start)
        return {"read_s": float(np.median(seconds))}


def bound_s(
    model: Architecture, dtype_bytes: int, kv_bytes_per_token: int, run: dict[str, Any], machine: dict[str, float]
) -> float | None:
    """Seconds below which the steps of `run` cannot go. In each step the layers read their weights once or compute,
    whichever takes longer, and read what is cached; the head does so for sampled rows. The arithmetic of attention is
    left out. None for a mixture of experts, whose weights are read as the router says."""
    if model.experts is not None:
        return None
    shape, tokens = model.shape, np.array(run["step_tokens"], dtype=np.float64)
    layers = shape.num_layers * (model.attention_parameters() + model.ffn_parameters(model.ffn))
    head = shape.hidden_size * shape.vocab_size
    flops, speed = machine["flops"], machine["bytes_per_s"]
    layers_s = np.maximum(2 * layers * tokens / flops, layers * dtype_bytes / speed).sum()
    head_s = max(2 * head * run["output_tokens"] / flops, len(tokens) * head * dtype_bytes / speed)
    kv_s = sum(run["step_kv_tokens"]) * kv_bytes_per_token / speed
    return float(layers_s + head_s + kv_s)


def _best(work: Callable[[], Any]) -> float:
    best, began = float("inf"), time.perf_counter()
    while (start := time.perf_counter()) - began < _SECONDS:
        work()
        best = min(best, time.perf_counter() - start)
    return best
