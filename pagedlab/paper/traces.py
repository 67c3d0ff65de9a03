"""Recorded workloads: windows of their requests, with the gaps between them, at another rate."""

from __future__ import annotations

from functools import cache

import numpy as np
from hydra import compose

from pagedlab.config import load_settings
from pagedlab.core.errors import WorkloadError
from pagedlab.core.request import Request
from pagedlab.interrupts import Interrupts
from pagedlab.run import build
from pagedlab.workload.assemble import Draft

RECORDED = ("azure", "mooncake")
WINDOW = 1200


class Recorded:
    """A trace as `Bench.serve` takes it: seed 0 is its first WINDOW requests, each other seed those after, then the
    first again.

    longest: prompts that are longer together with their outputs are left out. overrides: of the server that is to
    have it. To be made in a Hydra application. WorkloadError.
    """

    def __init__(self, name: str, path: str, windows: int, longest: int, overrides: tuple[str, ...]):
        config = compose("config", overrides=["executor=simulated", f"workload={name}", *overrides])
        config.workload.path = path
        if name == "mooncake":
            # Its prompts of all of an hour take half a GiB. A few more, as some are left out.
            config.workload.limit = 3 * windows * WINDOW
        requests = build(load_settings(config), Interrupts()).requests
        self._requests = [one for one in requests if one.prompt_tokens + one.max_tokens <= longest]
        if not self._requests:
            raise WorkloadError(f"{name}={path}: no request, expected some of at most {longest} tokens in all")
        self._recorded_s = np.array([one.arrival_s for one in self._requests])

    def drafts(self, count: int, seed: int) -> list[Draft]:
        """Those of the window, as many as there are, at most `count`."""
        return [_draft(one) for one in self._requests[self._window(count, seed)]]

    def times(self, rate: float, count: int, seed: int) -> np.ndarray:
        """The recorded ones of the window, from 0 on, so many times as fast that `rate` arrive a second on average."""
        at = self._recorded_s[self._window(count, seed)]
        lasts = at[-1] - at[0]
        faster = (len(at) - 1) / (rate * lasts) if lasts else 0.0
        return np.asarray((at - at[0]) * faster)

    def _window(self, count: int, seed: int) -> slice:
        """Where it begins does not depend on the count, or a run at another rate would serve other requests."""
        first = seed % max(1, len(self._requests) // WINDOW) * WINDOW
        return slice(first, first + min(count, WINDOW))


def _draft(one: Request) -> Draft:
    """Every client declares what was recorded."""
    return Draft(one.prompt, one.max_tokens, one.max_tokens, one.source)


recorded = cache(Recorded)  # a process reads each file once
