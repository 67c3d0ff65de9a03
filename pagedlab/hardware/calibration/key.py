"""What a calibration is valid for."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from pagedlab.model.architecture import Architecture
from pagedlab.settings import Settings

# Whose speed is measured: the libraries, and this project's kernels and executor.
_PACKAGES = ("torch", "transformers", "numba")
_ROOMS = ("kernels", "executor")


def asked(settings: Settings, model: Architecture) -> dict[str, Any]:
    """What a run says of itself that a calibration must be of: its model and how that is computed, numbers, block size,
    and its kernel where it names one."""
    sizes = hashlib.sha256(repr(sorted(asdict(model).items())).encode()).hexdigest()[:12]
    kernel = {} if settings.kernel.name == "auto" else {"kernel": settings.kernel.name}
    return {
        "model": settings.model.path or settings.model.name,
        "sizes": sizes,
        "dtype": settings.model.dtype,
        "optimize": settings.model.optimize,
        "block_size": settings.block_size,
        **kernel,
    }


def machine() -> dict[str, Any]:
    """This machine and what is installed on it; the code of this project by a hash."""
    return {"cpu": _cpu(), "code": _code(), **{name: _version(name) for name in _PACKAGES}}


def mismatch(made_for: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """`name=value, not value`, for the first part of the key that is another one; None where all agree."""
    for name, value in wanted.items():
        if made_for.get(name) != value:
            return f"{name}={made_for.get(name)}, not {value}"
    return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _code() -> str:
    import pagedlab

    digest = hashlib.sha256()
    for place in pagedlab.__path__:
        for file in sorted(file for room in _ROOMS for file in (Path(place) / room).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
