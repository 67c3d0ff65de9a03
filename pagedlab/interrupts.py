"""SIGINT and SIGTERM: between steps a run stops and writes what it has; elsewhere they end it at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop. exit_code: 128 + signal number, as a shell says it."""

    def __init__(self, signum: int):
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


class Interrupts:
    """Signal handlers of a process. Inside `deferred` the first signal is only remembered, so that a step, a file or an
    import is finished first, and a second one raises Interrupted where it strikes; outside, the first one does."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._deferred = False
        self._finishing = False

    def install(self) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._handle)

    @property
    def requested(self) -> bool:
        return self.signum is not None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """No exception in here for a first signal; whoever is inside asks `requested`."""
        with self._deferring(True):
            yield

    @contextmanager
    def striking(self) -> Iterator[None]:
        """Inside `deferred`: in here every signal raises at once, one that has come already at the start."""
        with self._deferring(False):
            self.raise_if_requested()
            yield

    def finish(self) -> None:
        """Inside `deferred`: from here to its end no signal strikes at all. For writing, which is short."""
        self._finishing = True

    def raise_if_requested(self) -> None:
        if self.signum is not None:
            raise Interrupted(self.signum)

    @contextmanager
    def _deferring(self, deferred: bool) -> Iterator[None]:
        before = self._deferred
        self._deferred = deferred
        try:
            yield
        finally:
            self._deferred, self._finishing = before, False

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        first = self.signum is None
        self.signum = signum
        if not self._finishing and not (self._deferred and first):
            raise Interrupted(signum)
        if first and sys.stderr.isatty():
            print("stopping, once more to stop at once ...", file=sys.stderr)


def guarded(main: Callable[[Interrupts], int]) -> int:
    """Run a command under these handlers; returns its exit code. To be entered before any slow import.

    It begins deferred: what strikes an import comes out of it as another exception, or not at all. Once the command
    has returned, what it wrote is whole: a signal during the interpreter's exit is ignored.
    """
    interrupts = Interrupts()
    try:
        interrupts.install()
        with interrupts.deferred():
            code = main(interrupts)
    except Interrupted as stop:
        print(f"interrupted by {stop}", file=sys.stderr, flush=True)
        code = stop.exit_code
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    return code
