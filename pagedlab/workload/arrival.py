"""When requests arrive: all at once, evenly, or as the points of a Poisson or gamma process."""

from __future__ import annotations

import numpy as np

from pagedlab.settings import ArrivalSettings
from pagedlab.workload.checks import choice, number, refused
from pagedlab.workload.streams import Stream, generator

PROCESSES = ("at_once", "constant", "poisson", "gamma")
WHERE = "workload.arrival"


def check_arrival(settings: ArrivalSettings) -> None:
    """Raise ConfigError unless the process has the fields it needs, and no field that it would ignore."""
    process = choice(f"{WHERE}.process", settings.process, PROCESSES)
    if process == "at_once":
        if settings.rate is not None:
            raise refused(f"{WHERE}.rate", settings.rate, f"null, as {process} has no rate")
    else:
        number(f"{WHERE}.rate", settings.rate, 1e-6, 1e9, f" requests a second, which {process} needs")
    if process == "gamma":
        number(f"{WHERE}.burstiness", settings.burstiness, 1e-6, 1e6)
    elif settings.burstiness != 1:
        raise refused(f"{WHERE}.burstiness", settings.burstiness, f"1, as only gamma has bursts and this is {process}")


def arrival_times(settings: ArrivalSettings, count: int, seed: int) -> np.ndarray:
    """Seconds after the start of the run, float64 [count], ascending.

    The first request comes after the first gap, not at 0, as in vLLM's serving benchmark: `count` requests then
    take count/rate seconds on average. Unlike there the times are not stretched to end at exactly count/rate,
    which would make them the points of another process. poisson is gamma with a burstiness of 1.
    Raises ConfigError.
    """
    check_arrival(settings)
    if settings.rate is None:  # at_once
        return np.zeros(count)
    if settings.process == "constant":
        return np.arange(1, count + 1) / settings.rate
    # A gamma gap of shape b and mean 1/rate. Dividing by the shape first keeps large ones from overflowing.
    gaps = generator(seed, Stream.ARRIVAL).gamma(settings.burstiness, size=count) / settings.burstiness
    return np.cumsum(gaps) / settings.rate
