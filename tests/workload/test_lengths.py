"""Length distributions of synthetic requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagedlab.core.errors import ConfigError
from pagedlab.settings import LengthSettings
from pagedlab.workload.lengths import check_lengths, draw_lengths
from pagedlab.workload.paper_lengths import Side, paper_table

MANY = 200_000


def draw(settings: LengthSettings, side: Side = "input", count: int = MANY, seed: int = 0) -> np.ndarray:
    check_lengths(settings, "workload.prompt")
    return draw_lengths(settings, side, count, np.random.default_rng(seed))


def test_fixed_is_the_mean_each_time() -> None:
    assert draw(LengthSettings("fixed", mean=7), count=3).tolist() == [7, 7, 7]


def test_uniform_has_both_ends_and_all_between_equally() -> None:
    lengths, counts = np.unique(draw(LengthSettings("uniform", low=3, high=6)), return_counts=True)
    assert lengths.tolist() == [3, 4, 5, 6]
    assert counts / MANY == pytest.approx(0.25, rel=0.02)


def test_lognormal_has_the_mean_and_the_sigma_of_its_logarithm() -> None:
    lengths = draw(LengthSettings("lognormal", mean=500, sigma=0.5, low=1, high=1_000_000))
    assert lengths.mean() == pytest.approx(500, rel=0.01)
    assert np.log(lengths).std() == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(("mean", "length"), [(99.6, 100), (99.4, 99)])
def test_lognormal_is_rounded_to_the_nearest_length(mean: float, length: int) -> None:
    assert set(draw(LengthSettings("lognormal", mean=mean, sigma=1e-6, low=1, high=999))) == {length}


def test_lognormal_is_cut_to_low_and_high_not_drawn_anew() -> None:
    lengths = draw(LengthSettings("lognormal", mean=100, sigma=2, low=50, high=60))
    assert (lengths.min(), lengths.max()) == (50, 60)
    assert np.isin(lengths, [50, 60]).mean() > 0.9


@pytest.mark.parametrize("sigma", [1e-6, 2.0**24])
def test_lognormal_stays_within_its_bounds_whatever_the_sigma(sigma: float) -> None:
    lengths = draw(LengthSettings("lognormal", mean=100, sigma=sigma, low=1, high=1024), count=1000)
    assert lengths.min() >= 1
    assert lengths.max() <= 1024


@pytest.mark.parametrize("trace", ["ShareGPT", "Alpaca"])
@pytest.mark.parametrize("side", ["input", "output"])
def test_lengths_of_the_paper_have_the_means_that_it_prints(trace: str, side: Side) -> None:
    lengths = draw(LengthSettings(f"paper_{trace.lower()}"), side)
    assert lengths.mean() == pytest.approx(paper_table()[trace][side]["printed_mean"], rel=0.03)
    assert lengths.min() >= 1


@pytest.mark.parametrize("trace", ["ShareGPT", "Alpaca"])
@pytest.mark.parametrize("side", ["input", "output"])
def test_lengths_of_the_paper_fill_its_bins_by_their_mass(trace: str, side: Side) -> None:
    histogram = paper_table()[trace][side]
    lengths = draw(LengthSettings(f"paper_{trace.lower()}"), side)
    edges = histogram["left"] + histogram["bin_width"] * np.arange(129)
    density = np.asarray(histogram["density_1e-6"])
    # Rounding moves lengths at a bin's edge, hence groups of 16 bins.
    drawn, _ = np.histogram(lengths, edges[::16])
    assert drawn / MANY == pytest.approx(density.reshape(8, 16).sum(1) / density.sum(), abs=0.01)


def test_a_bin_across_a_bound_keeps_its_mass_and_one_beyond_it_is_left_out() -> None:
    histogram = paper_table()["Alpaca"]["output"]
    edge = histogram["left"] + histogram["bin_width"]
    whole = draw(LengthSettings("paper_alpaca"), "output")
    cut = draw(LengthSettings("paper_alpaca", low=4), "output")
    assert cut.min() == 4
    assert (cut < edge).mean() == pytest.approx((whole < edge).mean(), abs=0.005)
    assert cut.mean() == pytest.approx(histogram["printed_mean"], rel=0.03)
    short = draw(LengthSettings("paper_alpaca", low=4, high=40), "output")
    density = np.asarray(histogram["density_1e-6"])
    assert (short.min(), short.max()) == (4, 40)
    assert (short < edge).mean() == pytest.approx(density[0] / density[:4].sum(), abs=0.005)


def test_the_table_of_the_paper_says_what_it_is() -> None:
    table = paper_table()
    assert "arXiv:2309.06180" in table["source"]
    assert "CC BY 4.0" in table["source"]
    assert {
        len(table[trace][side]["density_1e-6"]) for trace in ("ShareGPT", "Alpaca") for side in ("input", "output")
    } == {128}
    assert table["ShareGPT"]["input"]["printed_mean"] == 161.31
    assert table["ShareGPT"]["output"]["printed_mean"] == 337.99
    assert table["Alpaca"]["input"]["printed_mean"] == 19.31
    assert table["Alpaca"]["output"]["printed_mean"] == 58.45


@pytest.mark.parametrize(
    "settings",
    [
        LengthSettings("uniform", low=1, high=9),
        LengthSettings("lognormal", mean=90, sigma=1, low=1, high=999),
        LengthSettings("paper_sharegpt"),
    ],
)
def test_a_longer_draw_begins_as_a_shorter_one(settings: LengthSettings) -> None:
    assert draw(settings, count=100)[:30].tolist() == draw(settings, count=30).tolist()


LOGNORMAL: dict[str, Any] = {"mean": 100, "sigma": 1, "low": 1, "high": 9}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (LengthSettings("normal"), "distribution=normal: expected one of fixed, uniform, lognormal, paper_sharegpt"),
        (LengthSettings("fixed"), "mean=null: expected a number from 1 to 1.67772e+07, which fixed needs"),
        (LengthSettings("fixed", mean=0), "mean=0: expected a number from 1"),
        (LengthSettings("fixed", mean=1.5), "mean=1.5: expected a whole number of tokens"),
        (LengthSettings("fixed", mean=float("nan")), "mean=nan: expected a number from 1"),
        (LengthSettings("fixed", mean=9, low=1), "low=1: expected null, as fixed has no low"),
        (LengthSettings("uniform", mean=4, low=1, high=9), "mean=4: expected null, as uniform has no mean"),
        (LengthSettings("uniform", low=1), "high=null: expected a whole number from 1"),
        (LengthSettings("uniform", low=0, high=9), "low=0: expected a whole number from 1"),
        (LengthSettings("uniform", low=5, high=4), "low=5: expected at most workload.prompt.high=4"),
        (LengthSettings("uniform", low=1, high=2**40), f"high={2**40}: expected a whole number from 1"),
        (LengthSettings("lognormal", **{**LOGNORMAL, "sigma": 0}), "sigma=0: expected a number from"),
        (LengthSettings("lognormal", **{**LOGNORMAL, "sigma": -1}), "sigma=-1: expected a number from"),
        (LengthSettings("lognormal", **{**LOGNORMAL, "sigma": None}), "sigma=null: expected a number from"),
        (LengthSettings("lognormal", **{**LOGNORMAL, "mean": None}), "mean=null: expected a number from"),
        (LengthSettings("lognormal", **{**LOGNORMAL, "low": 10}), "low=10: expected at most workload.prompt.high=9"),
        (LengthSettings("lognormal", **{**LOGNORMAL, "low": True}), "low=true: expected a whole number from 1"),
        (LengthSettings("paper_alpaca", mean=9), "mean=9: expected null, as paper_alpaca has no mean"),
        (LengthSettings("paper_alpaca", low=0), "low=0: expected a whole number from 1"),
        (LengthSettings("paper_alpaca", low=5, high=4), "low=5: expected at most workload.prompt.high=4"),
    ],
)
def test_what_cannot_work_or_would_do_nothing_is_refused(settings: LengthSettings, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_lengths(settings, "workload.prompt")
    assert str(caught.value).startswith(f"workload.prompt.{message}")
    assert "\n" not in str(caught.value)
