"""The scheduler: who waits, who runs, and what one step does. Policies are its four seams; the mechanics are here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from pagedlab.allocator.base import Allocator, Grant
from pagedlab.core.errors import InvariantError
from pagedlab.core.plan import Admission as Admitted
from pagedlab.core.plan import Choice, Copy, Entry, Fork, Growth, Load, Outcome, Plan, Return, Together
from pagedlab.core.plan import Preemption as PreemptionRecord
from pagedlab.core.request import Key, Request, Sequence, Status
from pagedlab.core.wakeup import never
from pagedlab.preemption.base import Preemption
from pagedlab.preemption.victim.base import Victim
from pagedlab.scheduler.admission.base import Admission
from pagedlab.scheduler.beam import BeamSearch
from pagedlab.scheduler.cohort import Cohort, Foretold
from pagedlab.scheduler.group import Group, Samples
from pagedlab.scheduler.order.base import Order
from pagedlab.scheduler.owing import OwingCohort

if TYPE_CHECKING:
    from pagedlab.scheduler.batching.base import Batching

RAN_OUT = "pool exhausted"
OUTRANKED = "outranked"


class Scheduler:
    """order (who next) x admission (may it) x batching (what runs) x victim and preemption (who yields, and how).

    Somebody yields where a block is needed that is not free: whom the victim policy says. With `preemptive` also where
    the next in line lacks rows or blocks, and those behind it in the order hold enough of them: the last ones. Then the
    victim policy, too, chooses among those behind alone, or two requests could take each other's blocks for ever.

    A step is `schedule` (a plan), the executor, then `commit` (its outcome). Between the two, nothing else may
    be called. Rows of the executor's block table are given out here: 0 <= row < max_num_seqs.

    A request is one sequence or, for several outputs, a trunk with its branches (a `Group` says what they generate). It
    is admitted with a row for each of them, all of them run in a step or none, and they are preempted together.
    """

    def __init__(
        self,
        allocator: Allocator,
        order: Order,
        admission: Admission,
        batching: Batching,
        preemption: Preemption,
        victim: Victim,
        max_num_seqs: int,
        preemptive: bool = False,
        foretold: Foretold | None = None,
        skip: bool = False,
    ):
        """foretold: of an executor that can tell its tokens beforehand: sequences that decode then advance together,
        unless a policy looks at each of them in every step (`watches`), or they may have to yield to who waits. skip:
        and several steps at a time, while nothing can happen between them and the policies agree."""
        self.allocator = allocator
        self.order = order
        self.admission = admission
        self.batching = batching
        self.preemption = preemption
        self.victim = victim
        self.max_num_seqs = max_num_seqs
        self.preemptive = preemptive
        self.running: list[Sequence] = []  # requests: of several outputs, the trunk
        self._groups: dict[int, Group] = {}
        self._rows = list(range(max_num_seqs - 1, -1, -1))
        self._released: list[int] = []
        self._forked: list[Fork] = []
        self._copies: list[Copy] = []
        policies = (order, admission, batching, preemption)
        self._wakeups = [policy.next_wakeup for policy in policies if type(policy).next_wakeup is not never]
        self._skips = skip and foretold is not None and allocator.grows is not None
        self._caches = allocator.caches
        self._cohort: Cohort | None = None  # of those that decode, who advance together
        if foretold is not None and not (preemptive or order.watches or admission.watches):
            owing = self._skips and not self._caches
            self._cohort = OwingCohort(allocator, foretold) if owing else Cohort(allocator, foretold)
        # The head of the queue is known to be refused, and will be until somebody ends.
        self._stuck = self._blocked = False
        self._swapped: list[Sequence] = []  # of those that wait
        self._high_water: dict[Key, int] = {}  # tokens computed of a sequence before it was preempted

    # ---- requests ---------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Sequence:
        """Queue a request. One that can never be served comes back refused, with the reason and its numbers.

        max_tokens is cut to what max_model_len leaves, as servers do: generation then ends with "length".
        """
        limit, prompt_tokens, width = self.allocator.max_model_len, request.prompt_tokens, request.width
        room = limit - prompt_tokens + 1  # the last token is never fed, so needs no place
        if 1 <= room < request.max_tokens:
            request = replace(request, max_tokens=room)
        group = self._group(request) if width > 1 else None
        seq = group.trunk if group else Sequence(request)
        if prompt_tokens < 1 or request.max_tokens < 1:
            seq.refusal = (
                f"request {request.id} has {request.prompt_tokens} prompt and {request.max_tokens} new tokens, "
                "expected at least 1 of each"
            )
        elif room < 1:
            seq.refusal = f"request {request.id} has {request.prompt_tokens} prompt tokens, max_model_len is {limit}"
        elif width > min(self.max_num_seqs, self.batching.max_tokens):
            seq.refusal = (
                f"request {request.id} runs {request.width} sequences side by side, max_num_seqs is "
                f"{self.max_num_seqs} and max_num_batched_tokens {self.batching.max_tokens}"
            )
        else:
            seq.refusal = self.allocator.refusal(request) or ""
        if seq.refusal:
            seq.status = Status.REFUSED
        else:
            self._stuck = False
            self.order.push(seq)
            if group:
                self._groups[seq.id] = group
        return seq

    def _group(self, request: Request) -> Group:
        return BeamSearch(request) if request.sampling.beam_width > 1 else Samples(request)

    def abort(self, seq: Sequence) -> None:
        """Drop a request in whatever state it is, between steps. Aborting an ended request does nothing."""
        if seq.status in (Status.WAITING, Status.PREEMPTED):
            self.order.remove(seq)
            if seq.swapped:
                self._swapped.remove(seq)
                self.allocator.forget(seq)
                seq.swapped = seq.forked = False
            for part in seq.parts:
                self._high_water.pop(part.key, None)
        elif seq.status is Status.RUNNING:
            if self._cohort is not None:
                self._cohort.dissolve()
            self._leave(seq, seq.parts)
            for branch in seq.branches:  # one that had ended in a step that failed has its blocks still
                if branch.key in self.allocator.holdings:
                    self.allocator.release(branch.key)
            self._stop(seq)
        else:
            return
        self._stuck = False
        self._groups.pop(seq.id, None)
        self.order.ended(seq)
        for ended in (seq, *seq.parts):
            ended.status, ended.finish_reason = Status.FINISHED, "abort"

    @property
    def num_waiting(self) -> int:
        return len(self.order)

    @property
    def num_running(self) -> int:
        """Sequences that run: of a request, its trunk or its branches."""
        if not self._groups:
            return len(self.running)
        trunks = [group.trunk for group in self._groups.values()]
        branches = sum([trunk.num_feeding - 1 for trunk in trunks if trunk.status is Status.RUNNING])
        return len(self.running) + branches

    @property
    def has_work(self) -> bool:
        return bool(self.running) or len(self.order) > 0

    # ---- one step ---------------------------------------------------------------------------------------------

    def schedule(self, now: float = 0.0) -> Plan:
        """Decide the next step, at `now` seconds. An empty batch means that nothing can run."""
        self.allocator.time(now)
        self.order.time(now)
        plan = Plan(self._released, self._forked, copies=self._copies)
        self._released, self._forked, self._copies = [], [], []
        plan.admission_estimate = self.admission.estimate
        self.batching.fill(plan, self)
        ran_out = bool(plan.preempted) and any(record.reason == RAN_OUT for record in plan.preempted)
        self._look_at_queue()
        plan.memory_blocked = ran_out or self._blocked
        plan.stores = self.allocator.stored()
        self.admission.planned(self.running, ran_out)
        if self._cohort is not None and plan.together is None:
            plan.together = self._cohort.tell()
        return plan

    def commit(self, plan: Plan, outcome: Outcome, now: float) -> list[Sequence]:
        """Take in what the executor did; returns the sequences that finished, their blocks freed: branches too, and
        after the last of them their trunk."""
        finished: list[Sequence] = []
        self.allocator.step_over()
        self.preemption.saw(plan, outcome)
        if self._cohort is not None and plan.together is not None and plan.together.count:
            finished = self._advanced(self._cohort.took(now, outcome.ended), outcome.ended, now)
        offers: dict[int, list[list[Choice]]] = {}  # request id -> what its sequences may go on with
        for i, (seq, fed, token, finish) in enumerate(
            zip(plan.batch, plan.num_tokens, outcome.tokens, outcome.finish, strict=True)
        ):
            high = self._high_water.get(seq.key, 0) if self._high_water else 0
            again = 0
            if seq.computed < high:
                again = min(high, seq.computed + fed) - seq.computed
                (seq.trunk or seq).recomputed_tokens += again
            single = token >= 0 and seq.trunk is None and not seq.branches
            self.order.served(seq.trunk or seq, fed - again, int(single))
            seq.computed += fed
            kept = self.allocator.computed(seq)
            if token < 0:
                continue
            if not single:
                offers.setdefault(seq.id, []).append(outcome.choices[i])
                continue
            seq.output.append(token)
            seq.token_s.append(now)
            if finish is not None:
                self._finish(seq, finish, now)
                finished.append(seq)
            elif self._cohort is not None:
                self._cohort.join(seq, kept)
        for request_id, offered in offers.items():
            finished += self._advance(self._groups[request_id], offered, now)
        return finished

    def _advanced(self, seqs: list[Sequence], ended: list[Sequence], now: float) -> list[Sequence]:
        """Of those that advanced together these are to be looked at. Returns who ended, in order of admission."""
        if not self._caches:  # then it is those that ended
            for seq in seqs:
                self._finish(seq, "length", now)
            return seqs
        ids = {seq.id for seq in ended}
        for seq in seqs:
            kept = self.allocator.computed(seq)
            if seq.id in ids:
                self._finish(seq, "length", now)
            elif self._cohort is not None:
                self._cohort.kept(seq, kept)
        return [seq for seq in seqs if seq.id in ids]

    # ---- several steps ------------------------------------------------------------------------------------------

    def coasting(self, now: float) -> tuple[Together, Iterator[int], float, bool] | None:
        """Whether the coming steps need no plan, since all there is to do in them is that all who run decode:
        nobody can be admitted, nobody needs a block that is not free. Who they are, the blocks that their tables grow
        by in each, until when the policies decide nothing else, and whether they do so also when somebody has ended.
        Only steps that begin before that, and before anybody arrives, may be taken; `coasted` must be told. None:
        `schedule` the next one.
        """
        cohort, waits = self._cohort, len(self.order)
        if cohort is None or not self._skips or (waits and (not self._stuck or self._caches)):
            return None
        until = self._wakeup(now) if self._wakeups else inf
        coasting = cohort.coasting(self.batching.max_tokens) if until > now else None
        if coasting is None:
            return None
        return *coasting, until, not (waits or self._wakeups or self._caches)

    def _wakeup(self, now: float) -> float:
        """Until when the policies decide the same."""
        return min([next_wakeup(now) for next_wakeup in self._wakeups])

    def entering(self, now: float) -> Entry | None:
        """Whether the next step needs no plan, since all there is to do in it is to feed prompts: those that it lets in
        are in the batch then, the step must be taken, and `entered` be told. None: `schedule` it."""
        cohort = self._cohort
        if cohort is None or not self._skips or self._caches or self._high_water or self._groups:
            return None  # also where some come back
        if (self._wakeups and self._wakeup(now) <= now) or not (cohort.apart or len(self.order)):
            return None
        if cohort.apart and any(seq.to_compute == 1 for seq in cohort.apart.values()):
            return None
        self.order.time(now)
        entry = Entry()
        self.batching.enter(entry, self)
        if not entry.seqs:
            return None
        self._released = []  # nobody follows rows
        self._look_at_queue()
        self.admission.planned(self.running, False)
        entry.together, entry.memory_blocked = cohort.tell(), self._blocked
        return entry

    def feed(self, entry: Entry, seq: Sequence, most: int) -> None:
        """Feed so many of the next tokens of a prompt."""
        fed = min(len(seq.request.prompt) - seq.computed, most)
        self.allocator.grow(seq.id, seq.computed + fed)
        entry.seqs.append(seq)
        entry.num_tokens.append(fed)
        entry.total_tokens += fed

    def enter_next(self, entry: Entry, most: int, whole: bool) -> bool:
        """Move the next waiting request into the batch, if it may enter, and feed so many tokens of its prompt, all of
        them if `whole` or not at all. Returns whether it did."""
        seq = self._next() if len(self.order) else None
        if seq is None or (whole and len(seq.request.prompt) > most) or not self._may_enter(seq):
            return False
        entry.blocks += len(self._admit(seq, [seq]).table)
        entry.new.append(seq)
        self.feed(entry, seq, most)
        return True

    def entered(self, entry: Entry, ended: list[Sequence], now: float) -> None:
        """Take in that step, which was over at `now`. ended: who ended with the token that it got."""
        if self._cohort is None:
            raise InvariantError("a step was taken by nobody")
        self.allocator.step_over()
        for seq, fed in zip(entry.seqs, entry.num_tokens, strict=True):
            seq.computed += fed
            samples = seq.computed == len(seq.request.prompt)
            self.order.served(seq, fed, int(samples))
            if not samples:
                continue
            if seq in ended:
                seq.output, seq.token_s = self._cohort.first(seq), [now]
                self._finish(seq, "length", now)
            else:
                self._cohort.begin(seq, now)

    @property
    def memory_blocked(self) -> bool:
        """Whether the next in line was refused its blocks when the last step was planned."""
        return self._blocked and len(self.order) > 0

    def coasted(self, ends: list[float], begun: float) -> int:
        """Take in steps that nobody planned, which ended then, the last of which began at `begun`. Returns how many had
        been taken before, to be counted on from for `left`."""
        if self._cohort is None:
            raise InvariantError("steps were taken together by nobody")
        if self._caches:
            self.allocator.time(begun)
        before = self._cohort.steps
        self._cohort.coasted(ends)
        return before

    def left(self, ended: list[Sequence], steps: int, now: float) -> list[Sequence]:
        """Take in who ended in the last of so many steps, at `now`, up to which the allocator has counted what they
        filled. Returns who finished, in order of admission."""
        if self._cohort is None:
            raise InvariantError("steps were taken together by nobody")
        looked_at = self._cohort.left(ended, steps)
        return self._advanced(looked_at, ended, now) if looked_at else looked_at

    def _finish(self, seq: Sequence, reason: str, now: float) -> None:
        """A request of a single output has ended."""
        self._stuck = False
        self._released.append(self._return(seq, seq))
        self._stop(seq)
        seq.status, seq.finish_reason, seq.finish_s = Status.FINISHED, reason, now
        self.order.ended(seq)

    def _advance(self, group: Group, offered: list[list[Choice]], now: float) -> list[Sequence]:
        """The sequences of a request go on, fork and end as their group says. Returns those that finished."""
        trunk, before = group.trunk, group.trunk.parts
        if trunk.forked or not group.started:
            trunk.token_s.append(now)
            self.order.served(trunk, 0, len(before))
        moves = group.advance(offered)
        if not trunk.forked and moves:
            self._bequeath(trunk)
        chains = [parent.chain.copy() if parent.chain is not None else None for _, parent in moves]
        for (branch, parent), chain in zip(moves, chains, strict=True):
            known = parent.computed - trunk.request.prompt_tokens
            if branch.key == parent.key:
                table = []
            else:
                copies = self.allocator.fork(parent.key, branch.key)
                self._copies += [Copy(branch.row, *pair) for pair in copies]
                table = list(self.allocator.holdings[branch.key].table)
            self._forked.append(Fork(branch.row, parent.row, parent.computed, branch.output[known:], table))
            branch.status, branch.computed = Status.RUNNING, parent.computed
            branch.chain = chain
        finished = [part for part in before if part.status is Status.FINISHED]
        if finished:
            self._leave(trunk, finished)
        trunk.forked, trunk.row = True, -1
        if not trunk.parts:
            self._stop(trunk)
            del self._groups[trunk.id]
            trunk.status, trunk.finish_s = Status.FINISHED, now
            self.order.ended(trunk)
            finished.append(trunk)
        return finished

    def _bequeath(self, trunk: Sequence) -> None:
        """Make the first branch that goes on the heir of what the trunk holds, should its first one have ended: what is
        copied from it must be held until it is copied."""
        first, heir = trunk.branches[trunk.index], trunk.parts[0]
        if heir is not first:
            self.allocator.exchange(first.key, heir.key)
            first.row, heir.row = heir.row, first.row
            trunk.index = heir.index

    def settle(self) -> None:
        """Bring what the running sequences say of themselves up to date, where they advance together."""
        if self._cohort is not None:
            self._cohort.settle()

    # ---- primitives of a batching policy ------------------------------------------------------------------------

    def decode_all(self, plan: Plan, most: int) -> None:
        """Feed the pending token of all that decode, in order of admission, until the plan holds `most` tokens."""
        if self._cohort is not None and self._cohort.decode(plan, most - plan.total_tokens):
            return
        for seq in self.decoding():
            if plan.total_tokens + seq.num_feeding > most:
                break
            self.decode(plan, seq)

    def decoding(self) -> list[Sequence]:
        """Running requests with exactly one token to feed, each of their sequences, in order of admission."""
        if self._cohort is not None:
            self._cohort.dissolve()
        return [seq for seq in self.running if (seq.pending if seq.forked else seq.to_compute) == 1]

    def prefilling(self) -> list[Sequence]:
        """Running requests in the middle of their prompt, or of what they generated before a preemption."""
        running = self.running if self._cohort is None else self._cohort.apart.values()
        if not running:
            return []
        return [seq for seq in running if (seq.pending if seq.forked else seq.to_compute) > 1]

    def prefill(self, plan: Plan, seq: Sequence, budget: int) -> int:
        """Feed the next tokens of a prompt, whose blocks it has held since its admission. Returns how many.

        The branches of a request that was preempted then feed what they had generated, but for the last token: that
        one all of them feed in one step, a decode. Those that come back from the host with only that one to feed do.
        """
        if seq.status is not Status.RUNNING:  # preempted in this step
            return 0
        if not seq.forked:
            fed = min(seq.to_compute, budget)
            if self.allocator.grow(seq.key, seq.computed + fed) != []:
                raise InvariantError(f"sequence {seq.key} was admitted without room for its prompt")
            plan.add(seq, fed)
            return fed
        if seq.pending == 1:
            return seq.num_feeding if seq.num_feeding <= budget and self.decode(plan, seq) else 0
        left = budget
        for part in seq.feeding:
            fed = min(part.to_compute - 1, left)
            if fed > 0 and not self._feed(plan, seq, part, fed):
                return 0
            left -= fed
        return budget - left

    def decode(self, plan: Plan, seq: Sequence) -> bool:
        """Feed the one pending token of each of its sequences, preempting others when a block is needed and none free.

        False when the request is no longer running: it was preempted itself, now or before in this step.
        """
        if not seq.forked:
            return self._feed(plan, seq, seq, 1)
        return all(self._feed(plan, seq, part, 1) for part in seq.feeding)

    def _feed(self, plan: Plan, request: Sequence, seq: Sequence, num_tokens: int) -> bool:
        """Feed tokens of a sequence of the request, if that runs and keeps running."""
        if request.status is not Status.RUNNING:
            return False
        key = seq.key
        table = self.allocator.holdings[key].table
        length, last = len(table), table[-1]
        while (new := self.allocator.grow(key, seq.computed + num_tokens)) is None:
            if self._cohort is not None:
                self._cohort.dissolve()
            victim = self.victim.choose(self._may_yield_to(request))
            self._preempt(plan, victim, request, RAN_OUT)
            if victim is request:
                return False
        if new:
            start = len(table) - len(new)
            if start < length:  # the last block was shared
                plan.copies.append(Copy(seq.row, last, new[0]))
            plan.grown.append(Growth(seq.row, start, new))
        plan.add(seq, num_tokens)
        return True

    def _may_yield_to(self, request: Sequence) -> list[Sequence]:
        """The running requests of which one may lose its blocks to this one, which is among them; where the order is
        preemptive only if it is the last. Else it would yield to those behind it, to be let in before them again, and
        get no further."""
        if not self.preemptive:
            return self.running
        rank = self.order.rank(request)
        return [other for other in self.running if self.order.rank(other) > rank] or [request]

    def admit_next(self, plan: Plan, fits: Callable[[Sequence], bool] = lambda seq: True) -> Sequence | None:
        """Move the next waiting sequence into the batch, if admission, rows and `fits` allow it.

        Nobody is admitted in a step that had to preempt, but for whom those yielded that are behind it: the blocks just
        freed are for those that run. Who was swapped out comes before all others, as in vLLM: others may take the room
        on the device while it takes up the host's. Not where the order is preemptive: it would stand in the way of
        those for whom it yielded.
        """
        seq = self._next() if len(self.order) else None
        if seq is None or plan.preempted or not fits(seq):
            return None
        if not self._may_enter(seq) and not (self.preemptive and self._outrank(plan, seq)):
            return None
        parts = seq.parts
        if seq.swapped:
            self._bring_back(plan, seq)
            return seq
        grant = self._admit(seq, parts)
        plan.admitted.append(Admitted(seq.row, seq.request, seq.token_ids(), list(grant.table), grant.filled))
        if grant.copies or grant.loads:
            plan.copies += [Copy(seq.row, *pair) for pair in grant.copies]
            plan.loads += [Load(seq.id, *load) for load in grant.loads]
        return seq

    def _admit(self, seq: Sequence, parts: list[Sequence]) -> Grant:
        """The next in line enters the batch."""
        # The first branch takes over what the trunk holds: until then that goes by its key, in its row.
        seq.index = parts[0].index
        grant = self.allocator.admit(seq)  # first: where it fails the request still waits
        self.order.pop()
        self._take_rows(parts)
        seq.row = parts[0].row
        seq.status = Status.RUNNING
        seq.computed = grant.filled
        seq.cached_tokens += grant.filled
        self.running.append(seq)
        if self._cohort is not None:
            self._cohort.admitted(seq)
        return grant

    def _look_at_queue(self) -> None:
        """A step is planned: whether the next in line was refused, and for want of blocks."""
        waits = len(self.order) > 0
        self._blocked = waits and self._head_lacks_blocks()
        shut = self.batching.closed and not self.allocator.grows
        self._stuck = waits and (shut or self._blocked or self._head_lacks_rows())

    def _head_lacks_rows(self) -> bool:
        head = self._next()
        return head is not None and len(self._rows) < head.num_parts

    def _next(self) -> Sequence | None:
        if self._swapped and not self.preemptive:
            return min(self._swapped, key=self.order.rank)
        return self.order.peek()

    def _bring_back(self, plan: Plan, seq: Sequence) -> None:
        """A request that was swapped out goes on where it was. A group that has forked stays so."""
        back = self.allocator.restore(seq)  # first: where it fails the request still waits
        self.order.remove(seq)
        self._swapped.remove(seq)
        self._take_rows(seq.parts)
        if not seq.forked:
            seq.row, seq.index = seq.parts[0].row, seq.parts[0].index
        seq.swapped = False
        for part in (seq, *seq.parts):
            part.status = Status.RUNNING
        self.running.append(seq)
        if self._cohort is not None:
            self._cohort.admitted(seq)
        for part in seq.feeding:
            grant = back.grants[part.key]
            plan.admitted.append(Admitted(part.row, seq.request, part.token_ids(), list(grant.table), grant.filled))
        plan.swapped_in += back.pairs
        moved = len(back.pairs)
        plan.returned.append(Return(seq.id, moved, moved * self._host_block_bytes, back.attached))

    @property
    def _host_block_bytes(self) -> int:
        return self.allocator.host.block_bytes if self.allocator.host else 0

    def _may_enter(self, seq: Sequence, without: Seq[Sequence] = ()) -> bool:
        """Whether there are rows and blocks for a waiting request, were those `without` not running."""
        rows = len(self._rows)
        if without:
            rows += sum([len(other.parts) for other in without])
        if rows < seq.num_parts:
            return False
        if not without:
            return self.admission.allows(seq, self.running)
        staying = [other for other in self.running if other not in without]
        return self.admission.allows(seq, staying, self.allocator.freed_by(without))

    def _outrank(self, plan: Plan, seq: Sequence) -> bool:
        """Have running requests that are behind `seq` in the order yield to it, the last first, no more than it needs,
        and none where all of them are not enough. Returns whether it may enter."""
        rank = self.order.rank(seq)
        behind = sorted((r for r in self.running if self.order.rank(r) > rank), key=self.order.rank)
        yielding: list[Sequence] = []
        while behind:
            yielding.append(behind.pop())
            if self._may_enter(seq, yielding):
                break
        else:
            return False
        for victim in yielding:
            self._preempt(plan, victim, seq, OUTRANKED)
        # Where they shared cached blocks with it, less came free than was counted: they wait behind it.
        return self._may_enter(seq)

    def _head_lacks_blocks(self) -> bool:
        """Whether the next in line would be refused its blocks, asked once the step is planned: with its tokens spent a
        step may not have looked at the queue."""
        head = self._next()
        if head is None or len(self._rows) < head.num_parts or not self.admission.refuses_for_memory:
            return False
        return not self.admission.allows(head, self.running)

    def _preempt(self, plan: Plan, victim: Sequence, beneficiary: Sequence, reason: str) -> None:
        rows = [part.row for part in victim.feeding]
        copied = {copy.destination: copy.source for copy in plan.copies if copy.row in rows}
        plan.drop(victim)
        self._stuck = False
        for part in victim.feeding:
            self._high_water[part.key] = max(self._high_water.get(part.key, 0), part.computed)
        parts = victim.parts
        for part in parts:
            part.slots_unused = self.allocator.unused(part.key, _holder(victim, part).computed)
        for part in victim.feeding:
            self.allocator.settle(part)
        taken = self.preemption.preempt(victim, copied)
        plan.swapped_out += taken.swapped_out
        plan.released += self._vacate(parts)
        self._stop(victim)
        for stopped in (victim, *parts):
            stopped.status, stopped.row = Status.PREEMPTED, -1
        if victim.swapped:
            self._swapped.append(victim)
        else:
            victim.forked = False
        victim.preemptions += 1
        self.order.push(victim)
        moved = len(taken.swapped_out)
        plan.preempted.append(
            PreemptionRecord(
                victim.id,
                beneficiary.id,
                reason,
                taken.blocks_freed,
                taken.tokens_lost,
                "swap" if victim.swapped else "recompute",
                moved,
                moved * self._host_block_bytes,
                taken.fallback,
                taken.swap_estimate_s,
                taken.recompute_estimate_s,
            )
        )

    def _leave(self, request: Sequence, parts: list[Sequence]) -> None:
        """These sequences of a request have ended, or are dropped, and give everything back."""
        self._stuck = False
        rows = [self._return(part, _holder(request, part)) for part in parts]
        self._released += rows
        self._forked = [fork for fork in self._forked if fork.row not in rows]
        self._copies = [copy for copy in self._copies if copy.row not in rows]

    def _return(self, part: Sequence, holder: Sequence) -> int:
        """A sequence gives back all that goes by its key, which `holder` computed, and its row; returns that."""
        allocator, key, row = self.allocator, part.key, part.row
        part.slots_unused = allocator.unused(key, holder.computed)
        if self._caches:
            allocator.settle(holder)
        allocator.release(key)
        if self._high_water:
            self._high_water.pop(key, None)
        self._rows.append(row)
        part.row = -1
        return row

    def _stop(self, request: Sequence) -> None:
        """A request runs no longer."""
        self.running.remove(request)
        if self._cohort is not None:
            self._cohort.vacated(request)

    def _take_rows(self, parts: list[Sequence]) -> None:
        for part in parts:
            part.row = self._rows.pop()

    def _vacate(self, parts: list[Sequence]) -> list[int]:
        """Take back the rows of these sequences; returns them."""
        rows = [part.row for part in parts]
        self._rows += rows
        for part in parts:
            part.row = -1
        return rows

    # ---- invariants -------------------------------------------------------------------------------------------

    def audit(self) -> None:
        """Check the allocator and what binds it to the queue: InvariantError names the first fault."""
        self.settle()
        self.allocator.audit()
        feeding = {seq.key for request in self.running for seq in request.feeding}
        parts = {part.key: part for request in self.running for part in request.parts}
        if not feeding <= set(self.allocator.holdings) <= set(parts):
            raise InvariantError(f"running {self.running} but holding {set(self.allocator.holdings)}")
        rows = [part.row for part in parts.values()]
        if len({*rows, *self._rows}) != self.max_num_seqs or len(rows) + len(self._rows) != self.max_num_seqs:
            raise InvariantError(f"rows {rows} running and {self._rows} free are not each row once")
        for request in self.running:
            for seq in request.feeding:
                held = self.allocator.holdings[seq.key]
                if request.status is not Status.RUNNING or not seq.computed <= held.tokens <= seq.num_tokens:
                    raise InvariantError(f"sequence {seq.key}: {request.status}, {seq.computed} computed, {held}")
        waiting = self.order.sequences()
        host = set(self.allocator.host.tables) if self.allocator.host else set()
        swapped = [{seq.id for seq in seqs} for seqs in (self._swapped, [seq for seq in waiting if seq.swapped])]
        if not host == swapped[0] == swapped[1] or len(self._swapped) != len(host):
            raise InvariantError(f"{host} are on the host, {self._swapped} are to come back, {swapped[1]} wait")
        for seq in waiting:
            if (
                (seq.computed and not seq.swapped)
                or seq.row != -1
                or seq.status not in (Status.WAITING, Status.PREEMPTED)
            ):
                raise InvariantError(f"sequence {seq.id} waits with {seq.computed} computed tokens, row {seq.row}")


def _holder(request: Sequence, part: Sequence) -> Sequence:
    """Who computes what is held by this part's key: until the request forks, the trunk for the first of its parts."""
    return part if part is request or request.forked or part.key != request.key else request
