"""What it takes to bring blocks up to the device from a tier below it."""

from __future__ import annotations

from pagedlab.settings import HardwareSettings, TierSettings, TiersSettings


def tier_settings(settings: TiersSettings) -> dict[str, TierSettings]:
    """The tiers that there are, from the one below the device downwards."""
    of = {"host": settings.host, "disk": settings.disk}
    return {name: tier for name, tier in of.items() if tier.gib > 0}


def load_s(tier: TierSettings, hardware: HardwareSettings, num_bytes: float) -> float:
    """latency + bytes / bandwidth. Without a bandwidth of its own a tier has that of PCIe, to all devices at once."""
    bandwidth = tier.bandwidth_gb_s
    if bandwidth is None:
        bandwidth = hardware.pcie_gb_s * hardware.tensor_parallel
    return tier.latency_us * 1e-6 + num_bytes / (bandwidth * 1e9)
