"""A pool whose blocks outlive their sequences: a block with a name stays, cached and idle, until its room is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from pagedlab.allocator.pool import BlockPool
from pagedlab.core.errors import InvariantError, OutOfBlocks
from pagedlab.eviction.base import Entry, Eviction, Retention


class CachingPool(BlockPool):
    """A block is free, held, or cached and idle: held by nobody, its content still to be found under its key.

    When free blocks run out the eviction policy chooses among the idle ones. Those that are pinned it is never
    offered. Tells it all that its contract asks for.

    A policy may be anybody's, and fail. So the pool's own books are kept apart from what the policy is told: `release`
    tells it nothing, and what it is to know of that it is told before anything else. No block is lost, whichever call
    of it raises.
    """

    def __init__(self, num_blocks: int, block_size: int, eviction: Eviction):
        super().__init__(num_blocks, block_size)
        self._policy = eviction
        self.evicted: Callable[[int], Iterable[int]] = lambda key: (key,)
        """Told each key that the policy gives up; returns all that are cached no longer with it, itself included."""
        self._keys: dict[int, int] = {}  # of every cached block, held or idle
        self._blocks: dict[int, int] = {}  # by key
        self._idle: set[int] = set()
        self._pinned: set[int] = set()
        self._untold: list[int] = []  # idle since a moment ago, which the policy does not know yet

    @property
    def eviction(self) -> Eviction:
        """The policy, which knows all that has happened."""
        if self._untold:
            self._tell()
        return self._policy

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def num_available(self) -> int:
        return len(self._free) + self.eviction.num_offered

    @property
    def num_pinned(self) -> int:
        return len(self._pinned)

    def is_cached(self, block: int) -> bool:
        return block in self._keys

    @property
    def num_cached(self) -> int:
        return len(self._keys)

    def is_pinned(self, block: int) -> bool:
        return block in self._pinned

    def key_of(self, block: int) -> int | None:
        return self._keys.get(block)

    # ---- content ----------------------------------------------------------------------------------------------

    def cache(self, block: int, key: int, entry: Entry, retention: Retention, pinned: bool = False) -> None:
        """From now on the content of this held block is found under `key`."""
        if self.ref[block] == 0 or block in self._keys or key in self._blocks:
            raise InvariantError(f"block {block} with {self.ref[block]} references is cached as {key} again, or unheld")
        self.eviction.insert(key, entry, retention)
        self._keys[block], self._blocks[key] = key, block
        if pinned:
            self._pinned.add(block)

    def hold(self, blocks: Seq[int], retention: Retention) -> None:
        """One more sequence maps these cached blocks, idle ones or held."""
        for block in blocks:
            key = self._keys[block]
            if self.may_go(block):
                self.eviction.withdraw(key)
            self.eviction.hit(key, retention)
        for block in blocks:
            if self.ref[block] == 0:
                self._idle.remove(block)
            self.ref[block] += 1

    def pin(self, blocks: Seq[int]) -> None:
        """These held, cached blocks are never evicted."""
        self._pinned.update(blocks)

    def fence(self, block: int) -> None:
        """Cached and held by nobody, it is kept as well."""
        if self.may_go(block):
            self.eviction.withdraw(self._keys[block])
        self._fenced.add(block)

    def lift_fences(self) -> None:
        """The step is over."""
        self._tell()  # what was released while it was fenced
        fenced, self._fenced = self._fenced, set()
        for block in fenced:
            if self.may_go(block):
                self.eviction.offer(self._keys[block])
            elif self._waits(block):
                self._let_go(block)

    def may_go(self, block: int) -> bool:
        """Whether the policy has, or is to have, the block on offer."""
        return block in self._idle and block not in self._pinned and block not in self._fenced

    # ---- blocks -----------------------------------------------------------------------------------------------

    def allocate(self, n: int) -> list[int]:
        if n > self.num_available:
            raise OutOfBlocks(f"{n} blocks asked, {self.num_free} free and {self.eviction.num_offered} evictable")
        while len(self._free) < n:
            for key in self.evicted(evicted := self.eviction.evict()):
                block = self._blocks.pop(key)
                del self._keys[block]
                self._pinned.discard(block)
                if block in self._idle:
                    self._idle.remove(block)
                    self._let_go(block)
                if key != evicted:
                    self.eviction.forget(key)
        return super().allocate(n)

    def _let_go(self, block: int) -> None:
        key = self._keys.get(block)
        if key is None:
            super()._let_go(block)
            return
        self._idle.add(block)
        self._untold.append(block)

    def _tell(self) -> None:
        untold, self._untold = self._untold, []
        for block in untold:
            key = self._keys[block]
            self._policy.free(key)
            if self.may_go(block):
                self._policy.offer(key)

    def _waits(self, block: int) -> bool:
        return super()._waits(block) and block not in self._idle

    def _audit_unheld(self, block: int) -> None:
        if block not in self._idle:
            super()._audit_unheld(block)
        elif block in self._free:
            raise InvariantError(f"block {block} has no references: free and idle")
        if block in self._idle and block not in self._keys:
            raise InvariantError(f"block {block} is idle without content")
        if block in self._free and block in self._keys:
            raise InvariantError(f"block {block} is free and cached")

    def audit(self, tables: Seq[Seq[int]]) -> None:
        super().audit(tables)
        self.eviction.audit()
        if {key: block for block, key in self._keys.items()} != self._blocks:
            raise InvariantError("keys of blocks and blocks of keys differ")
        if not self._pinned <= self._keys.keys():
            raise InvariantError(f"blocks {sorted(self._pinned - self._keys.keys())} are pinned and not cached")
        may_go = sum(map(self.may_go, self._idle))
        if self.eviction.num_offered != may_go:
            raise InvariantError(
                f"{self.eviction.num_offered} blocks may be evicted, {may_go} are idle, neither pinned nor fenced"
            )
