"""The values that the settings of a policy may have."""

from __future__ import annotations

from typing import Any

from pagedlab.core.errors import ConfigError
from pagedlab.settings import (
    ClockSettings,
    CostAwareSettings,
    GdsfSettings,
    LirsSettings,
    S3FifoSettings,
    SlruSettings,
    TtlPinSettings,
)

# Settings class -> field -> (lowest, highest), or the texts it may be.
_RANGES: dict[type, dict[str, tuple[float, float] | tuple[str, ...]]] = {
    ClockSettings: {"bits": (1, 16)},
    SlruSettings: {"protected_fraction": (0, 1), "promote_hits": (1, 2**31)},
    S3FifoSettings: {
        "small_fraction": (0, 1),
        "ghost_fraction": (0, 100),
        "promote_hits": (1, 2**31),
        "warmup": ("paper", "libcachesim"),
    },
    LirsSettings: {"hir_fraction": (0, 1), "ghost_fraction": (0, 100)},
    GdsfSettings: {"cost": ("uniform", "recompute"), "attention_tokens": (1, 1e12)},
    CostAwareSettings: {"alpha": (0, 1e6), "attention_tokens": (1, 1e12)},
    TtlPinSettings: {"ttl_s": (0, 1e9)},
}


def check_eviction(settings: Any, where: str) -> None:
    """ConfigError for the first value out of range. where: dotted path of the settings. Not of a plugin's own."""
    for field, allowed in _RANGES.get(type(settings), {}).items():
        value = getattr(settings, field)
        if isinstance(allowed[0], str):
            if value not in allowed:
                raise ConfigError(f"{where}.{field}={value}: expected one of {', '.join(map(str, allowed))}")
        elif not allowed[0] <= value <= allowed[1]:  # which NaN fails as well
            raise ConfigError(f"{where}.{field}={value}: expected {allowed[0]:g} to {allowed[1]:g}")
