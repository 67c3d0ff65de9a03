"""Several engines behind a router, each with a scheduler, a pool and a clock of its own.

They move on lazily: nothing that one does can matter to another before the next request is routed, so each runs up to
that moment by itself, skipping steps as it would alone. Where clients ask again after an answer the next request is not
known beforehand: the one furthest behind moves, and not beyond the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from math import inf

from pagedlab.core.arrivals import Arrivals
from pagedlab.core.request import Request, Sequence
from pagedlab.engine import Engine
from pagedlab.executor.base import Executor
from pagedlab.recorder.recorder import Recorder
from pagedlab.router.base import Router
from pagedlab.scheduler.scheduler import Scheduler

Replica = tuple[Scheduler, Executor, Recorder]


def serve_replicas(
    requests: Iterable[Request],
    replicas: list[Replica],
    router: Router,
    stop_requested: Callable[[], bool] = lambda: False,
    audit_every: int = 0,
) -> bool:
    """As `engine.serve`, by several replicas on virtual clocks."""
    cluster = _Cluster(list(requests), replicas, router, audit_every)
    for _, executor, _ in replicas:
        executor.clock.start()
    try:
        while cluster.busy:
            if stop_requested():
                return False
            cluster.turn()
    finally:
        for scheduler, _, _ in replicas:
            scheduler.settle()
    for scheduler, _, _ in replicas:
        scheduler.audit()
    return True


class _Cluster:
    def __init__(self, requests: list[Request], replicas: list[Replica], router: Router, audit_every: int):
        self._arrivals = Arrivals(requests)
        self._asks_again = any(request.follow_up for request in requests)
        self._router = router
        self._engines = [
            Engine(scheduler, executor, recorder, Arrivals(), partial(self._ended, i), audit_every)
            for i, (scheduler, executor, recorder) in enumerate(replicas)
        ]
        self._answers: list[tuple[float, int, int, Request]] = []  # heap of (when, id, replica, request)

    @property
    def busy(self) -> bool:
        return bool(self._arrivals) or any(engine.busy for engine in self._engines)

    def turn(self) -> None:
        """The next request is routed if all replicas have come to its arrival; else the one furthest behind moves."""
        arrival = self._arrivals.next_s
        times = [engine.next_s for engine in self._engines]
        behind = times.index(min(times))
        if times[behind] >= arrival:
            self._route(arrival)
            return
        horizon = arrival
        if self._asks_again:
            # Whoever ends on another replica does so after the moment that it has come to, and may ask again at once.
            horizon = min(arrival, *(time for i, time in enumerate(times) if i != behind), inf)
        self._engines[behind].turn(horizon)

    def _route(self, now: float) -> None:
        while self._answers and self._answers[0][0] <= now:
            _, _, replica, request = heappop(self._answers)
            self._router.answered(replica, request)
        request = self._arrivals.pop()
        self._engines[self._router.route(request)].arrivals.append(request)

    def _ended(self, replica: int, seqs: list[Sequence]) -> None:
        self._arrivals.ended(seqs)
        for seq in seqs:
            if seq.trunk is None:
                when = seq.request.arrival_s if seq.finish_s is None else seq.finish_s  # refused at once
                heappush(self._answers, (when, seq.id, replica, seq.request))
