"""Orca (Oracle) as the PagedAttention paper rebuilt it, from a buddy allocator (SOSP 2023, section 6.1)."""

from __future__ import annotations

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.allocator.contiguous import ContiguousAllocator
from pagedlab.allocator.oracle import oracle_output_tokens
from pagedlab.allocator.runs import Buddy
from pagedlab.core.request import Request


@ALLOCATORS.register("oracle_buddy")
class OracleBuddy(ContiguousAllocator):
    """Reserves exactly what the request will fill, prompt + true output - 1 slots, in a run of a power of two."""

    needs_true_length = True
    runs_type = Buddy

    def slots(self, request: Request) -> int:
        return request.prompt_tokens + oracle_output_tokens(request) - 1
