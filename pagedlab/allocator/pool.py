"""The block pool: N blocks of B token slots, handed out by id, reference counted."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence as Seq

from pagedlab.core.errors import InvariantError, OutOfBlocks


class BlockPool:
    """N blocks of B slots. A block is free (no references) or held (one reference a sequence that maps it).

    Free blocks wait in the order of their release and are handed out from the front. An OrderedDict gives O(1)
    at both ends and in the middle: contiguous allocators take chosen ids out of it, and so will prefix hits.
    """

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.ref = [0] * num_blocks
        self._fenced: set[int] = set()
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._owed = 0

    @property
    def num_free(self) -> int:
        return len(self._free) - self._owed

    @property
    def num_idle(self) -> int:
        """Blocks that nobody holds and whose content is kept: none, without a cache."""
        return 0

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out."""
        return len(self._free) - self._owed

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_free - self.num_idle

    def is_shared(self, block: int) -> bool:
        """Whether more than one sequence maps it."""
        return self.ref[block] > 1

    def references(self, block: int) -> int:
        """Entries of block tables that map it."""
        return self.ref[block]

    def free_ids(self) -> list[int]:
        """The free blocks, next to be handed out first."""
        return list(self._free)

    def allocate(self, n: int) -> list[int]:
        """Hand out the n blocks that were free longest. OutOfBlocks, and nothing changed, where there are fewer."""
        if n > self.num_free:
            raise OutOfBlocks(f"{n} blocks asked, {self.num_free} free")
        return self._hand_out(n)

    def owe(self, n: int) -> None:
        """n blocks are held from now on; which ones `settle` decides. InvariantError where fewer are free."""
        if n > self.num_free:
            raise InvariantError(f"{n} blocks to be owed, {self.num_free} free")
        self._owed += n

    def settle(self, n: int) -> list[int]:
        """Hand out n of the blocks that are owed."""
        if n > self._owed:
            raise InvariantError(f"{n} blocks to be settled, {self._owed} owed")
        self._owed -= n
        return self._hand_out(n)

    def _hand_out(self, n: int) -> list[int]:
        take, ref = self._free.popitem, self.ref
        ids = [take(last=False)[0] for _ in range(n)]
        for block in ids:
            ref[block] = 1
        return ids

    def take(self, ids: Seq[int]) -> None:
        """Hand out exactly these free blocks. OutOfBlocks, and nothing changed, where one is not free."""
        held = [block for block in ids if block not in self._free]
        if held or len(set(ids)) != len(ids):
            raise OutOfBlocks(f"blocks {held or ids} are not free, or asked twice")
        for block in ids:
            del self._free[block]
            self.ref[block] = 1

    def retain(self, ids: Seq[int]) -> None:
        """One more sequence maps these held blocks."""
        for block in ids:
            if self.ref[block] == 0:
                raise InvariantError(f"block {block} is retained while it is free")
        for block in ids:
            self.ref[block] += 1

    def release(self, ids: Seq[int]) -> int:
        """Drop one reference for each entry of a block table; returns how many nobody holds any more.

        Deepest block first, so that the start of a sequence, the part most worth keeping, is reused last.
        Releasing what is not held is a fault of the caller: InvariantError, and nothing changed.
        """
        # Counted one by one only where a block comes twice, or too often: a table that is as it should be has neither.
        if ids and (len(set(ids)) != len(ids) or min(map(self.ref.__getitem__, ids)) < 1):
            for block, times in Counter(ids).items():
                if self.ref[block] < times:
                    raise InvariantError(f"block {block} is released {times} times with {self.ref[block]} references")
        freed, ref = 0, self.ref
        for block in reversed(ids):
            ref[block] -= 1
            if ref[block] == 0:
                self._let_go(block)
                freed += 1
        return freed

    def fence(self, block: int) -> None:
        """The step being planned reads this block, or writes to it, whoever holds it: it is handed out to nobody until
        the step is over, were it released before."""
        self._fenced.add(block)

    def lift_fences(self) -> None:
        """The step is over."""
        if not self._fenced:
            return
        fenced, self._fenced = self._fenced, set()
        for block in fenced:
            if self._waits(block):
                self._let_go(block)

    def _let_go(self, block: int) -> None:
        """Nobody holds it any more."""
        if block not in self._fenced:
            self._free[block] = None

    def audit(self, tables: Seq[Seq[int]]) -> None:
        """Every block is either free or held, and held exactly as often as `tables` map it."""
        mapped = Counter(block for table in tables for block in table)
        for block in range(self.num_blocks):
            if self.ref[block] != mapped[block]:
                raise InvariantError(f"block {block}: {self.ref[block]} references, {mapped[block]} table entries")
            if self.ref[block] == 0:
                self._audit_unheld(block)
            elif block in self._free:
                raise InvariantError(f"block {block}: {self.ref[block]} references, and free")
        if self._owed:
            raise InvariantError(f"{self._owed} blocks are owed to nobody")
        waiting = sum(self._waits(block) for block in self._fenced)
        if self.num_free + self.num_idle + waiting + len(mapped) != self.num_blocks:
            raise InvariantError(
                f"{self.num_free} free + {self.num_idle} idle + {waiting} fenced + {len(mapped)} held "
                f"!= {self.num_blocks} blocks"
            )

    def _waits(self, block: int) -> bool:
        """Whether a fenced block is free as soon as the step is over."""
        return self.ref[block] == 0 and block not in self._free

    def _audit_unheld(self, block: int) -> None:
        if (block in self._free) == (block in self._fenced):
            raise InvariantError(
                f"block {block}: no references, free {block in self._free}, fenced {block in self._fenced}"
            )
