"""The recorder: sees every request and every step, and keeps what the metrics need. No I/O, no formulas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pagedlab.allocator.base import Sharing, Usage
from pagedlab.core.plan import Outcome, Plan, Preemption
from pagedlab.core.request import Key, Sequence


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the timeline. It holds from start_s until the next row starts.

    running: sequences that hold memory; the step itself ran `batch` of them, feeding `tokens` tokens, of which
    `prefill_tokens` belong to sequences fed more than one. usage: the split of the slots while the step ran.
    sharing: what sharing saved of them. copies: blocks copied before the step, in copy_s seconds of it.
    service: client -> (prompt tokens of its requests first admitted, tokens generated for it). backlogged: the clients
    with requests waiting while it ran. admission_estimate: as in Plan.
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
    service: dict[str, tuple[int, int]] = field(default_factory=dict)
    backlogged: frozenset[str] = frozenset()
    admission_estimate: float | None = None


class Recorder:
    """Every sequence in order of submission, every step, every preemption, every stay in the pool."""

    def __init__(self, on_progress: Callable[[Recorder], None] = lambda recorder: None):
        self.sequences: list[Sequence] = []
        self.steps: list[Step] = []
        self.preemptions: list[tuple[float, int, Preemption]] = []  # time, step, record
        # (first step, step after the last, slots promised and never used) of every stay of a sequence in the pool; a
        # branch stays as long as its trunk.
        self.stays: list[tuple[int, int, int]] = []
        self.admitted_s: dict[int, float] = {}  # when a request was first admitted
        self.num_finished = 0
        self.output_tokens = 0
        self._by_id: dict[int, Sequence] = {}
        self._entered: dict[Key, int] = {}
        self._waiting: Counter[str] = Counter()
        self._forked: set[int] = set()
        self._on_progress = on_progress

    def submitted(self, seq: Sequence) -> None:
        self.sequences.append(seq)
        self._by_id[seq.id] = seq
        if not seq.refusal:
            self._waiting[seq.request.client] += 1

    def idle(self, start: float, end: float, usage: Usage) -> None:
        """Nothing to do from start to end: the pool lies free."""
        self.steps.append(Step(start, end, 0, 0, 0, 0, 0, usage, False))
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
    ) -> None:
        """finished: as `Scheduler.commit` returns it."""
        number = len(self.steps)
        for record in plan.preempted:
            self.preemptions.append((start, number, record))
            victim = self._by_id[record.victim]
            self._waiting[victim.request.client] += 1
            for part in victim.parts:
                self._left(part, number)
        service = self._service(plan, outcome)
        for new in plan.admitted:
            seq = self._by_id[new.request.id]
            self._waiting[seq.request.client] -= 1
            self.admitted_s.setdefault(seq.id, start)
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
                batch=len(plan.batch),
                tokens=plan.total_tokens,
                prefill_tokens=sum(n for n in plan.num_tokens if n > 1),
                usage=usage,
                memory_blocked=plan.memory_blocked,
                sharing=sharing,
                copies=len(plan.copies),
                copy_s=outcome.copy_s,
                service=service,
                backlogged=frozenset(client for client, count in self._waiting.items() if count),
                admission_estimate=plan.admission_estimate,
            )
        )
        self.output_tokens += sum(token >= 0 for token in outcome.tokens)
        self._on_progress(self)

    def _service(self, plan: Plan, outcome: Outcome) -> dict[str, tuple[int, int]]:
        service: Counter[tuple[str, bool]] = Counter()
        for new in plan.admitted:
            if new.request.id not in self.admitted_s:
                service[new.request.client, False] += new.request.prompt_tokens
        for seq, token in zip(plan.batch, outcome.tokens, strict=True):
            if token >= 0:
                made = 1
                if seq.branches:  # a trunk samples for all of them, and again after a preemption, when nobody takes it
                    made = len(seq.branches) if seq.id not in self._forked else 0
                    self._forked.add(seq.id)
                service[seq.request.client, True] += made
        return {client: (service[client, False], service[client, True]) for client, _ in service}

    def _left(self, seq: Sequence, before_step: int) -> None:
        self.stays.append((self._entered.pop(seq.key), before_step, seq.slots_unused))
