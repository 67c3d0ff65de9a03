"""Orca (Pow2): over-reserves the output by at most two, in a buddy allocator (Kwon et al., SOSP 2023, section 6.1)."""

from __future__ import annotations

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.allocator.contiguous import ContiguousAllocator
from pagedlab.allocator.oracle import oracle_output_tokens
from pagedlab.allocator.runs import Buddy
from pagedlab.core.request import Request


@ALLOCATORS.register("power_of_two")
class PowerOfTwo(ContiguousAllocator):
    """Reserves prompt + the true output rounded up to a power of two (25 becomes 32) - 1, from buddy runs."""

    needs_true_length = True
    runs_type = Buddy

    def slots(self, request: Request) -> int:
        output = 1 << (oracle_output_tokens(request) - 1).bit_length()
        return min(request.prompt_tokens + output - 1, self.max_model_len)
