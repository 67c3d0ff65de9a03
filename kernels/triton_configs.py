"""Launch configurations: tile sizes, warps and pipeline stages, from the file in tuned/ of the GPU at hand."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TUNED = Path(__file__).resolve().parent / "tuned"


@dataclass(frozen=True, slots=True)
class Launch:
    """tile: tokens of the cache a loop iteration takes. rows: of a prefill block, (token, head) pairs."""

    tile: int
    warps: int
    stages: int
    rows: int = 16


@dataclass(frozen=True, slots=True)
class Tuning:
    """programs_per_sm: how many decode programs a multiprocessor should get, by splitting contexts if need be.

    decode and prefill: a Launch by bits of the dtype (16, 32) and head size up to a power of two (64, 128, 256).
    """

    programs_per_sm: int
    decode: dict[tuple[int, int], Launch]
    prefill: dict[tuple[int, int], Launch]


def size_class(itemsize: int, head_dim: int) -> tuple[int, int]:
    """The key of `Tuning.decode` and `.prefill`."""
    return 8 * itemsize, next(size for size in (64, 128, 256) if head_dim <= size)


def file_of(gpu: str) -> Path:
    """NVIDIA H200 -> tuned/nvidia-h200.json"""
    return TUNED / (re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".json")


def load(gpu: str) -> Tuning:
    """The GPU's own configurations, or those of default.json: good anywhere, the best nowhere."""
    path = file_of(gpu)
    return parse(json.loads((path if path.is_file() else TUNED / "default.json").read_text()))


def save(gpu: str, tuning: Tuning) -> Path:
    """Write what `load` of this GPU will find."""
    found: dict[str, object] = {"programs_per_sm": tuning.programs_per_sm}
    for part, table in (("decode", tuning.decode), ("prefill", tuning.prefill)):
        found[part] = {f"{bits}/{size}": asdict(launch) for (bits, size), launch in sorted(table.items())}
    path = file_of(gpu)
    path.write_text(json.dumps(found, indent=2) + "\n")
    return path


def parse(found: dict[str, Any]) -> Tuning:
    """Of `{"programs_per_sm": 2, "decode": {"16/64": {"tile": 64, ...}}, "prefill": {...}}`."""

    def table(part: dict[str, dict[str, int]]) -> dict[tuple[int, int], Launch]:
        keys = {key: key.split("/") for key in part}
        return {(int(keys[key][0]), int(keys[key][1])): Launch(**launch) for key, launch in part.items()}

    return Tuning(int(found["programs_per_sm"]), table(found["decode"]), table(found["prefill"]))
