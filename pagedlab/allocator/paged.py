"""Blocks on demand (PagedAttention, Kwon et al., SOSP 2023, section 4.3)."""

from __future__ import annotations

from pagedlab.allocator.base import ALLOCATORS, Allocator, Holding, blocks_for
from pagedlab.core.errors import OutOfBlocks
from pagedlab.core.request import Request, Sequence


@ALLOCATORS.register("paged")
class PagedAllocator(Allocator):
    """A new sequence gets blocks for the tokens known so far, then one more block each time its last one is full.

    All that a sequence can waste is the tail of its last block. It may run out while it grows: the scheduler
    then preempts somebody.
    """

    def max_blocks(self, request: Request) -> int:
        return blocks_for(request.max_slots, self.pool.block_size)

    def can_admit(self, seq: Sequence, keep_free: int = 0) -> bool:
        return blocks_for(seq.num_tokens, self.pool.block_size) + keep_free <= self.pool.num_free

    def fill(self, count: int) -> None:
        super().fill(count)
        self._promised += count  # nothing was promised beyond the tokens known

    def _blocks_at_admission(self, seq: Sequence) -> tuple[list[int], int]:
        return self.pool.allocate(blocks_for(seq.num_tokens, self.pool.block_size)), seq.num_tokens

    def _blocks_for_growth(self, holding: Holding, num_tokens: int) -> list[int] | None:
        missing = blocks_for(num_tokens, self.pool.block_size) - len(holding.table)
        try:
            return self.pool.allocate(missing)
        except OutOfBlocks:
            return None
