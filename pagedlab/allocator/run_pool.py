"""A pool that takes and gives runs of consecutive blocks, each as a whole: for a simulation of reserving allocators."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from pagedlab.allocator.pool import BlockPool
from pagedlab.core.errors import InvariantError, OutOfBlocks


class RunPool(BlockPool):
    """Which blocks are held is a string of flags, of which a run is a slice: a block costs no look of its own. The
    allocator chooses the runs; nothing can be shared, so there are no references to count."""

    def __init__(self, num_blocks: int, block_size: int):
        super().__init__(0, block_size)
        self.num_blocks = num_blocks
        self._held = bytearray(num_blocks)
        self._num_held = 0

    @property
    def num_free(self) -> int:
        return self.num_blocks - self._num_held

    @property
    def num_available(self) -> int:
        return self.num_blocks - self._num_held

    def free_ids(self) -> list[int]:
        return [block for block, held in enumerate(self._held) if not held]

    def is_shared(self, block: int) -> bool:
        return False

    def references(self, block: int) -> int:
        return 1

    def allocate(self, n: int) -> list[int]:
        raise InvariantError(f"any {n} blocks are asked for, of a pool whose runs are chosen")

    def owe(self, n: int) -> None:
        raise InvariantError(f"{n} blocks to be owed, by a pool whose runs are chosen")

    def retain(self, ids: Seq[int]) -> None:
        raise InvariantError(f"blocks {ids} are to be shared, of a pool that keeps no references")

    def take(self, ids: Seq[int]) -> None:
        start, end = self._run(ids)
        if self._held.find(1, start, end) >= 0:
            raise OutOfBlocks(f"of the blocks from {start} to {end - 1} some are not free")
        self._held[start:end] = b"\1" * len(ids)
        self._num_held += len(ids)

    def release(self, ids: Seq[int]) -> int:
        start, end = self._run(ids)
        if self._held.find(0, start, end) >= 0:
            raise InvariantError(f"of the blocks from {start} to {end - 1}, released, some are not held")
        self._held[start:end] = bytes(len(ids))
        self._num_held -= len(ids)
        return len(ids)

    def audit(self, tables: Seq[Seq[int]]) -> None:
        """Every held block is in one table, once."""
        mapped = sorted(block for table in tables for block in table)
        held = [block for block, flag in enumerate(self._held) if flag]
        if mapped != held or len(held) != self._num_held:
            raise InvariantError(
                f"{len(held)} blocks are held, {self._num_held} counted and {len(mapped)} in tables, not the same once"
            )

    def _run(self, ids: Seq[int]) -> tuple[int, int]:
        """(first, after the last)."""
        if not ids:
            return 0, 0
        start, end = ids[0], ids[-1] + 1
        if not 0 <= start <= end <= self.num_blocks or end - start != len(ids):
            raise InvariantError(f"blocks {list(ids)} are not a run of the pool's {self.num_blocks}")
        return start, end
