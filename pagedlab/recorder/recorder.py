"""The recorder: sees every request and every step, and keeps what the metrics need. No I/O, no formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pagedlab.allocator.base import Sharing, Usage
from pagedlab.core.plan import Outcome, Plan, Preemption, Return
from pagedlab.core.request import Key, Sequence


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the timeline. It holds from start_s until the next row starts.

    running: sequences that hold memory; the step itself ran `batch` of them, feeding `tokens` tokens, of which
    `prefill_tokens` belong to sequences fed more than one. usage: the split of the slots while the step ran.
    sharing: what sharing saved of them. copies: blocks copied before the step, in copy_s seconds of it; swapped_out and
    swapped_in: blocks moved to the host and back. host_blocks: in use there, what the step moves included.
    """

    start_s: float
    end_s: float
    running: int
    waiting: int
    batch: int
    tokens: int
    prefill_tokens: int
    usage: Usage
    memory_blocked: bool
    sharing: Sharing = field(default_factory=Sharing)
    copies: int = 0
    copy_s: float = 0.0
    swapped_out: int = 0
    swapped_in: int = 0
    swap_out_s: float = 0.0
    swap_in_s: float = 0.0
    host_blocks: int = 0


class Recorder:
    """Every sequence in order of submission, every step, every preemption, every stay in the pool."""

    def __init__(self, on_progress: Callable[[Recorder], None] = lambda recorder: None):
        self.sequences: list[Sequence] = []
        self.steps: list[Step] = []
        self.preemptions: list[tuple[float, int, Preemption]] = []  # time, step, record
        self.returns: list[tuple[float, int, Return]] = []  # the same, of those swapped out
        # (first step, step after the last, slots promised and never used) of every stay of a sequence in the pool; a
        # branch stays as long as its trunk.
        self.stays: list[tuple[int, int, int]] = []
        self.num_finished = 0
        self.output_tokens = 0
        self._by_id: dict[int, Sequence] = {}
        self._entered: dict[Key, int] = {}
        self._on_progress = on_progress

    def submitted(self, seq: Sequence) -> None:
        self.sequences.append(seq)
        self._by_id[seq.id] = seq

    def idle(self, start: float, end: float, usage: Usage, sharing: Sharing) -> None:
        """Nothing to do from start to end: nobody holds a block."""
        self.steps.append(Step(start, end, 0, 0, 0, 0, 0, usage, False, sharing))
        self._on_progress(self)

    def step(
        self,
        start: float,
        end: float,
        plan: Plan,
        outcome: Outcome,
        usage: Usage,
        sharing: Sharing,
        running: int,
        waiting: int,
        finished: list[Sequence],
        host_blocks: int = 0,
    ) -> None:
        """finished: as `Scheduler.commit` returns it."""
        number = len(self.steps)
        for record in plan.preempted:
            self.preemptions.append((start, number, record))
            for part in self._by_id[record.victim].parts:
                self._left(part, number)
        self.returns += [(start, number, record) for record in plan.returned]
        for new in plan.admitted:
            seq = self._by_id[new.request.id]
            for part in seq.branches or [seq]:
                self._entered[part.key] = number
        for seq in finished:
            if not seq.branches:
                self._left(seq, number + 1)
            self.num_finished += seq.trunk is None
        self.steps.append(
            Step(
                start_s=start,
                end_s=end,
                running=running,
                waiting=waiting,
                batch=plan.num_sequences,
                tokens=plan.total_tokens,
                prefill_tokens=sum(n for n in plan.num_tokens if n > 1),
                usage=usage,
                memory_blocked=plan.memory_blocked,
                sharing=sharing,
                copies=len(plan.copies),
                copy_s=outcome.copy_s,
                swapped_out=len(plan.swapped_out),
                swapped_in=len(plan.swapped_in),
                swap_out_s=outcome.swap_out_s,
                swap_in_s=outcome.swap_in_s,
                host_blocks=host_blocks,
            )
        )
        self.output_tokens += sum(token >= 0 for token in outcome.tokens) + plan.num_sequences - len(plan.batch)
        self._on_progress(self)

    def _left(self, seq: Sequence, before_step: int) -> None:
        self.stays.append((self._entered.pop(seq.key), before_step, seq.slots_unused))
