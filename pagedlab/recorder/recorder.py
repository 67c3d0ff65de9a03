"""The recorder: sees every request and every step, and keeps what the metrics need. No I/O, no formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagedlab.allocator.base import Usage
from pagedlab.core.plan import Plan, Preemption
from pagedlab.core.request import Sequence


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the timeline. It holds from start_s until the next row starts.

    running: sequences that hold memory; the step itself ran `batch` of them, feeding `tokens` tokens, of which
    `prefill_tokens` belong to sequences fed more than one. usage: the split of the slots while the step ran.
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


class Recorder:
    """Every sequence in order of submission, every step, every preemption, every stay in the pool."""

    def __init__(self, on_progress: Callable[[Recorder], None] = lambda recorder: None):
        self.sequences: list[Sequence] = []
        self.steps: list[Step] = []
        self.preemptions: list[tuple[float, int, Preemption]] = []  # time, step, record
        # (first step, step after the last, slots promised and never used) of every stay of a sequence in the pool.
        self.stays: list[tuple[int, int, int]] = []
        self.num_finished = 0
        self.output_tokens = 0
        self._by_id: dict[int, Sequence] = {}
        self._entered: dict[int, int] = {}
        self._on_progress = on_progress

    def submitted(self, seq: Sequence) -> None:
        self.sequences.append(seq)
        self._by_id[seq.id] = seq

    def idle(self, start: float, end: float, usage: Usage) -> None:
        """Nothing to do from start to end: the pool lies free."""
        self.steps.append(Step(start, end, 0, 0, 0, 0, 0, usage, False))
        self._on_progress(self)

    def step(
        self,
        start: float,
        end: float,
        plan: Plan,
        usage: Usage,
        running: int,
        waiting: int,
        finished: list[Sequence],
        sampled: int,
    ) -> None:
        number = len(self.steps)
        for record in plan.preempted:
            self.preemptions.append((start, number, record))
            self._left(self._by_id[record.victim], number)
        for new in plan.admitted:
            self._entered[new.request.id] = number
        for seq in finished:
            self._left(seq, number + 1)
        prefill = sum(n for n in plan.num_tokens if n > 1)
        self.steps.append(
            Step(
                start, end, running, waiting, plan.num_sequences, plan.total_tokens, prefill, usage, plan.memory_blocked
            )
        )
        self.num_finished += len(finished)
        self.output_tokens += sampled
        self._on_progress(self)

    def _left(self, seq: Sequence, before_step: int) -> None:
        self.stays.append((self._entered.pop(seq.id), before_step, seq.slots_unused))
