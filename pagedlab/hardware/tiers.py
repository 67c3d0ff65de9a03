"""What it takes to bring blocks up to the device from a tier below it, and to put them there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from pagedlab.hardware.cost import CostModel
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


def store_s(name: str, tier: TierSettings, hardware: HardwareSettings, num_bytes: float) -> float:
    """The same on the way down. Where PCIe's directions were told apart the host's is the one out."""
    bandwidth = tier.bandwidth_gb_s
    if bandwidth is None and name == "host" and hardware.pcie_out_gb_s is not None:
        bandwidth = hardware.pcie_out_gb_s * hardware.tensor_parallel
    return load_s(tier if bandwidth is None else replace(tier, bandwidth_gb_s=bandwidth), hardware, num_bytes)


def worth_loading(
    cost: CostModel, tiers: Mapping[str, TierSettings], num_tokens: int, cached: int, below: Seq[str]
) -> int:
    """How many blocks to bring up so that a request has its keys and values soonest: all of `below` (the tier of each,
    behind `cached` blocks on the device), those before a change of tier, or none. What is not brought up is computed,
    priced as a prompt fed alone; ties load more."""
    size, hardware = cost.block_size, cost.hardware

    def seconds(blocks: int) -> float:
        done = (cached + blocks) * size
        up = [load_s(tiers[name], hardware, n * cost.block_bytes) for name, n in Counter(below[:blocks]).items()]
        new = num_tokens - done
        return sum(up) + cost.dense_s(new) + cost.prefill_attention_s([(new, done)])

    ends = [i for i in range(1, len(below)) if below[i - 1] != below[i]]
    return min([len(below), *reversed(ends), 0], key=seconds)
