"""Memory for the KV cache and for weights. On a CPU in huge pages, where the system gives them: blocks lie all over the
pool, and with pages of 4 KB nearly every block waits for the translation of several addresses; and the hardware's
prefetcher, which stops at the end of a page, is stopped 512 times less often.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import numpy as np
import torch

_HUGE = 2 << 20


def zeros(count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    """`count` tensors of zeros. Memory is taken as it is written, as torch.zeros does."""
    if device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(count)]
    size = count * math.prod(shape) * dtype.itemsize
    try:
        # One region for all of them: only its ends share a huge page with something else.
        region = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes of memory: {error.strerror}") from error
    with suppress(OSError):  # of a kernel built without them
        region.madvise(mmap.MADV_HUGEPAGE)
    bytes_ = np.frombuffer(region, np.uint8)
    start = -bytes_.ctypes.data % _HUGE
    return list(torch.from_numpy(bytes_[start : start + size]).view(dtype).view(count, *shape).unbind())
