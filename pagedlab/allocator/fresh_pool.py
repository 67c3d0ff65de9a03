"""A pool whose blocks are counted and not kept: for a simulation, in which nobody ever reads one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq

from pagedlab.allocator.pool import BlockPool
from pagedlab.core.errors import InvariantError


class FreshPool(BlockPool):
    """Whatever is handed out gets numbers that were never used before, so that of what is free only the count is known.

    How many blocks are free, held and owed is as in every pool. Nothing can be shared, and no block can be chosen.
    """

    def __init__(self, num_blocks: int, block_size: int):
        super().__init__(0, block_size)
        self.num_blocks = num_blocks
        self._num_free = num_blocks
        self._next = 0

    @property
    def num_free(self) -> int:
        return self._num_free - self._owed

    @property
    def num_available(self) -> int:
        return self._num_free - self._owed

    def free_ids(self) -> list[int]:
        return list(range(self._next, self._next + self.num_free))

    def is_shared(self, block: int) -> bool:
        return False

    def references(self, block: int) -> int:
        return 1

    def _hand_out(self, n: int) -> list[int]:
        first = self._next
        self._next += n
        self._num_free -= n
        return list(range(first, first + n))

    def take(self, ids: Seq[int]) -> None:
        raise InvariantError(f"blocks {ids} are asked for by number, of a pool that keeps none")

    def retain(self, ids: Seq[int]) -> None:
        raise InvariantError(f"blocks {ids} are to be shared, of a pool that keeps none")

    def release(self, ids: Seq[int]) -> int:
        if len(ids) > self.num_blocks - self._num_free:
            raise InvariantError(f"{len(ids)} blocks are released, {self.num_blocks - self._num_free} held")
        self._num_free += len(ids)
        return len(ids)

    def audit(self, tables: Seq[Seq[int]]) -> None:
        mapped = Counter(block for table in tables for block in table)
        if self._owed:
            raise InvariantError(f"{self._owed} blocks are owed to nobody")
        if len(mapped) + self._num_free != self.num_blocks:
            raise InvariantError(f"{self._num_free} free + {len(mapped)} held != {self.num_blocks} blocks")
        for block, times in mapped.items():
            if times > 1 or not 0 <= block < self._next:
                raise InvariantError(f"block {block} of {self._next} handed out is mapped {times} times")
