"""What a trace of block ids is: requests that name the content of their KV blocks instead of showing it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pagedlab.core.errors import WorkloadError
from pagedlab.settings import BlockTraceSettings
from pagedlab.workload.checks import number, refused, shown

LARGEST_ID = 2**64 - 1


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """time_s: its arrival after the trace's start. blocks: ids in order; equal ids are equal content.
    prompt_tokens, output_tokens: where the trace says them."""

    time_s: float
    blocks: list[int]
    prompt_tokens: int | None = None
    output_tokens: int | None = None


def trace_path(settings: BlockTraceSettings) -> Path:
    if settings.path is None:
        raise refused("workload.path", None, f"the file of the trace that workload={settings.name} reads")
    return Path(os.path.expanduser(settings.path))


def check_block_trace(settings: BlockTraceSettings) -> None:
    """Raise ConfigError for a value out of range."""
    if settings.limit is not None and settings.limit < 1:
        raise refused("workload.limit", settings.limit, "at least 1, or null for all")
    if not 1 <= settings.block_tokens <= 2**24:
        raise refused("workload.block_tokens", settings.block_tokens, f"1 to {2**24}")
    number("workload.rate_scale", settings.rate_scale, 1e-6, 1e6)


def block_id(value: object, where: str) -> int:
    """`value` if it can name a block, else WorkloadError, which begins with `where`."""
    if type(value) is not int or not 0 <= value <= LARGEST_ID:
        raise WorkloadError(f"{where}: {shown(value)}, expected a whole number from 0 to {LARGEST_ID}")
    return value
