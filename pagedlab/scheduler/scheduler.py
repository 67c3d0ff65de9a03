"""The scheduler: who waits, who runs, and what one step does. Policies are its four seams; the mechanics are here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pagedlab.allocator.base import Allocator
from pagedlab.core.errors import InvariantError
from pagedlab.core.plan import Admission as Admitted
from pagedlab.core.plan import Growth, Outcome, Plan
from pagedlab.core.plan import Preemption as PreemptionRecord
from pagedlab.core.request import Request, Sequence, Status
from pagedlab.preemption.base import Preemption
from pagedlab.preemption.victim.base import Victim
from pagedlab.scheduler.admission.base import Admission
from pagedlab.scheduler.cohort import Cohort, Foretold
from pagedlab.scheduler.order.base import Order

if TYPE_CHECKING:
    from pagedlab.scheduler.batching.base import Batching


class Scheduler:
    """order (who next) x admission (may it) x batching (what runs) x victim and preemption (who yields, and how).

    A step is `schedule` (a plan), the executor, then `commit` (its outcome). Between the two, nothing else may
    be called. Rows of the executor's block table are given out here: 0 <= row < max_num_seqs.
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
        foretold: Foretold | None = None,
    ):
        self.allocator = allocator
        self.order = order
        self.admission = admission
        self.batching = batching
        self.preemption = preemption
        self.victim = victim
        self.max_num_seqs = max_num_seqs
        self.running: list[Sequence] = []
        self._rows = list(range(max_num_seqs - 1, -1, -1))
        self._released: list[int] = []
        self._cohort = Cohort(allocator, foretold) if foretold else None  # of those that decode, who advance together
        self._high_water: dict[int, int] = {}  # sequence id -> tokens computed before it was preempted

    # ---- requests ---------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Sequence:
        """Queue a request. One that can never be served comes back refused, with the reason and its numbers.

        max_tokens is cut to what max_model_len leaves, as servers do: generation then ends with "length".
        """
        limit = self.allocator.max_model_len
        room = limit - request.prompt_tokens + 1  # the last token is never fed, so needs no place
        if 1 <= room < request.max_tokens:
            request = replace(request, max_tokens=room)
        seq = Sequence(request)
        if request.prompt_tokens < 1 or request.max_tokens < 1:
            seq.refusal = (
                f"request {request.id} has {request.prompt_tokens} prompt and {request.max_tokens} new tokens, "
                "expected at least 1 of each"
            )
        elif room < 1:
            seq.refusal = f"request {request.id} has {request.prompt_tokens} prompt tokens, max_model_len is {limit}"
        else:
            seq.refusal = self.allocator.refusal(request) or ""
        if seq.refusal:
            seq.status = Status.REFUSED
        else:
            self.order.push(seq)
        return seq

    def abort(self, seq: Sequence) -> None:
        """Drop a request in whatever state it is, between steps. Aborting an ended request does nothing."""
        if seq.status in (Status.WAITING, Status.PREEMPTED):
            self.order.remove(seq)
            self._high_water.pop(seq.id, None)
        elif seq.status is Status.RUNNING:
            if self._cohort is not None:
                self._cohort.dissolve()
            self._leave(seq)
        else:
            return
        seq.status, seq.finish_reason = Status.FINISHED, "abort"

    @property
    def num_waiting(self) -> int:
        return len(self.order)

    @property
    def has_work(self) -> bool:
        return bool(self.running or len(self.order))

    # ---- one step ---------------------------------------------------------------------------------------------

    def schedule(self) -> Plan:
        """Decide the next step. An empty batch means that nothing can run."""
        plan = Plan(released=self._released)
        self._released = []
        self.batching.fill(plan, self)
        plan.memory_blocked = bool(plan.preempted) or self._head_lacks_blocks()
        if self._cohort is not None:
            self._cohort.tell(plan)
        return plan

    def commit(self, plan: Plan, outcome: Outcome, now: float) -> list[Sequence]:
        """Take in what the executor did; returns the sequences that finished, their blocks freed."""
        finished = []
        if self._cohort is not None and plan.together is not None and plan.together.count:
            self._cohort.took(now)
            for seq in self._cohort.leave(outcome.ended):
                self._finish(seq, "length", now)
                finished.append(seq)
        for seq, fed, token, finish in zip(plan.batch, plan.num_tokens, outcome.tokens, outcome.finish, strict=True):
            high = self._high_water.get(seq.id, 0)
            if seq.computed < high:
                seq.recomputed_tokens += min(high, seq.computed + fed) - seq.computed
            seq.computed += fed
            if token < 0:
                continue
            seq.output.append(token)
            seq.token_s.append(now)
            if finish is not None:
                self._finish(seq, finish, now)
                finished.append(seq)
            elif self._cohort is not None:
                self._cohort.join(seq)
        return finished

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
            if plan.total_tokens == most:
                break
            self.decode(plan, seq)

    def decoding(self) -> list[Sequence]:
        """Running sequences with exactly one token to feed, in order of admission."""
        if self._cohort is not None:
            self._cohort.dissolve()
        return [seq for seq in self.running if seq.to_compute == 1]

    def prefilling(self) -> list[Sequence]:
        """Running sequences in the middle of their prompt, in order of admission."""
        running = self.running if self._cohort is None else self._cohort.apart.values()
        return [seq for seq in running if seq.to_compute > 1]

    def prefill(self, plan: Plan, seq: Sequence, num_tokens: int) -> int:
        """Feed the next tokens of a prompt, whose blocks it has held since its admission. Returns num_tokens."""
        if self.allocator.grow(seq.id, seq.computed + num_tokens) != []:
            raise InvariantError(f"sequence {seq.id} was admitted without room for its prompt")
        plan.add(seq, num_tokens)
        return num_tokens

    def decode(self, plan: Plan, seq: Sequence) -> bool:
        """Feed the one pending token, preempting others when it needs a block and none is free.

        False when the sequence is no longer running: it was preempted itself, now or before in this step.
        """
        if seq.status is not Status.RUNNING:
            return False
        holding = self.allocator.holdings[seq.id]
        while (new := self.allocator.grow(seq.id, seq.computed + 1)) is None:
            victim = self.victim.choose(self.running)
            self._preempt(plan, victim, beneficiary=seq)
            if victim is seq:
                return False
        if new:
            plan.grown.append(Growth(seq.row, len(holding.table) - len(new), new))
        plan.add(seq, 1)
        return True

    def admit_next(self, plan: Plan, fits: Callable[[Sequence], bool] = lambda seq: True) -> Sequence | None:
        """Move the next waiting sequence into the batch, if admission, rows and `fits` allow it.

        Nobody is admitted in a step that had to preempt: the blocks just freed are for those that run.
        """
        seq = self.order.peek()
        if seq is None:
            return None
        if plan.preempted or not self._rows or not fits(seq):
            return None
        if not self.admission.allows(seq, pool_is_empty=not self.running):
            return None
        self.order.pop()
        table = self.allocator.admit(seq)
        seq.row, seq.status = self._rows.pop(), Status.RUNNING
        self.running.append(seq)
        if self._cohort is not None:
            self._cohort.admitted(seq)
        plan.admitted.append(Admitted(seq.row, seq.request, seq.token_ids(), list(table)))
        return seq

    def _head_lacks_blocks(self) -> bool:
        """Whether the next in line would be refused its blocks, asked once the step is planned: with its tokens spent a
        step may not have looked at the queue."""
        head = self.order.peek()
        if head is None or not self._rows or not self.admission.refuses_for_memory:
            return False
        return not self.admission.allows(head, pool_is_empty=not self.running)

    def _preempt(self, plan: Plan, victim: Sequence, beneficiary: Sequence) -> None:
        plan.drop(victim)
        plan.released.append(victim.row)
        self._high_water[victim.id] = max(self._high_water.get(victim.id, 0), victim.computed)
        victim.slots_unused = self.allocator.unused(victim.id, victim.computed)
        freed, lost = self.preemption.preempt(victim)
        self._vacate(victim)
        victim.status = Status.PREEMPTED
        victim.preemptions += 1
        self.order.push(victim)
        plan.preempted.append(PreemptionRecord(victim.id, beneficiary.id, "pool exhausted", freed, lost))

    def _finish(self, seq: Sequence, reason: str, now: float) -> None:
        self._leave(seq)
        seq.status, seq.finish_reason, seq.finish_s = Status.FINISHED, reason, now

    def _leave(self, seq: Sequence) -> None:
        seq.slots_unused = self.allocator.unused(seq.id, seq.computed)
        self.allocator.release(seq.id)
        self._released.append(seq.row)
        self._high_water.pop(seq.id, None)
        self._vacate(seq)

    def _vacate(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self._rows.append(seq.row)
        seq.row = -1
        if self._cohort is not None:
            self._cohort.vacated(seq)

    # ---- invariants -------------------------------------------------------------------------------------------

    def audit(self) -> None:
        """Check the allocator and what binds it to the queue: InvariantError names the first fault."""
        self.settle()
        self.allocator.audit()
        if {seq.id for seq in self.running} != set(self.allocator.holdings):
            raise InvariantError(f"running {self.running} but holding {set(self.allocator.holdings)}")
        rows = [seq.row for seq in self.running]
        if len({*rows, *self._rows}) != self.max_num_seqs or len(rows) + len(self._rows) != self.max_num_seqs:
            raise InvariantError(f"rows {rows} running and {self._rows} free are not each row once")
        for seq in self.running:
            held = self.allocator.holdings[seq.id]
            if seq.status is not Status.RUNNING or not seq.computed <= held.tokens <= seq.num_tokens:
                raise InvariantError(f"sequence {seq.id}: {seq.status}, {seq.computed} computed, {held}")
        for seq in self.order.sequences():
            if seq.computed or seq.row != -1 or seq.status not in (Status.WAITING, Status.PREEMPTED):
                raise InvariantError(f"sequence {seq.id} waits with {seq.computed} computed tokens, row {seq.row}")
