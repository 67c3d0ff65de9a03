"""Reading the JSON files of a model's folder, which others wrote and which may hold anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pagedlab.core.errors import ModelError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. ModelError names the file when it cannot be read or holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    # A deeply nested file ends in RecursionError; wrong UTF-8 is a ValueError like wrong JSON.
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {first_line(error)}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: holds a {type(value).__name__}, expected a JSON object")
    return value


def first_line(error: BaseException, limit: int = 240) -> str:
    """The first line of an error's text that says something, at most `limit` characters: libraries write essays."""
    lines = (line.strip() for line in str(error).splitlines())
    line = next((line for line in lines if line), type(error).__name__)
    return line if len(line) <= limit else line[: limit - 3] + "..."
