"""Capacity by bisection, on curves whose crossing is known."""

import pytest

from pagedlab.paper.capacity import capacity


@pytest.mark.parametrize("crossing", [0.03, 0.52, 1.0, 28.05, 200.0])
@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (1.0, 1.0), (8.0, 8.0), (0.5, 8.0), (20.0, 30.0)])
def test_the_crossing_is_found_from_any_start(crossing, low, high):
    def knee(rate):
        return 0.03 if rate < crossing else 0.5 + rate - crossing

    found = capacity(knee, low, high, 0.5)
    assert found == pytest.approx(crossing, rel=0.016)


def test_a_smooth_curve_is_met_where_it_reaches_the_threshold():
    assert capacity(lambda rate: rate**2, 1.0, 1.0, 9.0, tolerance=1e-6) == pytest.approx(3.0, rel=1e-6)


def test_few_rates_are_asked_for_and_fewest_where_the_crossing_is_as_thought():
    def asked(low, high):
        rates = []
        capacity(lambda rate: rates.append(rate) or rate, low, high, 3.0)
        return len(rates)

    assert asked(1.0, 1.0) < 16
    assert asked(2.85, 3.15) == 4


def test_a_curve_that_never_crosses_has_no_capacity():
    assert capacity(lambda rate: 0.1, 1.0, 1.0, 0.5) is None
    assert capacity(lambda rate: 0.9, 1.0, 1.0, 0.5) is None
