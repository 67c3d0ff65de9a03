"""What a trace of block ids is: requests that name the content of their KV blocks instead of showing it."""

from __future__ import annotations

from dataclasses import dataclass

from pagedlab.core.errors import WorkloadError
from pagedlab.workload.checks import shown

LARGEST_ID = 2**64 - 1


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """time_s: its arrival after the trace's start. blocks: ids in order; equal ids are equal content.
    prompt_tokens, output_tokens: where the trace says them."""

    time_s: float
    blocks: list[int]
    prompt_tokens: int | None = None
    output_tokens: int | None = None


def block_id(value: object, where: str) -> int:
    """`value` if it can name a block, else WorkloadError, which begins with `where`."""
    if type(value) is not int or not 0 <= value <= LARGEST_ID:
        raise WorkloadError(f"{where}: {shown(value)}, expected a whole number from 0 to {LARGEST_ID}")
    return value
