"""What tells one job from another: its key, which names the job's folder inside a sweep folder.

The key is a digest of the job's resolved config and of the code. The config's part leaves out what cannot change a
result: the tracker, the progress bar, and how the sweep is run. The code's part is every source file of the rooms that
can change one, so an edit of a plot or of a tracker runs nothing again, and a commit that only touches docs neither.
"""

from __future__ import annotations

import hashlib
import json
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import pagedlab
from pagedlab.hardware.calibration.file import folder as calibration_folder
from pagedlab.plugins import ENTRY_POINTS

# Settings that change no result.
_NO_PART = (
    "tracker",
    "progress",
    "resume",
    "skip_refused",
    "fail_fast",
    "jobs",
    "job_timeout_s",
    "allow_parallel_timing",
    "objectives",
)
# Rooms that only read results, or that no run goes through.
_ROOMS_APART = frozenset({"analysis", "tracker", "sweep", "paper", "replay", "device_check", "microprofile", "_hydra"})
_FILES_APART = frozenset({"cli.py", "launch.py", "plugins.py", "interrupts.py"})
_SOURCES = frozenset({".py", ".cu", ".cuh", ".h"})
_LENGTH = 12  # 48 bits: two of a million jobs have one key with a chance of 0.2 %


def job_key(config: DictConfig) -> str:
    """12 hexadecimal digits. config: of one job, without the node `hydra`."""
    parts = {"config": _deciding(config), "code": code_digest()}
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def _deciding(config: DictConfig) -> dict[str, Any]:
    # One by one: the node `hydra` asks for the key itself.
    names = [str(name) for name in config if name not in (*_NO_PART, "hydra")]
    values = {name: _resolved(config._get_node(name)) for name in names}
    return {"values": values, "files": _files(values)}


def _resolved(node: Any) -> Any:
    """A node of the config as plain Python: a container, or a value that may be an interpolation."""
    try:
        node = node._maybe_dereference_node(throw_on_resolution_failure=True)
        return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node._value()
    except OmegaConfBaseException:  # the job will refuse it and say why
        return OmegaConf.to_container(node) if OmegaConf.is_config(node) else str(node._value())


def _files(values: dict[str, Any]) -> dict[str, Any]:
    """Of every file that the config names, its size and the time of its last change; so of calibrations, which a
    simulation may take from the user's cache."""
    named = [Path(text).expanduser() for text in _texts(values) if "/" in text or "." in text]
    if (values.get("hardware") or {}).get("calibration") == "auto":
        named += sorted(calibration_folder().glob("*.yaml"))
    found = {}
    for path in named:
        try:
            if path.is_file():
                found[str(path)] = (path.stat().st_size, path.stat().st_mtime_ns)
        except OSError:  # a text that is no path
            continue
    return found


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, below in value.items() if key != "provenance" for text in _texts(below)]
    if isinstance(value, list):
        return [text for below in value for text in _texts(below)]
    return [value] if isinstance(value, str) else []


@cache
def code_digest() -> str:
    """SHA-256 over the sources that can change a result, plugins among them. Once a process: 10 ms."""
    digest = hashlib.sha256()
    roots = [Path(root) for root in pagedlab.__path__]
    for name, path in sorted(_sources(roots).items()):
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    for name, module in sorted(sys.modules.items()):
        if name.startswith("pagedlab_plugin_") and module.__file__:
            digest.update(b"plugin\0" + Path(module.__file__).read_bytes())
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        digest.update(f"{entry.value} {entry.dist.version if entry.dist else ''}".encode())
    return digest.hexdigest()


def _sources(roots: list[Path]) -> dict[str, Path]:
    """Name inside the package -> file. A checkout has kernels/ beside pagedlab/, a wheel inside it: one name."""
    found = {}
    package, beside = roots[0], roots[1:]
    for folder in (package, *(root / "kernels" for root in beside)):
        prefix = "" if folder == package else "kernels/"
        for path in folder.rglob("*"):
            inside = prefix + path.relative_to(folder).as_posix()
            room = inside.partition("/")[0]
            apart = room in _ROOMS_APART or room in _FILES_APART or room in ("experiments", "conf")
            if path.suffix in _SOURCES and not apart:
                found[inside] = path
    return found
