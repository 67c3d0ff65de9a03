"""A run far beyond what its system sustains ends early, and what is then said of it is true."""

import pytest

from pagedlab.paper.bench import Bench
from pagedlab.paper.measures import normalized_latency_s
from pagedlab.paper.overload import Overload
from tests.config.composed import initialize_config_module


@pytest.fixture(scope="module")
def bench():
    with initialize_config_module("pagedlab.conf", version_base="1.3"):
        yield Bench(20.0, (0,))


@pytest.mark.parametrize("system", ["fastertransformer", "orca_max", "vllm"])
@pytest.mark.parametrize("limit", [0.1, 0.5])
def test_an_overloaded_run_ends_early_with_a_bound_that_the_whole_run_keeps(bench, system, limit):
    settings, over = bench.settings(system, "alpaca"), Overload(limit)
    stopped = bench.serve(settings, 90.0, 0, stop=over)
    whole = bench.serve(settings, 90.0, 0)
    assert limit <= over.bound <= normalized_latency_s(whole)
    assert stopped.recorder.steps.column("end_s")[-1] < whole.recorder.steps.column("end_s")[-1]


def test_a_run_below_the_limit_goes_to_its_end_and_is_the_same(bench):
    settings, over = bench.settings("vllm", "alpaca"), Overload(0.5)
    assert over.bound is None
    latency = normalized_latency_s(bench.serve(settings, 10.0, 0, stop=over))
    assert over.bound is None
    assert latency == normalized_latency_s(bench.serve(settings, 10.0, 0))
