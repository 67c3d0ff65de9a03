"""Arrival processes: when the requests of a workload come."""

from __future__ import annotations

import numpy as np
import pytest

from pagedlab.core.errors import ConfigError
from pagedlab.settings import ArrivalSettings
from pagedlab.workload.arrival import arrival_times

MANY = 200_000


def gaps(settings: ArrivalSettings, seed: int = 0) -> np.ndarray:
    return np.diff(arrival_times(settings, MANY, seed), prepend=0.0)


def test_at_once_is_time_zero_for_all() -> None:
    assert arrival_times(ArrivalSettings("at_once"), 3, seed=0).tolist() == [0.0, 0.0, 0.0]


def test_constant_requests_come_after_equal_gaps_the_first_too() -> None:
    assert arrival_times(ArrivalSettings("constant", rate=4), 4, seed=0).tolist() == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("rate", [0.5, 20.0])
def test_poisson_gaps_are_exponential(rate: float) -> None:
    drawn = gaps(ArrivalSettings("poisson", rate=rate))
    assert drawn.mean() == pytest.approx(1 / rate, rel=0.01)
    assert drawn.std() == pytest.approx(1 / rate, rel=0.02)
    # Half of them are below ln 2 of the mean, and neighbours know nothing of each other.
    assert np.mean(drawn < np.log(2) / rate) == pytest.approx(0.5, abs=0.005)
    assert np.corrcoef(drawn[1:], drawn[:-1])[0, 1] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_rate_and_a_spread_of_the_burstiness(burstiness: float) -> None:
    drawn = gaps(ArrivalSettings("gamma", rate=10, burstiness=burstiness))
    assert drawn.mean() == pytest.approx(0.1, rel=0.02)
    assert drawn.std() / drawn.mean() == pytest.approx(burstiness**-0.5, rel=0.02)


def test_gamma_with_a_burstiness_of_one_is_poisson() -> None:
    gamma = arrival_times(ArrivalSettings("gamma", rate=3, burstiness=1.0), 50, seed=7)
    assert gamma.tolist() == arrival_times(ArrivalSettings("poisson", rate=3), 50, seed=7).tolist()


@pytest.mark.parametrize("process", ["constant", "poisson", "gamma"])
@pytest.mark.parametrize("rate", [1e-6, 1e9])
def test_times_ascend_and_are_finite_at_the_ends_of_the_range(process: str, rate: float) -> None:
    times = arrival_times(ArrivalSettings(process, rate=rate), 1000, seed=1)
    assert np.isfinite(times).all()
    assert (np.diff(times) >= 0).all()


def test_a_seed_gives_the_same_times_and_another_gives_others() -> None:
    poisson = ArrivalSettings("poisson", rate=1)
    assert arrival_times(poisson, 9, seed=5).tolist() == arrival_times(poisson, 9, seed=5).tolist()
    assert arrival_times(poisson, 9, seed=5).tolist() != arrival_times(poisson, 9, seed=6).tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ArrivalSettings("weekly"), "workload.arrival.process=weekly: expected one of at_once, constant"),
        (ArrivalSettings("at_once", rate=2.0), "workload.arrival.rate=2.0: expected null, as at_once has no rate"),
        (ArrivalSettings("poisson"), "workload.arrival.rate=null: expected a number from"),
        (ArrivalSettings("constant", rate=0), "workload.arrival.rate=0: expected a number from"),
        (ArrivalSettings("gamma", rate=-1), "workload.arrival.rate=-1: expected a number from"),
        (ArrivalSettings("poisson", rate=float("nan")), "workload.arrival.rate=nan: expected a number from"),
        (ArrivalSettings("poisson", rate=float("inf")), "workload.arrival.rate=inf: expected a number from"),
        (ArrivalSettings("poisson", rate=True), "workload.arrival.rate=true: expected a number from"),
        (ArrivalSettings("gamma", rate=1, burstiness=0), "workload.arrival.burstiness=0: expected a number from"),
        (ArrivalSettings("poisson", rate=1, burstiness=0.5), "workload.arrival.burstiness=0.5: expected 1, as only"),
    ],
)
def test_what_cannot_work_or_would_do_nothing_is_refused(settings: ArrivalSettings, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        arrival_times(settings, 1, seed=0)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_a_seed_is_a_whole_number_from_zero(seed: int) -> None:
    with pytest.raises(ConfigError, match=r"^seed=.*: expected a whole number from 0$"):
        arrival_times(ArrivalSettings("poisson", rate=1), 1, seed)
