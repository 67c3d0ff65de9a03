"""Intervals that hold what they promise, corrections from the literature, fronts against the definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pagedlab.analysis import statistics
from pagedlab.analysis.statistics import estimate, holm, pareto


@pytest.mark.parametrize("count", [5, 8, 20])
def test_of_ten_intervals_nine_and_a_half_hold_the_truth(count, monkeypatch):
    """300 times means of a normal distribution: 95 % +- 3 standard errors of that count. Percentiles of resampled means
    hold it in 82 % of the cases with 5 values."""
    monkeypatch.setattr(statistics, "_RESAMPLES", 499)
    rng = np.random.default_rng(7)
    found = [estimate(rng.normal(3.0, 2.0, count)) for _ in range(300)]
    held = np.mean([e.low <= 3.0 <= e.high for e in found])
    assert abs(held - 0.95) <= 3 * (0.95 * 0.05 / 300) ** 0.5


def test_a_difference_that_is_none_is_shown_in_five_percent_of_cases_at_most(monkeypatch):
    monkeypatch.setattr(statistics, "_RESAMPLES", 499)
    rng = np.random.default_rng(8)
    shown = np.mean([estimate(rng.normal(0.0, 1.0, 6)).p < 0.05 for _ in range(300)])
    assert shown <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5


def test_many_values_give_the_interval_of_students_t():
    x = np.random.default_rng(0).exponential(1.0, 400)
    ours, theirs = estimate(x), stats.ttest_1samp(x, 0.0).confidence_interval(0.95)
    assert ours.low == pytest.approx(theirs.low, abs=0.03)
    assert ours.high == pytest.approx(theirs.high, abs=0.03)
    more = np.tile(x, 2)
    assert estimate(more).low == stats.ttest_1samp(more, 0.0).confidence_interval(0.95).low


def test_too_few_values_have_a_mean_and_no_interval():
    assert estimate([1.0, 2.0, 3.0, 4.0]) == statistics.Estimate(2.5)


def test_values_that_are_all_the_same_leave_no_doubt():
    assert estimate([0.0] * 5) == statistics.Estimate(0.0, 0.0, 0.0, 1.0)
    certain = estimate([-3.0] * 5)
    assert (certain.mean, certain.low, certain.high) == (-3.0, -3.0, -3.0)
    assert certain.p == pytest.approx(1e-4)


def test_the_same_values_give_the_same_interval():
    assert estimate([1.0, 2.0, 4.0, 8.0, 9.0]) == estimate([1.0, 2.0, 4.0, 8.0, 9.0])


def test_holms_correction_as_in_rs_p_adjust():
    """p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm") and one out of order."""
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert holm([0.04, 0.001, 0.6]) == pytest.approx([0.08, 0.003, 0.6])
    assert holm([]) == []


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=12))
def test_the_front_is_what_no_other_point_dominates(points):
    def beaten(one):
        return any(all(a <= b for a, b in zip(other, one, strict=True)) and other != one for other in points)

    assert pareto(points) == [not beaten(one) for one in points]


def test_an_interval_that_nothing_bounds_is_none_and_not_infinite():
    """Of five values of which four are the same, resamples of the four have no spread to measure by."""
    found = estimate([5, 5, 5, 5, 6])
    assert (found.mean, found.low, found.high) == (5.2, None, None)
    assert 0 < found.p < 1
