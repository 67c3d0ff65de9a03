"""Orca (Max): every request gets the longest sequence the model serves (Kwon et al., SOSP 2023, section 6.1)."""

from __future__ import annotations

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.allocator.contiguous import ContiguousAllocator
from pagedlab.core.request import Request


@ALLOCATORS.register("reserve_max")
class ReserveMax(ContiguousAllocator):
    """Reserves max_model_len slots, whatever the request."""

    def slots(self, request: Request) -> int:
        return self.max_model_len
