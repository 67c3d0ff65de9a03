"""How long a call takes on its device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

_FLUSHED_BYTES = 256 * 2**20  # more than the last-level cache of any GPU so far


def median_ms(call: Callable[[], object], device: str, repeats: int, flush: bool = True) -> float:
    """Milliseconds of a call, the median of so many.

    On a GPU between two events on its stream; the last-level cache is overwritten before each call, unless what it
    reads does not fit anyway, and while that happens the host can enqueue the call's launches ahead. Elsewhere by the
    wall clock. The first two calls compile and choose, and do not count.
    """
    call(), call()
    if not device.startswith("cuda"):
        return statistics.median(_wall_ms(call) for _ in range(repeats))
    cache = torch.empty(_FLUSHED_BYTES if flush else 0, dtype=torch.uint8, device=device)
    event = partial(torch.cuda.Event, enable_timing=True)
    events = [(event(), event()) for _ in range(repeats)]
    for start, end in events:
        cache.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(float(start.elapsed_time(end)) for start, end in events)


def _wall_ms(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def per_second(amount: float, milliseconds: float, unit: float = 1e9) -> float:
    """Bytes to GB/s; operations to TFLOP/s with unit 1e12."""
    return amount / unit / (milliseconds / 1e3)
