"""What else decided a run: code version, packages, machine, command line."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import pagedlab
from pagedlab.recorder.redact import redact_argv

_PACKAGES = ("torch", "triton", "transformers", "tokenizers", "numpy", "hydra-core", "omegaconf", "wandb", "pyarrow")


def environment(seed: int) -> dict[str, Any]:
    """Flat facts for env.json. Versions are read from package metadata: nothing is imported to ask it."""
    return {
        "pagedlab": pagedlab.__version__,
        **_git(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": _gpu(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "plugins": _plugins(),
        "seed": seed,
        "argv": redact_argv(sys.argv),
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _plugins() -> dict[str, str]:
    """The files that the command line named as plugins -> the SHA-256 of each; `argv` no longer has them."""
    modules = [module for name, module in sys.modules.items() if name.startswith("pagedlab_plugin_")]
    files = [Path(module.__file__) for module in modules if module.__file__]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any]:
    """The commit of the checkout that the code runs from, if it runs from one."""
    root = Path(pagedlab.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return {"git_sha": None, "git_dirty": None}
    try:
        sha = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10)
        diff = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return {"git_sha": None, "git_dirty": None}
    if sha.returncode or diff.returncode:  # a checkout of another user, say: no answer is not "clean"
        return {"git_sha": None, "git_dirty": None}
    return {"git_sha": sha.stdout.strip(), "git_dirty": bool(diff.stdout.strip())}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _gpu() -> str | None:
    """The CUDA device's name, asked of torch only where a run has loaded it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name())
