"""Python's cyclic garbage collector, off where it can find nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected(off: bool = True) -> Iterator[None]:
    """Without collections inside, if `off`: for a simulation, all of whose sequences are held to the end of its run, so
    that collections would look at ever more of them and free none."""
    off = off and gc.isenabled()
    if off:
        gc.disable()
    try:
        yield
    finally:
        if off:
            gc.enable()
