"""The smallest problems under NVIDIA's memory checker, where it is installed: reads and writes outside of tensors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pagedlab.device_check.base import Bench, Row

_FOUND = 99  # exit code that says that the tool has something to report
_TOOLKITS = "/usr/local/cuda/bin"


def memory(bench: Bench) -> Iterator[Row]:
    """passed: nothing was reported; null where that cannot be said, with the reason. kernel=torch runs torch's code."""
    kernels = [kernel for kernel in bench.kernels if kernel != "torch"]
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=_TOOLKITS)
    for kernel in kernels:
        row: Row = {"kernel": kernel, "tool": "compute-sanitizer memcheck"}
        if tool is None:
            yield row | {"passed": None, "said": "compute-sanitizer is not installed"}
            continue
        command = [tool, "--tool", "memcheck", "--error-exitcode", str(_FOUND)]
        command += [sys.executable, "-m", "pagedlab.device_check.numerics", bench.device, kernel]
        # Tensors out of one large allocation would hide what is read or written beside them.
        environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        limit = bench.seconds / len(kernels)
        try:
            done = subprocess.run(
                command, env=environment, cwd=_importable(), capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            yield row | {"passed": None, "said": f"no answer in {limit:.0f} s"}
            continue
        said = (done.stdout + done.stderr).strip().splitlines()
        verdict = {0: True, _FOUND: False}.get(done.returncode)
        yield row | {"passed": verdict, "said": said[-1] if said else f"exit code {done.returncode}"}


def _importable() -> Path:
    """Where `-m pagedlab...` finds this very package."""
    return Path(__file__).resolve().parents[2]
