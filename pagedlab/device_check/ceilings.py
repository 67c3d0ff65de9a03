"""What the memory can do, so that what a kernel does can be held against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from pagedlab.device_check.base import Bench, Row
from pagedlab.device_check.timing import median_ms, per_second


def ceilings(bench: Bench) -> Iterator[Row]:
    """GB/s, 10^9 bytes: of a copy what is read and what is written, of a reduction what is read. The read ceiling is
    the better of two reductions, for neither is made for it."""
    size = bench.sizes.kv_bytes // 4
    source = torch.ones(size, dtype=torch.float32, device=bench.device)
    target = torch.empty_like(source)
    calls: tuple[tuple[str, str, int, Callable[[], object]], ...] = (
        ("copy", "copy_", 2, lambda: target.copy_(source)),
        ("read", "sum", 1, lambda: source.sum()),
        ("read", "amax", 1, lambda: source.amax()),
    )
    for operation, by, passes, call in calls:
        taken = median_ms(call, bench.device, bench.sizes.repeats, flush=False)
        yield {
            "operation": operation,
            "by": by,
            "bytes": passes * 4 * size,
            "ms": taken,
            "gb_per_s": per_second(passes * 4 * size, taken),
        }
