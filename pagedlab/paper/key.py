"""What the points of a figure follow from: a hash of the code and of the configs that make them."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import import_module
from pathlib import Path

_PAPER = Path(__file__).parent
# Rooms whose code decides a point; of `paper` all that is neither another figure nor only shows what was found.
_ROOMS = (
    "allocator",
    "core",
    "eviction",
    "executor",
    "hardware",
    "kernels",
    "model",
    "preemption",
    "prefix_cache",
    "recorder",
    "scheduler",
    "workload",
)
_FILES = ("engine.py", "run.py")
_SHOWN = {"report.py", "page.py", "claims.py", "drawing.py", "key.py", "constants.py"}


@cache
def code_key(number: str) -> str:
    """Hex digest for the figure of this number."""
    digest = hashlib.sha256()
    for path in [*_own(number), *_shared()]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _own(number: str) -> list[Path]:
    """The figure's module, and those of figures that it takes something from."""
    path = _PAPER / f"figure{number}.py"
    others = re.findall(r"from pagedlab\.paper\.figure(\w+) import", path.read_text("utf-8"))
    return [path, *(_PAPER / f"figure{other}.py" for other in others)]


@cache
def _shared() -> list[Path]:
    code = [path for room in _ROOMS for path in (_PAPER.parent / room).rglob("*.py")]
    code += [_PAPER.parent / name for name in _FILES]
    code += [p for p in _PAPER.glob("*.py") if not p.name.startswith("figure") and p.name not in _SHOWN]
    code += [*_PAPER.rglob("*.json"), *(_PAPER.parent / "workload").rglob("paper_*.json")]
    conf = [path for place in import_module("pagedlab.conf").__path__ for path in Path(place).rglob("*.yaml")]
    return sorted(code) + sorted(path for path in conf if path.name != "paper.yaml")
