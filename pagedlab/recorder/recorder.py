"""The recorder: sees every request and every step, and keeps what the metrics need. No I/O, no formulas."""

from __future__ import annotations

from collections.abc import Callable

from pagedlab.allocator.base import Sharing, Usage
from pagedlab.core.plan import Coasted, Outcome, Plan, Preemption, Return
from pagedlab.core.request import Key, Sequence
from pagedlab.recorder.timeline import Step, Timeline


class Recorder:
    """Every sequence in order of submission, every step, every preemption, every stay in the pool."""

    def __init__(self, on_progress: Callable[[Recorder], None] = lambda recorder: None):
        self.sequences: list[Sequence] = []
        self.steps = Timeline()
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
                start,
                end,
                running,
                waiting,
                plan.num_sequences,
                plan.total_tokens,
                sum([n for n in plan.num_tokens if n > 1]),
                usage,
                plan.memory_blocked,
                sharing,
                len(plan.copies),
                outcome.copy_s,
                len(plan.swapped_out),
                len(plan.swapped_in),
                outcome.swap_out_s,
                outcome.swap_in_s,
                host_blocks,
            )
        )
        self.output_tokens += plan.num_sequences - outcome.tokens.count(-1)
        self._on_progress(self)

    def coasted(self, first: Step, steps: Coasted, block_size: int, promises: bool, finished: list[Sequence]) -> None:
        """Steps that nobody planned. first: the first of them; block_size, promises: as `Timeline.stretch` takes them.
        finished: as in `step`, of the last one."""
        self.steps.stretch(first, steps.ends, steps.grown, block_size, promises)
        for seq in finished:
            self._left(seq, len(self.steps))
        self.num_finished += len(finished)
        self.output_tokens += first.batch * len(steps.ends)
        self._on_progress(self)

    def _left(self, seq: Sequence, before_step: int) -> None:
        self.stays.append((self._entered.pop(seq.key), before_step, seq.slots_unused))
