"""What the paper prints, from data/published.json (its source is named there)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def published() -> dict[str, Any]:
    """By figure; docs of the fields are in the file. A panel that is not there has no published values."""
    table: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "published.json").read_text("utf-8"))
    return table
