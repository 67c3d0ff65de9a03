"""What the reserving allocators share: one contiguous run for the whole life of a request."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from pagedlab.allocator.base import Allocator, Grant, Holding, blocks_for
from pagedlab.allocator.pool import BlockPool
from pagedlab.allocator.runs import Buddy, FirstFit, Runs
from pagedlab.core.errors import InvariantError, OutOfBlocks
from pagedlab.core.request import Key, Request, Sequence


class ContiguousAllocator(Allocator):
    """Reserves `slots(request)` slots at admission, as a run of consecutive blocks, so that the same kernels serve it.

    A sequence never outgrows its run, so nothing is ever preempted and an admission need leave nothing free.
    Where the run is longer than asked (a buddy rounds up), the surplus counts as promised and never used.

    Runs cannot be shared. Each sequence of a request gets a run of its own, all of them at admission, and a fork copies
    what the parent has filled: the prompt for each sample, the whole context for each beam that changes its parent, as
    the systems before PagedAttention had to (SOSP 2023, section 4.4).
    """

    grows = False
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

    def refusal(self, request: Request) -> str | None:
        asked = blocks_for(self.slots(request), self.pool.block_size)
        runs = self.runs_type(self.pool.num_blocks).count(asked)
        if request.width == 1 or runs >= request.width:
            return super().refusal(request)
        return (
            f"request {request.id} needs {request.width} runs of {self._runs.granted(asked)} blocks of "
            f"{self.pool.block_size} slots, one for each of its sequences, the pool can give {runs} at most "
            f"(of {self.pool.num_blocks} blocks)"
        )

    def can_admit(self, seq: Sequence, keep_free: int = 0) -> bool:
        return self._runs.count(blocks_for(self.slots(seq.request), self.pool.block_size)) >= len(seq.parts)

    def _blocks_at_admission(self, seq: Sequence) -> dict[Key, Grant]:
        slots = self.slots(seq.request)
        asked = blocks_for(slots, self.pool.block_size)
        parts = seq.parts
        if self._runs.count(asked) < len(parts):
            raise OutOfBlocks(f"no {len(parts)} free runs of {asked} blocks")
        granted = self._runs.granted(asked)
        promised = slots + (granted - asked) * self.pool.block_size
        taken = {}
        for part in parts:
            start = self._runs.take(asked)
            if start is None:
                raise InvariantError(f"no run of {asked} blocks where {len(parts)} were counted")
            table = list(range(start, start + granted))
            self.pool.take(table)
            taken[part.key] = Grant(table, promised)
        return taken

    def _blocks_for_growth(self, holding: Holding, num_tokens: int, replaced: int) -> list[int] | None:
        raise InvariantError(f"{num_tokens} tokens outgrow a reservation of {holding.promised} slots")

    def fork(self, parent: Key, child: Key) -> list[tuple[int, int]]:
        source, target = self.holdings[parent], self.holdings[child]
        self._tokens += source.tokens - target.tokens
        target.tokens = source.tokens
        filled = blocks_for(source.tokens, self.pool.block_size)
        return list(zip(source.table[:filled], target.table[:filled], strict=True))

    def _returned(self, table: list[int]) -> None:
        self._runs.give_back(table[0], len(table))

    def audit(self) -> None:
        super().audit()
        for seq_id, h in self.holdings.items():
            if h.table != list(range(h.table[0], h.table[0] + len(h.table))):
                raise InvariantError(f"sequence {seq_id} is not contiguous: {h.table}")
        if self._runs.free_ids() != set(self.pool.free_ids()):
            raise InvariantError("the free runs are not the free blocks of the pool")
