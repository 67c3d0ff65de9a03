"""What is counted as in the paper, on runs small enough to count by hand."""

import pytest

from pagedlab.paper.bench import Bench
from pagedlab.paper.measures import memory_shares
from pagedlab.paper.points import mean_of
from tests.config.composed import initialize_config_module


@pytest.fixture(scope="module")
def bench():
    with initialize_config_module("pagedlab.conf", version_base="1.3"):
        yield Bench(120.0, (0,))


@pytest.mark.parametrize("system", ["orca_max", "orca_pow2", "orca_oracle", "vllm"])
def test_the_shares_are_the_whole_pool_in_every_system(bench, system):
    shares = memory_shares(bench.serve(bench.settings(system, "sharegpt"), 6.0, 0))
    assert sum(shares.values()) == pytest.approx(100)
    assert all(share > -1e-9 for share in shares.values())


def test_seven_of_the_longest_requests_fit_and_the_rest_of_the_pool_is_external(bench):
    """floor(15,728 / 2,048) = 7: an identity of the paper's setup."""
    shares = memory_shares(bench.serve(bench.settings("orca_max", "sharegpt"), 2.0, 0))
    assert shares["external"] == pytest.approx(100 * (15_728 - 7 * 2_048) / 15_728)


def test_an_oracle_reserves_nothing_that_is_never_used(bench):
    # But for the step that feeds a prompt, in which the rounding of its run is not told apart.
    assert memory_shares(bench.serve(bench.settings("orca_oracle", "sharegpt"), 2.0, 0))["internal"] < 0.5


def test_what_nobody_waits_for_is_not_wasted(bench):
    shares = memory_shares(bench.serve(bench.settings("vllm", "sharegpt"), 0.1, 0))
    assert set(shares.values()) == {None}


def test_the_interval_is_students():
    assert mean_of([1.0]) == {"value": 1.0}
    assert mean_of([None]) == {"value": None}
    # The mean 2 of 1, 2, 3: deviation 1, t = 4.303 of two degrees of freedom.
    found = mean_of([1.0, 2.0, 3.0])
    assert found["ci_high"] - found["value"] == pytest.approx(4.303 / 3**0.5)
