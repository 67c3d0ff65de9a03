"""The recorder: sees every request and every step, and keeps what the metrics need. No I/O, no formulas."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import NamedTuple

from pagedlab.core.plan import Coasted, Entry, Outcome, Plan, Preemption, Return, Together
from pagedlab.core.request import Key, Sequence
from pagedlab.recorder.blocks import BlockMap
from pagedlab.recorder.timeline import Piece, Timeline, seldom


class Service(NamedTuple):
    """What clients were served in `steps` steps that come one after the other, the same in each.

    served: client -> (prompt tokens of its requests first admitted, tokens generated for it). backlogged: the clients
    with requests waiting while they ran.
    """

    steps: int
    served: dict[str, tuple[int, int]]
    backlogged: frozenset[str]


class Recorder:
    """Every sequence in order of submission, every step, every preemption, every stay in the pool."""

    def __init__(
        self,
        on_progress: Callable[[Recorder], None] | None = None,
        replica: int = 0,
        block_map: BlockMap | None = None,
    ):
        """replica: the number of its engine, of several."""
        self.replica = replica
        self.sequences: list[Sequence] = []
        self.steps = Timeline()
        self.block_map = block_map  # who holds which block, where that is asked for
        self.preemptions: list[tuple[float, int, Preemption]] = []  # time, step, record
        self.returns: list[tuple[float, int, Return]] = []  # the same, of those swapped out
        # (first step, step after the last, slots promised and never used) of every stay of a sequence in the pool; a
        # branch stays as long as its trunk.
        self.stays: list[tuple[int, int, int]] = []
        self.admitted_s: dict[int, float] = {}  # when a request was first admitted
        self.num_finished = 0
        self.output_tokens = 0
        self._by_id: dict[int, Sequence] = {}
        self._entered: dict[Key, int] = {}
        self.service: list[Service] = []  # from the second client on: before, there is nothing to compare
        self._waiting: Counter[str] = Counter()  # of each client that ever asked
        self._together: Counter[str] = Counter()  # of those that advance together
        self._forked: set[int] = set()
        self._on_progress = on_progress

    def submitted(self, seq: Sequence) -> None:
        self.sequences.append(seq)
        self._by_id[seq.id] = seq
        if not seq.refusal:
            self._waiting[seq.request.client] += 1

    def idle(self, start: float, end: float, slots: tuple[int, ...], counts: tuple[int, ...]) -> None:
        """Nothing to do from start to end: nobody holds a block. slots, counts: as in `step`."""
        self.steps.add((start, 0, 0, 0, 0, 0, False), slots, end, seldom(counts) if counts else None)
        if len(self._waiting) > 1:
            self._serve({}, 1)
        if self._on_progress is not None:
            self._on_progress(self)

    def step(
        self,
        start: float,
        end: float,
        plan: Plan,
        outcome: Outcome,
        slots: tuple[int, ...],
        counts: tuple[int, ...],
        running: int,
        waiting: int,
        finished: list[Sequence],
        host_blocks: int = 0,
    ) -> None:
        """slots, counts: while the step ran, as `Allocator.split` and `Allocator.cache_counts`. finished: as
        `Scheduler.commit` returns it."""
        number, num_sequences, fed = len(self.steps), plan.num_sequences, plan.num_tokens
        for record in plan.preempted:
            self.preemptions.append((start, number, record))
            victim = self._by_id[record.victim]
            self._waiting[victim.request.client] += 1
            for part in victim.parts:
                self._left(part, number)
        if plan.returned:
            self.returns += [(start, number, record) for record in plan.returned]
        service = self._service(plan, outcome)
        last = None
        for new in plan.admitted:
            id = new.request.id
            if id == last:  # what has forked returns part by part
                continue
            last, seq = id, self._by_id[id]
            self._waiting[seq.request.client] -= 1
            self.admitted_s.setdefault(id, start)
            for part in seq.branches or (seq,):
                self._entered[part.key] = number
        for seq in finished:
            if not seq.branches:
                self._left(seq, number + 1)
            self.num_finished += seq.trunk is None
        prefilled = sum([n for n in fed if n > 1]) if len(fed) > 1 else (fed[0] if fed and fed[0] > 1 else 0)
        row = (start, running, waiting, num_sequences, plan.total_tokens, prefilled, plan.memory_blocked)
        more = None
        if plan.moves or counts or host_blocks or plan.admission_estimate is not None:
            o = outcome
            moved = (len(plan.copies), o.copy_s, len(plan.swapped_out), len(plan.swapped_in), o.swap_out_s, o.swap_in_s)
            more = seldom(counts, moved, host_blocks, (o.load_s, o.store_s), plan.admission_estimate)
        self.steps.add(row, slots, end, more)
        if len(self._waiting) > 1:
            self._serve(service, 1)
        self.output_tokens += num_sequences - outcome.tokens.count(-1)
        if self._on_progress is not None:
            self._on_progress(self)

    def entered(
        self,
        start: float,
        end: float,
        entry: Entry,
        slots: tuple[int, ...],
        running: int,
        waiting: int,
        finished: list[Sequence],
    ) -> None:
        """A step of prompts that nobody planned. The rest as in `step`."""
        number, fed = len(self.steps), entry.num_tokens
        if entry.together is not None:
            self._follow(entry.together)
        for seq in entry.new:
            self._waiting[seq.request.client] -= 1
            self.admitted_s[seq.id] = start
            self._entered[seq.id] = number
        for seq in finished:
            self._left(seq, number + 1)
        self.num_finished += len(finished)
        prefilled = entry.total_tokens - fed.count(1)
        row = (start, running, waiting, len(fed), entry.total_tokens, prefilled, entry.memory_blocked)
        self.steps.add(row, slots, end)
        sampled = [seq for seq in entry.seqs if seq.computed == len(seq.request.prompt)]
        if len(self._waiting) > 1:
            service: defaultdict[tuple[str, bool], int] = defaultdict(int)
            for seq in entry.new:
                service[seq.request.client, False] += seq.request.prompt_tokens
            for seq in sampled:
                service[seq.request.client, True] += 1
            self._serve(service, 1)
        self.output_tokens += len(sampled)
        if self._on_progress is not None:
            self._on_progress(self)

    def coasted(
        self,
        pieces: list[Piece],
        counts: tuple[int, ...],
        host_blocks: int,
        steps: Coasted,
        together: Together,
        block_size: int,
        promises: bool,
    ) -> None:
        """Steps that nobody planned. block_size, promises: as `Timeline.stretches` takes them; counts: as in `step`.
        together: who took the first of them."""
        number = len(self.steps)
        more = seldom(counts, host_blocks=host_blocks) if counts or host_blocks else None
        self.steps.stretches(pieces, steps, block_size, promises, more)
        self._follow(together)
        for row, _, count, finished in pieces:
            number += count
            if len(self._waiting) > 1:
                self._serve(self._generated(), count)
            for seq in finished:
                self._left(seq, number)
                self._together[seq.request.client] -= 1
            self.num_finished += len(finished)
            self.output_tokens += int(row[3]) * count
        if self._on_progress is not None:
            self._on_progress(self)

    def _service(self, plan: Plan, outcome: Outcome) -> dict[tuple[str, bool], int]:
        """(client, whether generated or of a prompt) -> tokens."""
        service: defaultdict[tuple[str, bool], int] = defaultdict(int)
        if plan.together is not None:
            self._follow(plan.together)
            if plan.together.count and len(self._waiting) > 1:
                service |= self._generated()
            for seq in outcome.ended:
                self._together[seq.request.client] -= 1
        for new in plan.admitted if len(self._waiting) > 1 else ():
            request = new.request
            if request.id not in self.admitted_s:
                service[request.client, False] += request.prompt_tokens
        for seq, token in zip(plan.batch, outcome.tokens, strict=True):
            if token >= 0:
                made = 1
                if seq.branches:  # a trunk samples for all of them, and again after a preemption, when nobody takes it
                    made = len(seq.branches) if seq.id not in self._forked else 0
                    self._forked.add(seq.id)
                service[seq.request.client, True] += made
        return service

    def _follow(self, together: Together) -> None:
        if together.dissolved:
            self._together.clear()
        for seq in together.joined:
            self._together[seq.request.client] += 1

    def _generated(self) -> dict[tuple[str, bool], int]:
        """A token for each of those that advance together."""
        return {(client, True): n for client, n in self._together.items() if n}

    def _serve(self, service: dict[tuple[str, bool], int], steps: int) -> None:
        served = {client: (service.get((client, False), 0), service.get((client, True), 0)) for client, _ in service}
        backlogged = frozenset(client for client, count in self._waiting.items() if count)
        self.service.append(Service(steps, served, backlogged))

    def _left(self, seq: Sequence, before_step: int) -> None:
        self.stays.append((self._entered.pop(seq.key), before_step, seq.slots_unused))
