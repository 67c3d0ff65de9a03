"""A cohort whose members are owed the blocks that they fill: a step asks how many, and nobody which.

Where a sequence takes one block whenever its last one is full, the members that need one in a step are those whose
contexts have the same rest by the block size. So the calendar is a count for each rest, many steps can be foreseen, and
ids are handed out only when a member is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagedlab.allocator.base import Allocator
from pagedlab.core.plan import Plan, Together
from pagedlab.core.request import Sequence
from pagedlab.scheduler.cohort import Cohort, Foretold, _Member


class OwingCohort(Cohort):
    """For an allocator that says how its sequences grow (`Allocator.grows`), and caches nothing."""

    def __init__(self, allocator: Allocator, foretold: Foretold):
        super().__init__(allocator, foretold)
        self._size = allocator.pool.block_size
        self._due = [0] * self._size  # members whose blocks are full when a step begins, by the step's rest

    def coasting(self, most: int) -> tuple[Together, Iterator[int]] | None:
        if self.apart or not 0 < len(self._members) <= most or self._num_full() > self._allocator.pool.num_available:
            return None
        told = self._told(len(self._members))
        return told, self._unplanned(told.ended)

    def _unplanned(self, ended: list[Sequence] | None = None) -> Iterator[int]:
        """ended: who has, while the steps are taken."""
        step, left, due, size = len(self._times), self._allocator.pool.num_available, self._due, self._size
        while (left := left - (blocks := due[step % size])) >= 0:
            yield blocks
            step += 1
            if ended and self._allocator.grows:
                due = due.copy()
                for seq in ended:
                    member = self._members[seq.id]
                    due[member.due] -= 1
                    left += -(-(seq.computed + step - member.since) // size)
                ended.clear()

    def _num_full(self) -> int:
        return self._due[len(self._times) % self._size]

    def _give_blocks(self, plan: Plan) -> int:
        owed = self._num_full()
        self._allocator.fill(len(self._members), owed)
        return owed

    def _await_full(self, member: _Member, blocks: int, computed: int) -> None:
        if self._allocator.grows:
            member.due = (len(self._times) + blocks * self._size - computed) % self._size
            self._due[member.due] += 1

    def left(self, ended: list[Sequence], steps: int) -> list[Sequence]:
        """As no cache wants to know of anybody else."""
        for seq in ended:
            member = self._members.pop(seq.id)
            self._settle(member, steps)
            if member.due >= 0:
                self._due[member.due] -= 1
        return sorted(ended, key=self._rank) if len(ended) > 1 else ended

    def _forget_growth(self) -> None:
        self._due = [0] * self._size
