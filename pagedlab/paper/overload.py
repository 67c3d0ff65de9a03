"""Ends a run as soon as it is certain that its normalized latency reaches a limit: of a rate far too high, minutes of
a trace tell as much as all of it."""

from __future__ import annotations

from pagedlab.core.request import Sequence, Status
from pagedlab.executor.base import output_limit
from pagedlab.recorder.recorder import Recorder
from pagedlab.run import Lab

_EVERY = 128  # turns of the engine


class Overload:
    """(lab, recorder) -> whether to stop. limit: seconds a token, of a mean over all requests of the run.

    bound: what that mean is at least. Whoever has arrived waits until now at least, and those still to come not less
    than nothing; its tokens are known. None until the bound has reached the limit.
    """

    def __init__(self, limit: float):
        self.limit = limit
        self.bound: float | None = None
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
        now, still, waited = lab.executor.clock.now(), [], 0.0
        for seq in self._open:
            if seq.status is Status.REFUSED:
                continue
            request = seq.request
            until = seq.finish_s if seq.status is Status.FINISHED else now
            latency = ((until or now) - request.arrival_s) / output_limit(request)
            if seq.status is Status.FINISHED:
                self._ended += latency
            else:
                still.append(seq)
                waited += latency
        self._open = still
        bound = (self._ended + waited) / len(lab.requests)
        if bound < self.limit:
            return False
        self.bound = bound
        return True
