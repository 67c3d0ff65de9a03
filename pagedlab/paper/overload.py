"""Ends a run as soon as it is certain that a mean over its requests reaches a limit: of a rate far too high, minutes of
a trace tell as much as all of it."""

from __future__ import annotations

from collections.abc import Callable

from pagedlab.core.request import Sequence, Status
from pagedlab.executor.base import output_limit
from pagedlab.recorder.metrics import Slo
from pagedlab.recorder.recorder import Recorder
from pagedlab.run import Lab

_EVERY = 128  # turns of the engine

Least = Callable[[Sequence, float], float]
"""(request, now in seconds) -> what its value is at least; of one that has ended, exactly that. It never falls."""


def normalized_latency_s(seq: Sequence, now: float) -> float:
    """Who has arrived waits until now at least; its tokens are known."""
    until = seq.finish_s if seq.status is Status.FINISHED else now
    return ((until or now) - seq.request.arrival_s) / output_limit(seq.request)


def misses(slo: Slo) -> Least:
    """1 where a request has missed it, else 0."""

    def missed(seq: Sequence, now: float) -> float:
        if seq.status is Status.FINISHED:
            return float(slo.met_by([seq])[0] is False)
        begun = seq.token_s[0] if seq.token_s else now
        return float(slo.ttft_s is not None and begun - seq.request.arrival_s > slo.ttft_s)

    return missed


class Overload:
    """(lab, recorder) -> whether to stop. limit: of a mean over all requests of the run, least: of the value of one.

    bound: what that mean is at least, those still to come being nothing at least. None until it has reached the limit.
    """

    def __init__(self, limit: float, least: Least = normalized_latency_s):
        self.limit = limit
        self.bound: float | None = None
        self._least = least
        self._turns = 0
        self._known = 0
        self._open: list[Sequence] = []
        self._ended = 0.0

    def __call__(self, lab: Lab, recorder: Recorder) -> bool:
        self._turns += 1
        if self._turns % _EVERY:
            return False
        seen = recorder.sequences
        self._open += seen[self._known :]
        self._known = len(seen)
        now, still, open_now = lab.executor.clock.now(), [], 0.0
        for seq in self._open:
            if seq.status is Status.REFUSED:
                continue
            value = self._least(seq, now)
            if seq.status is Status.FINISHED:
                self._ended += value
            else:
                still.append(seq)
                open_now += value
        self._open = still
        bound = (self._ended + open_now) / len(lab.requests)
        if bound < self.limit:
            return False
        self.bound = bound
        return True
