"""Time: the wall for a real run, a number for a simulated one. The engine cannot tell them apart."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the start of the run, which `start` sets to now."""

    @property
    def kind(self) -> str:
        """wall or virtual."""

    def start(self) -> None: ...

    def now(self) -> float: ...

    def advance(self, seconds: float) -> float:
        """A step of `seconds` has been executed: the time now."""

    def wait_until(self, when: float) -> float:
        """Nothing to do before `when`: the time now, which may still be earlier (the caller asks again)."""


class WallClock:
    """Real time. Waits in short naps, so that a request to stop is seen soon."""

    NAP_S = 0.05
    kind = "wall"

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def advance(self, seconds: float) -> float:
        return self.now()

    def wait_until(self, when: float) -> float:
        time.sleep(max(0.0, min(when - self.now(), self.NAP_S)))
        return self.now()


class VirtualClock:
    """Simulated time: moves only by what a step cost, or to the next arrival."""

    kind = "virtual"

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        self._now += seconds
        return self._now

    def wait_until(self, when: float) -> float:
        if when > self._now:
            self._now = when
        return self._now
