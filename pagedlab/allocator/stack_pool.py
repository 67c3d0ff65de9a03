"""A pool that takes and gives whole block tables: for a simulation, in which nobody ever reads or shares a block."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from pagedlab.allocator.pool import BlockPool
from pagedlab.core.errors import InvariantError


class StackPool(BlockPool):
    """Free blocks lie on a stack, of which a table is a slice: a block costs no look of its own.

    How many blocks are free, held and owed is as in every pool, which of them are not. Nothing can be shared, and no
    block can be chosen, so there are no references to count.
    """

    def __init__(self, num_blocks: int, block_size: int):
        super().__init__(0, block_size)
        self.num_blocks = num_blocks
        self._stack = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._stack) - self._owed

    @property
    def num_available(self) -> int:
        return len(self._stack) - self._owed

    def free_ids(self) -> list[int]:
        return self._stack[::-1]

    def is_shared(self, block: int) -> bool:
        return False

    def references(self, block: int) -> int:
        return 1

    def _hand_out(self, n: int) -> list[int]:
        left = len(self._stack) - n
        ids = self._stack[left:]
        del self._stack[left:]
        return ids

    def take(self, ids: Seq[int]) -> None:
        raise InvariantError(f"blocks {ids} are asked for by number, of a pool that lets nobody choose")

    def retain(self, ids: Seq[int]) -> None:
        raise InvariantError(f"blocks {ids} are to be shared, of a pool that keeps no references")

    def release(self, ids: Seq[int]) -> int:
        if len(ids) > self.num_blocks - len(self._stack):
            raise InvariantError(f"{len(ids)} blocks are released, {self.num_blocks - len(self._stack)} held")
        self._stack += ids
        return len(ids)

    def audit(self, tables: Seq[Seq[int]]) -> None:
        """Every block is free or in one table, once."""
        if self._owed:
            raise InvariantError(f"{self._owed} blocks are owed to nobody")
        everywhere = sorted([*self._stack, *(block for table in tables for block in table)])
        if everywhere != list(range(self.num_blocks)):
            raise InvariantError(
                f"{len(self._stack)} free + {len(everywhere) - len(self._stack)} held, of {self.num_blocks} blocks "
                "not each is there once"
            )
