"""Skip-join multi-level feedback queue (FastServe, Wu et al., arXiv 2305.05920, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

from pagedlab.allocator.base import Allocator
from pagedlab.core.request import Sequence
from pagedlab.scheduler.order.base import ORDERS, Order
from pagedlab.settings import SchedulerSettings


@dataclass(slots=True)
class _Place:
    """level: 0 is served first. turn: when it came to that level, as a serial number. used: tokens of its quantum."""

    level: int
    turn: int
    used: int = 0
    waits_since_s: float = 0.0


@ORDERS.register("mlfq")
class Mlfq(Order):
    """By (level, turn on that level). Level i has a quantum of `quantum` x 2**i tokens, the last has no end.

    A request joins the first level whose quantum is no less than its prompt: it skips those that the prefill alone
    would use up. What it is fed and what it generates use the quantum up; then it goes to the end of the next level.
    What is fed again after a preemption is not counted, else preemptions would push it down. Preemptive: what is on a
    lower level, or behind on the same, yields. FastServe counts seconds, here it is tokens; it swaps, here
    `preemption` decides.

    Ageing: after `ageing_s` seconds of waiting a request is back on the first level, behind those that are there. They
    leave it after their quantum at the latest, and whoever comes later is behind: it gets a quantum each time it has
    aged, and so ends. Nobody is starved; where more comes than can be served these times get longer and longer.
    """

    preempts = True
    watches = True

    def __init__(self, settings: SchedulerSettings, allocator: Allocator, seed: int):
        super().__init__(settings, allocator, seed)
        self.promotions = 0
        self._places: dict[int, _Place] = {}
        self._now_s = 0.0
        self._turns = 0

    def key(self, seq: Sequence) -> tuple[int, int]:
        place = self._places[seq.id]
        return place.level, place.turn

    def push(self, seq: Sequence) -> None:
        if seq.id not in self._places:
            self._places[seq.id] = _Place(self._first_level(seq.request.prompt_tokens), self._next_turn())
        self._places[seq.id].waits_since_s = self._now_s
        super().push(seq)

    def time(self, now_s: float) -> None:
        self._now_s = now_s
        for seq in sorted(self.sequences(), key=self.key):
            place = self._places[seq.id]
            if place.level and now_s - place.waits_since_s >= self.settings.mlfq.ageing_s:
                self._places[seq.id] = _Place(0, self._next_turn(), waits_since_s=now_s)
                self.promotions += 1
        self._rekey()

    def served(self, seq: Sequence, fed: int, generated: int) -> None:
        place = self._places[seq.id]
        place.used += fed + generated
        if place.level < self.settings.mlfq.levels - 1 and place.used >= self._quantum(place.level):
            self._places[seq.id] = _Place(place.level + 1, self._next_turn())

    def ended(self, seq: Sequence) -> None:
        del self._places[seq.id]

    def _first_level(self, prompt_tokens: int) -> int:
        last = self.settings.mlfq.levels - 1
        return next((level for level in range(last) if self._quantum(level) >= prompt_tokens), last)

    def _quantum(self, level: int) -> int:
        return self.settings.mlfq.quantum << level

    def _next_turn(self) -> int:
        self._turns += 1
        return self._turns
