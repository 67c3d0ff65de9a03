"""What there is: packages, the GPU, its driver's CUDA, and which kernels can be loaded."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

import torch

from pagedlab.core.errors import ConfigError
from pagedlab.device_check.base import Bench, Row
from pagedlab.kernels.base import KERNELS

_PACKAGES = ("torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "numba", "transformers")


def versions(bench: Bench) -> Iterator[Row]:
    for package in _PACKAGES:
        try:
            yield {"what": package, "version": metadata.version(package)}
        except metadata.PackageNotFoundError:
            continue
    yield {"what": "cuda of torch", "version": torch.version.cuda}
    if bench.device.startswith("cuda"):
        gpu = torch.cuda.get_device_properties(bench.device)
        yield {"what": "gpu", "version": gpu.name}
        yield {"what": "compute capability", "version": f"{gpu.major}.{gpu.minor}"}
        yield {"what": "multiprocessors", "version": gpu.multi_processor_count}
        yield {"what": "memory, bytes", "version": gpu.total_memory}
        yield {"what": "last-level cache, bytes", "version": gpu.L2_cache_size}
    for name in bench.kernels:
        try:
            KERNELS[name]()
            yield {"what": f"kernel={name}", "version": "loads"}
        except ConfigError as error:
            yield {"what": f"kernel={name}", "version": str(error)}
