"""Recorded workloads in the modern study: which requests, when they arrive, and that a file that is given is served."""

import numpy as np
import pytest
from hydra import initialize_config_module

from pagedlab.core.errors import WorkloadError
from pagedlab.paper.bench import Bench
from pagedlab.paper.figuremodern import WORKLOADS, FigureModern
from pagedlab.paper.traces import WINDOW, Recorded

SERVER = WORKLOADS["azure"].server


@pytest.fixture(autouse=True)
def _hydra():
    with initialize_config_module("pagedlab.conf", version_base="1.3"):
        yield


@pytest.fixture(scope="module")
def azure(tmp_path_factory):
    """3,000 requests of 10 to 509 tokens: two at once, two seconds later two more; each 100th is too long."""
    path = tmp_path_factory.mktemp("azure") / "trace.csv"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for i in range(3000):
        of = divmod(i // 2 * 2, 60)
        prompt = 9000 if i % 100 == 99 else 10 + i % 500
        rows.append(f"2023-11-16 {18 + of[0] // 60}:{of[0] % 60:02d}:{of[1]:02d}.0000000,{prompt},{1 + i % 7}")
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def test_each_seed_takes_the_requests_after_those_of_the_one_before(azure):
    trace = Recorded("azure", azure, 2, 8192, SERVER)
    first, second = trace.drafts(WINDOW, 0), trace.drafts(WINDOW, 1)
    fit = [(10 + i % 500, 1 + i % 7) for i in range(3000) if i % 100 != 99]
    assert [(len(d.prompt), d.output_tokens) for d in first] == fit[:WINDOW]
    assert [(len(d.prompt), d.output_tokens) for d in second] == fit[WINDOW : 2 * WINDOW]


def test_after_the_last_window_comes_the_first_whatever_the_count(azure):
    """2,970 requests are two windows, so seed 2 is seed 0 again, and seed 3 seed 1: at any rate the same requests."""
    trace = Recorded("azure", azure, 1, 8192, SERVER)
    for count in (50, 700, WINDOW, 5000):
        for seed in (2, 3):
            drafts, first = (trace.drafts(count, of) for of in (seed, seed - 2))
            assert [len(d.prompt) for d in drafts] == [len(d.prompt) for d in first]
            assert len(drafts) == len(trace.times(1.0, count, seed)) == min(count, WINDOW)


def test_a_trace_of_which_nothing_fits_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0000000,9000,2\n")
    with pytest.raises(WorkloadError, match="no request, expected some of at most 8192 tokens in all"):
        Recorded("azure", str(path), 1, 8192, SERVER)


def test_a_few_requests_are_the_first_of_many(azure):
    trace = Recorded("azure", azure, 1, 8192, SERVER)
    lengths = [[len(d.prompt) for d in trace.drafts(count, 0)] for count in (50, WINDOW)]
    assert lengths[0] == lengths[1][:50]


@pytest.mark.parametrize("rate", [0.5, 1.0, 40.0])
def test_gaps_are_the_recorded_ones_at_another_rate(azure, rate):
    times = Recorded("azure", azure, 1, 8192, SERVER).times(rate, 90, 0)
    assert times[0] == 0
    assert len(times) / times[-1] == pytest.approx(rate, rel=0.02)
    gaps = np.diff(times)
    assert np.allclose(gaps[::2], 0)  # two at once
    assert np.allclose(gaps[1::2], gaps[1])


def test_requests_of_one_time_arrive_at_once(tmp_path):
    path = tmp_path / "trace.csv"
    row = "2023-11-16 18:00:00.0000000,10,2"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *[row] * 5]) + "\n")
    assert Recorded("azure", str(path), 1, 8192, SERVER).times(3.0, 5, 0).tolist() == [0.0] * 5


def test_prompts_of_mooncake_begin_alike_where_their_ids_are(tmp_path):
    path = tmp_path / "trace.jsonl"
    line = '{{"timestamp": {}, "input_length": 1000, "output_length": 3, "hash_ids": [7, {}]}}\n'
    path.write_text("".join(line.format(1000 * i, i + 10) for i in range(40)))
    workload = WORKLOADS["mooncake"]
    drafts = Recorded("mooncake", str(path), 1, workload.positions, workload.server).drafts(40, 0)
    assert np.array_equal(drafts[0].prompt[:512], drafts[1].prompt[:512])
    assert not np.array_equal(drafts[0].prompt[512:], drafts[1].prompt[512:])


def test_a_trace_that_is_given_has_points_and_one_that_is_not_has_none(azure):
    part = FigureModern().parts()["azure whole vllm"]
    assert part(Bench(120, (0,))) == []
    points = {p.metric: p.value for p in part(Bench(120, (0,), traces={"azure": azure}))}
    assert points["hit_rate_pct"] == 0  # no text, no two prompts alike
    assert points["mean_batch"] > 0
    assert points["capacity_req_s"] > 12
