"""Prompt plus declared output, as TGI and TensorRT-LLM's GUARANTEED_NO_EVICT reserve it."""

from __future__ import annotations

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.allocator.contiguous import ContiguousAllocator
from pagedlab.core.request import Request


@ALLOCATORS.register("reserve_output")
class ReserveOutput(ContiguousAllocator):
    """Reserves what the client declared: prompt + max_tokens - 1 (the last token is never fed)."""

    def slots(self, request: Request) -> int:
        return request.max_slots
