"""Where pagedlab keeps what it makes once for a user."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$PAGEDLAB_CACHE, else $XDG_CACHE_HOME/pagedlab, else ~/.cache/pagedlab. It need not exist yet."""
    if own := os.environ.get("PAGEDLAB_CACHE"):
        return Path(own).expanduser()
    # The XDG specification has relative paths ignored.
    if (xdg := os.environ.get("XDG_CACHE_HOME")) and Path(xdg).is_absolute():
        return Path(xdg) / "pagedlab"
    return Path.home() / ".cache" / "pagedlab"
