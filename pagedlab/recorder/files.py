"""Files that are whole or not there: what a run folder and a sweep folder are made of."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp-"
"""How the name of a file begins that is being written."""


def holds_completed_run(folder: Path) -> bool:
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("status") == "completed"


def write_atomic(target: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a temporary file beside the target, sync it, then put it in the target's place."""
    handle, name = tempfile.mkstemp(prefix=TEMPORARY, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(target: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_atomic(target, lambda path: path.write_text(text, encoding="utf-8"))
