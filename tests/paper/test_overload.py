"""A run far beyond what its system sustains ends early, and what is then said of it is true."""

import pytest

from pagedlab.paper.bench import Bench
from pagedlab.paper.measures import normalized_latency_s
from pagedlab.paper.overload import Overload, misses
from pagedlab.recorder.metrics import Slo
from tests.config.composed import initialize_config_module


@pytest.fixture(scope="module")
def bench():
    with initialize_config_module("pagedlab.conf", version_base="1.3"):
        yield Bench(20.0, (0,))


@pytest.mark.parametrize("system", ["fastertransformer", "orca_max", "vllm"])
@pytest.mark.parametrize("limit", [0.1, 0.5])
def test_an_overloaded_run_ends_early_with_a_bound_that_the_whole_run_keeps(bench, system, limit):
    settings, over = bench.settings(system, "alpaca"), Overload(limit)
    stopped = bench.serve(settings, 200.0, 0, stop=over)
    whole = bench.serve(settings, 200.0, 0)
    assert limit <= over.bound <= normalized_latency_s(whole)
    assert stopped.recorder.steps.column("end_s")[-1] < whole.recorder.steps.column("end_s")[-1]


def test_a_run_below_the_limit_goes_to_its_end_and_is_the_same(bench):
    settings, over = bench.settings("vllm", "alpaca"), Overload(0.5)
    assert over.bound is None
    latency = normalized_latency_s(bench.serve(settings, 10.0, 0, stop=over))
    assert over.bound is None
    assert latency == normalized_latency_s(bench.serve(settings, 10.0, 0))


@pytest.mark.parametrize("rate", [2.0, 90.0])
def test_of_an_slo_the_bound_is_the_share_that_has_missed_it(bench, rate):
    slo, settings = Slo(ttft_s=1.0, tpot_s=0.05), bench.settings("vllm", "alpaca")
    over = Overload(0.1, misses(slo))
    stopped = bench.serve(settings, rate, 0, stop=over)
    whole = bench.serve(settings, rate, 0)
    met = slo.met_by(whole.recorder.sequences)
    share = sum(one is False for one in met) / len(met)
    if rate < 10:
        assert over.bound is None
        assert share < 0.1
    else:
        assert 0.1 <= over.bound <= share
        assert len(stopped.recorder.steps) < len(whole.recorder.steps)
