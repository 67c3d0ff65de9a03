"""Decoding sequences that advance as one: a step costs what changes, not what runs.

A sequence that decodes changes in the same way at every step: one token more, one slot more, one time more. As long
as an executor can foretell its tokens, none of that has to be written down before somebody looks at it. The cohort
counts its steps and keeps the time of each; a member is brought up to date (settled) when it ends, when memory runs
out, and when an audit looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagedlab.allocator.base import Allocator
from pagedlab.core.errors import InvariantError
from pagedlab.core.plan import Growth, Plan, Together
from pagedlab.core.request import Request, Sequence

# (request, start, stop) -> the output tokens start to stop.
Foretold = Callable[[Request, int, int], list[int]]


@dataclass(slots=True, eq=False)
class _Member:
    """since: the cohort's steps when it was last up to date."""

    seq: Sequence
    since: int


class Cohort:
    """The running sequences that have a token to feed in every decode step: they are in no plan's batch.

    apart: the running sequences that are not among them, under their ids, in order of admission.
    """

    def __init__(self, allocator: Allocator, foretold: Foretold):
        self._allocator = allocator
        self._foretold = foretold
        self.apart: dict[int, Sequence] = {}
        self._ranks: dict[int, int] = {}  # id -> place in the order of admission, of all that run
        self._admissions = 0
        self._members: dict[int, _Member] = {}
        self._times: list[float] = []  # the end of every step that the cohort took
        # Step -> the members whose blocks are full when it begins, those that have left included.
        self._full: dict[int, list[_Member]] = {}
        self._joined: list[Sequence] = []
        self._dissolved = False

    def admitted(self, seq: Sequence) -> None:
        """A sequence has entered the batch: on its own, at first."""
        self.apart[seq.id] = seq
        self._ranks[seq.id] = self._admissions
        self._admissions += 1

    def vacated(self, seq: Sequence) -> None:
        """A sequence that is no member has left the batch."""
        self.apart.pop(seq.id, None)
        del self._ranks[seq.id]

    def join(self, seq: Sequence) -> None:
        """A sequence that has just got a token becomes a member, from the next decode step on."""
        del self.apart[seq.id]
        member = _Member(seq, len(self._times))
        self._members[seq.id] = member
        self._joined.append(seq)
        self._await_full(member, len(self._allocator.holdings[seq.id].table), seq.computed)

    def decode(self, plan: Plan, most: int) -> bool:
        """Feed all that decode, and so every member, its token.

        False, and nothing planned, when they are more than `most`, or need more blocks than are free, or one that is no
        member decodes too (of a prompt's chunks the last may be a single token): the cohort is then dissolved, and
        each has to be looked at.
        """
        if any(seq.pending == 1 for seq in self.apart.values()):
            self.dissolve()
            return False
        if not self._members:
            return True
        step = len(self._times)
        full = [m for m in self._full.pop(step, ()) if self._members.get(m.seq.id) is m]
        if len(self._members) > most or len(full) > self._allocator.pool.num_available:
            self.dissolve()
            return False
        for member in sorted(full, key=self._rank) if len(full) > 1 else full:
            self._grow(member, plan)
        self._allocator.fill(len(self._members) - len(full))
        plan.total_tokens += len(self._members)
        plan.together = self._told(len(self._members))
        return True

    def tell(self, plan: Plan) -> None:
        """A plan in which no member runs has to say who joined all the same."""
        if plan.together is None and (self._joined or self._dissolved):
            plan.together = self._told(0)

    def took(self, now: float, ended: list[Sequence]) -> list[Sequence]:
        """The decode step that was planned has been executed. Returns who is to be looked at, brought up to date, in
        order of admission: those that ended, members no longer, and, where a cache wants to know, those that have
        filled a block."""
        self._times.append(now)
        members = [self._members[seq.id] for seq in ended]
        if self._allocator.caches:
            gone = {seq.id for seq in ended}
            full = self._full.get(len(self._times), ())
            members += [m for m in full if self._members.get(m.seq.id) is m and m.seq.id not in gone]
        for member in members:
            self._settle(member)
        for seq in ended:
            del self._members[seq.id]
        return [member.seq for member in sorted(members, key=self._rank)]

    def settle(self) -> None:
        """Bring every member up to date; all stay."""
        for member in self._members.values():
            self._settle(member)

    def dissolve(self) -> None:
        """Bring every member up to date and let all go: whoever is about to look at each, or to take one out of the
        batch before its end, calls this."""
        if not self._members:
            return
        self.settle()
        everybody = self.apart | {id: member.seq for id, member in self._members.items()}
        self.apart = {id: everybody[id] for id in sorted(everybody, key=self._ranks.__getitem__)}
        self._members.clear()
        self._full.clear()
        self._joined, self._dissolved = [], True

    def _rank(self, member: _Member) -> int:
        return self._ranks[member.seq.id]

    def _told(self, count: int) -> Together:
        told = Together(count, self._joined, self._dissolved)
        self._joined, self._dissolved = [], False
        return told

    def _grow(self, member: _Member, plan: Plan) -> None:
        seq, allocator = member.seq, self._allocator
        computed = seq.computed + len(self._times) - member.since
        allocator.catch_up(seq.id, computed)
        new = allocator.grow(seq.id, computed + 1)
        if not new:
            raise InvariantError(f"sequence {seq.id} fills its blocks and was given {new}")
        table = allocator.holdings[seq.id].table
        plan.grown.append(Growth(seq.row, len(table) - len(new), new))
        self._await_full(member, len(table), computed)

    def _await_full(self, member: _Member, blocks: int, computed: int) -> None:
        """The member has so many blocks, and as many tokens in them before the next step."""
        left = blocks * self._allocator.pool.block_size - computed
        self._full.setdefault(len(self._times) + left, []).append(member)

    def _settle(self, member: _Member) -> None:
        steps = len(self._times) - member.since
        if steps == 0:
            return
        seq = member.seq
        seq.computed += steps
        seq.output.extend(self._foretold(seq.request, len(seq.output), len(seq.output) + steps))
        seq.token_s.extend(self._times[member.since :])
        member.since += steps
        self._allocator.catch_up(seq.id, seq.computed)
