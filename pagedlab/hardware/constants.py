"""Which values the constants of a device can have."""

from __future__ import annotations

import math
from dataclasses import fields

from pagedlab.core.errors import ConfigError
from pagedlab.settings import HardwareSettings

# What may be 0, or is a share of a peak; every other constant of a device is a positive number.
_MAY_BE_ZERO = ("_us", "gather_half_tokens", "elementwise_streams", "_share")
_SHARES = ("_efficiency", "_utilization")


def check_constants(hardware: HardwareSettings, where: str = "hardware.") -> None:
    """ConfigError for the first that cannot be. where: what comes before its name in the message."""
    if not 1 <= hardware.tensor_parallel <= 1024:
        raise ConfigError(f"{where}tensor_parallel={hardware.tensor_parallel}: expected at least 1 and at most 1024")
    for field in fields(hardware):
        if field.type == "float":
            value, path = getattr(hardware, field.name), where + field.name
            if field.name.endswith(_SHARES) and not 0 < value <= 1:
                raise ConfigError(f"{path}={value}: expected more than 0 and at most 1")
            low = 0 if field.name.endswith(_MAY_BE_ZERO) else 1e-9
            if not low <= value <= 1e12:  # so that NaN fails as well
                raise ConfigError(f"{path}={value}: expected at least {low} and at most 1e+12")
    if hardware.prefill_skipped_share > 1:
        raise ConfigError(f"{where}prefill_skipped_share={hardware.prefill_skipped_share}: expected at most 1")
    if (q := hardware.roofline_norm) is not None and not 1 <= q < math.inf:
        raise ConfigError(f"{where}roofline_norm={q}: expected null, or at least 1")
    for name in ("pcie_out_gb_s", "swap_out_copy_us"):
        value, least = getattr(hardware, name), 0 if name.endswith(_MAY_BE_ZERO) else 1e-9
        if value is not None and not least <= value <= 1e12:
            raise ConfigError(f"{where}{name}={value}: expected null, or at least {least} and at most 1e+12")
