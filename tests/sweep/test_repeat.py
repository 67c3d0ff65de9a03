"""Means and spreads over seeds, and the overlap of prompts, against numbers made otherwise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.plan import estimate
from pagedlab.recorder.protocol import prompt_overlap
from pagedlab.repeat import together
from pagedlab.sweep.record import Record


def test_numbers_become_means_with_the_spread_of_a_sample():
    """2, 4, 9: mean 5, squares 9 + 1 + 16 = 26 over two, which is 13."""
    runs = [{"status": "completed", "seed": seed, "x": x, "n": 3, "t": {"p50": x}} for seed, x in enumerate((2, 4, 9))]
    summary = together(runs, [0, 1, 2])
    assert (summary["x"], summary["x_std"]) == (5, pytest.approx(13**0.5))
    assert (summary["t"], summary["t_std"]) == ({"p50": 5}, {"p50": pytest.approx(13**0.5)})
    assert (summary["n"], summary["n_std"], summary["status"]) == (3, 0, "completed")
    assert (summary["seed"], summary["seeds"], summary["per_seed"]) == (None, [0, 1, 2], runs)


def test_what_is_not_in_all_of_them():
    """A number that one run lacks is the mean of the others; a word on which they differ is none; one run has no
    spread."""
    summary = together([{"x": None, "w": "a"}, {"x": 2.0, "w": "b"}, {"x": 4.0, "w": "b"}], [0, 1, 2])
    assert (summary["x"], summary["x_std"], summary["w"]) == (3.0, pytest.approx(2**0.5), None)
    assert together([{"x": 2.0}], [0])["x_std"] is None


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=8))
def test_the_overlap_is_what_an_endless_cache_would_hit(prompts):
    """By a set of all beginnings seen so far, in the order of arrival."""
    seen, hit = set(), 0
    for prompt in prompts:
        beginnings = [tuple(prompt[:length]) for length in range(1, len(prompt) + 1)]
        hit += sum(beginning in seen for beginning in beginnings)
        seen |= set(beginnings)
    total = sum(map(len, prompts))
    overlap = prompt_overlap([np.array(prompt, np.int32) for prompt in prompts])
    assert overlap == (pytest.approx(hit / total) if total else None)


def test_an_estimate_is_the_mean_of_the_most_alike():
    def took(seconds, **swept):
        return Record({key: str(value) for key, value in swept.items()}, "completed", seconds=seconds)

    before = [took(1.0, a=1, b=1), took(3.0, a=1, b=2), took(9.0, a=2, b=2)]
    assert estimate({"a": "1", "b": "9"}, before) == 2.0
    assert estimate({"a": "1", "b": "2"}, before) == 3.0
    assert estimate({"a": "5"}, before) is None
    assert estimate({"a": "5"}, []) is None
