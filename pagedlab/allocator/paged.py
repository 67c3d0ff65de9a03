"""Blocks on demand, shared until written (PagedAttention, Kwon et al., SOSP 2023, sections 4.3 and 4.4)."""

from __future__ import annotations

from pagedlab.allocator.base import ALLOCATORS, Allocator, Holding, blocks_for
from pagedlab.core.errors import InvariantError, OutOfBlocks
from pagedlab.core.request import Key, Request, Sequence


@ALLOCATORS.register("paged")
class PagedAllocator(Allocator):
    """A new sequence gets blocks for the tokens known so far, then one more block each time its last one is full.

    All that a sequence can waste is the tail of its last block. It may run out while it grows: the scheduler
    then preempts somebody.
    """

    def max_blocks(self, request: Request) -> int:
        """All sequences of a request share the full blocks of its prompt."""
        shared = request.prompt_tokens // self.pool.block_size
        return shared + request.width * (blocks_for(request.max_slots, self.pool.block_size) - shared)

    def can_admit(self, seq: Sequence, keep_free: int = 0) -> bool:
        return self._blocks_to_begin(seq) + keep_free <= self.pool.num_free

    def _blocks_to_begin(self, seq: Sequence) -> int:
        """For every token known so far: of branches that have generated something, theirs as well, since they have to
        feed it again. Only those of the trunk are taken at once."""
        size = self.pool.block_size
        if not seq.branches:
            return blocks_for(seq.num_tokens, size)
        shared = seq.num_tokens // size
        return shared + sum(blocks_for(part.num_tokens, size) - shared for part in seq.parts)

    def _blocks_at_admission(self, seq: Sequence) -> dict[Key, tuple[list[int], int]]:
        table = self.pool.allocate(blocks_for(seq.num_tokens, self.pool.block_size))
        return {seq.key: (table, seq.num_tokens)}

    def _blocks_for_growth(self, holding: Holding, num_tokens: int, replaced: int) -> list[int] | None:
        missing = blocks_for(num_tokens, self.pool.block_size) - len(holding.table) + replaced
        try:
            return self.pool.allocate(missing)
        except OutOfBlocks:
            return None

    def fork(self, parent: Key, child: Key) -> list[tuple[int, int]]:
        source = self.holdings[parent]
        if source.tokens != source.promised:
            raise InvariantError(f"sequence {parent} forks with {source.tokens} of {source.promised} slots filled")
        self.pool.retain(source.table)
        self.release(child)
        self.holdings[child] = Holding(list(source.table), source.promised, source.promised, source.tokens)
        self._table_entries += len(source.table)
        return []
