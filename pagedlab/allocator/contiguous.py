"""What the reserving allocators share: one contiguous run for the whole life of a request."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from pagedlab.allocator.base import Allocator, Holding, blocks_for
from pagedlab.allocator.pool import BlockPool
from pagedlab.allocator.runs import Buddy, FirstFit, Runs
from pagedlab.core.errors import InvariantError, OutOfBlocks
from pagedlab.core.request import Request, Sequence


class ContiguousAllocator(Allocator):
    """Reserves `slots(request)` slots at admission, as a run of consecutive blocks, so that the same kernels serve it.

    A sequence never outgrows its run, so nothing is ever preempted and an admission need leave nothing free.
    Where the run is longer than asked (a buddy rounds up), the surplus counts as promised and never used.
    """

    runs_type: ClassVar[type[FirstFit] | type[Buddy]] = FirstFit

    def __init__(self, pool: BlockPool, max_model_len: int):
        super().__init__(pool, max_model_len)
        self._runs: Runs = self.runs_type(pool.num_blocks)

    @abstractmethod
    def slots(self, request: Request) -> int:
        """KV slots to reserve for a request."""

    @property
    def max_run(self) -> int:
        return self._runs.largest_possible()

    def max_blocks(self, request: Request) -> int:
        return self._runs.granted(blocks_for(self.slots(request), self.pool.block_size))

    def can_admit(self, seq: Sequence, keep_free: int = 0) -> bool:
        return self._runs.find(blocks_for(self.slots(seq.request), self.pool.block_size)) is not None

    def _blocks_at_admission(self, seq: Sequence) -> tuple[list[int], int]:
        slots = self.slots(seq.request)
        asked = blocks_for(slots, self.pool.block_size)
        start = self._runs.take(asked)
        if start is None:
            raise OutOfBlocks(f"no free run of {asked} blocks")
        granted = self._runs.granted(asked)
        table = list(range(start, start + granted))
        self.pool.take(table)
        return table, slots + (granted - asked) * self.pool.block_size

    def _blocks_for_growth(self, holding: Holding, num_tokens: int) -> list[int] | None:
        raise InvariantError(f"{num_tokens} tokens outgrow a reservation of {holding.promised} slots")

    def _returned(self, table: list[int]) -> None:
        self._runs.give_back(table[0], len(table))

    def audit(self) -> None:
        super().audit()
        for seq_id, h in self.holdings.items():
            if h.table != list(range(h.table[0], h.table[0] + len(h.table))):
                raise InvariantError(f"sequence {seq_id} is not contiguous: {h.table}")
        if self._runs.free_ids() != set(self.pool.free_ids()):
            raise InvariantError("the free runs are not the free blocks of the pool")
