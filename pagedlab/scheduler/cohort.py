"""Decoding sequences that advance as one: a step costs what changes, not what runs.

A sequence that decodes changes in the same way at every step: one token more, one slot more, one time more. As long
as an executor can foretell its tokens, none of that has to be written down before somebody looks at it. The cohort
counts its steps and keeps the time of each; a member is brought up to date (settled) when it ends, when memory runs
out, and when an audit looks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pagedlab.allocator.base import Allocator
from pagedlab.core.errors import InvariantError
from pagedlab.core.plan import Growth, Plan, Together
from pagedlab.core.request import Request, Sequence
from pagedlab.core.told import Stamps, Told

# (request, start, stop) -> the output tokens start to stop.
Foretold = Callable[[Request, int, int], list[int]]


@dataclass(slots=True, eq=False)
class _Member:
    """since: the cohort's steps when it was last up to date. due: when it fills its blocks, as the cohort counts."""

    seq: Sequence
    since: int
    output: Told
    times: Stamps
    due: int = -1


class Cohort:
    """The running sequences that have a token to feed in every decode step: they are in no plan's batch.

    apart: the running sequences that are not among them, under their ids, in order of admission.
    """

    def __init__(self, allocator: Allocator, foretold: Foretold):
        self._allocator = allocator
        self._caches = allocator.caches
        self._foretold = foretold
        self.apart: dict[int, Sequence] = {}
        self._ranks: dict[int, int] = {}  # id -> place in the order of admission, of all that run
        self._admissions = 0
        self._members: dict[int, _Member] = {}
        self._times = array("d")  # the end of every step that the cohort took
        # Step -> the members whose blocks are full when it begins, those that have left included.
        self._full: dict[int, list[_Member]] = {}
        self._asking: dict[int, _Member] = {}  # members of whose blocks a cache may take in more after any step
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

    def first(self, seq: Sequence) -> Told:
        """The first token of a sequence."""
        return Told(self._foretold, seq.request, 1)

    def begin(self, seq: Sequence, now: float) -> None:
        """A sequence has just got its first token, and becomes a member. No cache asks for it."""
        output, times = self.first(seq), Stamps(self._times, [now])
        seq.output, seq.token_s = output, times
        self._add(_Member(seq, len(self._times), output, times))

    def join(self, seq: Sequence, kept: bool) -> None:
        """A sequence that has just got a token becomes a member, from the next decode step on. kept: as for `kept`."""
        output, times = seq.output, seq.token_s
        if not isinstance(output, Told):
            output = seq.output = Told(self._foretold, seq.request, len(output))
        if not isinstance(times, Stamps):
            times = seq.token_s = Stamps(self._times, times)
        member = _Member(seq, len(self._times), output, times)
        self._add(member)
        if not kept:
            self._asking[seq.id] = member

    def _add(self, member: _Member) -> None:
        seq = member.seq
        del self.apart[seq.id]
        self._members[seq.id] = member
        self._joined.append(seq)
        self._await_full(member, len(self._allocator.holdings[seq.id].table), seq.computed)

    def kept(self, seq: Sequence, whole: bool) -> None:
        """Whether a cache has taken in all that a member computed; else it is to be asked again after each step."""
        if whole:
            self._asking.pop(seq.id, None)
        else:
            self._asking[seq.id] = self._members[seq.id]

    def decode(self, plan: Plan, most: int) -> bool:
        """Feed all that decode, and so every member, its token.

        False, and nothing planned, when they are more than `most`, or need more blocks than are free, or one that is no
        member decodes too (of a prompt's chunks the last may be a single token), or may have to preempt somebody
        (branches that feed again what they had generated): the cohort is then dissolved, and each has to be looked at.
        """
        for seq in self.apart.values():
            if seq.forked or seq.to_compute == 1:
                self.dissolve()
                return False
        if not self._members:
            return True
        if len(self._members) > most or self._num_full() > self._allocator.pool.num_available:
            self.dissolve()
            return False
        owed = self._give_blocks(plan)
        plan.total_tokens += len(self._members)
        plan.together = self._told(len(self._members), owed)
        return True

    def coasting(self, most: int) -> tuple[Together, Iterator[int]] | None:
        """Those who run, and the blocks that their tables will grow by in each coming step, as long as there is nothing
        to do in them but to decode. None where the next one is to be planned, or has more than `most` tokens."""
        if self.apart or self._asking or not 0 < len(self._members) <= most or len(self._times) in self._full:
            return None
        return self._told(len(self._members)), self._unplanned()

    def _unplanned(self) -> Iterator[int]:
        step = len(self._times)
        while step not in self._full:
            yield 0
            step += 1

    def coasted(self, ends: list[float]) -> None:
        """Steps that ended then were taken; they are counted by the allocator, and `left` is told who ended in them."""
        self._times.fromlist(ends)

    @property
    def steps(self) -> int:
        """How many all have taken."""
        return len(self._times)

    @property
    def size(self) -> int:
        return len(self._members)

    def tell(self) -> Together | None:
        """Of a step in which no member runs, who joined all the same."""
        return self._told(0) if self._joined or self._dissolved else None

    def took(self, now: float, ended: list[Sequence]) -> list[Sequence]:
        """The decode step that was planned has been executed. Returns who is to be looked at, as `left`."""
        self._times.append(now)
        return self.left(ended, len(self._times))

    def left(self, ended: list[Sequence], steps: int) -> list[Sequence]:
        """These ended when so many steps had been taken. Returns who is to be looked at, brought up to date, in order
        of admission: they, members no longer, and, where a cache wants to know, those that have filled a block or have
        one that it would not take before."""
        caches, looked_at = self._caches, ended
        if caches:
            asking = self._asking | {m.seq.id: m for m in self._filled(steps)}
            gone = {seq.id for seq in ended}
            others = [m.seq for id, m in asking.items() if id not in gone]
            looked_at = ended + others
            for seq in others:
                self._settle(self._members[seq.id], steps)
        if len(looked_at) > 1:
            looked_at = sorted(looked_at, key=self._rank)
        for seq in ended:
            if caches:
                self._asking.pop(seq.id, None)
            member = self._members.pop(seq.id)
            self._settle(member, steps)
        return looked_at

    def settle(self) -> None:
        """Bring every member up to date; all stay."""
        for member in self._members.values():
            self._settle(member, len(self._times))

    def dissolve(self) -> None:
        """Bring every member up to date and let all go: whoever is about to look at each, or to take one out of the
        batch before its end, calls this."""
        if not self._members:
            return
        self.settle()
        everybody = self.apart | {id: member.seq for id, member in self._members.items()}
        self.apart = {id: everybody[id] for id in sorted(everybody, key=self._ranks.__getitem__)}
        self._members.clear()
        self._asking.clear()
        self._forget_growth()
        self._joined, self._dissolved = [], True

    def _rank(self, seq: Sequence) -> int:
        return self._ranks[seq.id]

    def _told(self, count: int, owed: int = 0) -> Together:
        told = Together(count, self._joined, self._dissolved, owed)
        self._joined, self._dissolved = [], False
        return told

    # ---- who fills a block when -------------------------------------------------------------------------------

    def _num_full(self) -> int:
        """Members whose blocks are full when the next step begins."""
        return len(self._filled(len(self._times)))

    def _filled(self, step: int) -> list[_Member]:
        return [m for m in self._full.get(step, ()) if self._members.get(m.seq.id) is m]

    def _give_blocks(self, plan: Plan) -> int:
        """All fill one slot more, some of them in a new block. Returns how many blocks are owed for it."""
        full = self._filled(len(self._times))
        self._full.pop(len(self._times), None)
        for member in sorted(full, key=lambda m: self._rank(m.seq)) if len(full) > 1 else full:
            self._grow(member, plan)
        self._allocator.fill(len(self._members) - len(full))
        return 0

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

    def _forget_growth(self) -> None:
        self._full.clear()

    def _settle(self, member: _Member, now: int) -> None:
        """Bring it up to date as of so many steps."""
        since = member.since
        if now > since:
            seq = member.seq
            seq.computed += now - since
            member.output.length += now - since
            member.times.stretch(since, now)
            member.since = now
            self._allocator.catch_up(seq.id, seq.computed)
