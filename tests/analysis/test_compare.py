"""`pagedlab compare`: who is paired with whom, what is refused, what is shown and what is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagedlab.analysis.compare import as_table, compare, compare_requests, differences, verdict
from pagedlab.analysis.metrics import METRICS
from pagedlab.analysis.pairing import digest, pair
from pagedlab.analysis.runs import find_runs
from pagedlab.core.errors import ConfigError
from tests.analysis.made import make_run

ROOT = Path(__file__).resolve().parents[2]
NOISE = (0.3, -0.2, 0.1, 0.4, -0.5, 0.05)


def side(folder, allocator, seeds=range(6), rate=100.0, noise=NOISE, **more):
    for seed in seeds:
        summary = {"output_tokens_per_s": rate + 50 * seed + noise[seed % 6]} | more
        make_run(folder / str(seed), seed=seed, settings={"allocator": allocator}, **summary)
    return find_runs(folder).runs


def by_name(found):
    return {d.metric.column: d for d in found}


def test_a_difference_far_above_its_spread_is_shown_and_its_direction_judged(tmp_path):
    """Seeds differ by 250 tokens/s, the two sides by 10: pairing takes the seeds out."""
    a = side(tmp_path / "a", "reserve_max", kv_waste_fraction=0.7)
    b = side(tmp_path / "b", "paged", rate=110.0, noise=NOISE[::-1], kv_waste_fraction=0.04)
    pairs = pair(a, b)
    assert pairs.between == {"allocator": ("reserve_max", "paged")}
    found = by_name(compare(pairs))
    rate, waste, wait = (found[m] for m in ("output_tokens_per_s", "kv_waste_fraction", "ttft_s_mean"))
    assert rate.estimate.mean == pytest.approx(10.0)
    assert rate.estimate.low < 10 < rate.estimate.high
    assert (rate.verdict, waste.verdict, wait.verdict) == ("B better", "B better", "no difference shown")
    assert "B differs from A in 2 of 6 metrics" in verdict(list(found.values()))
    assert as_table(list(found.values())).num_rows == 6


def test_noise_alone_is_no_difference(tmp_path):
    a = side(tmp_path / "a", "paged", noise=NOISE)
    b = side(tmp_path / "b", "oracle", noise=NOISE[::-1])
    found = compare(pair(a, b))
    assert {d.verdict for d in found} == {"no difference shown"}
    assert verdict(found).startswith("No difference shown in any of ")


def test_runs_of_one_seed_are_one_value_however_many_settings_they_have(tmp_path):
    """They were given the same requests: three block sizes of two seeds are no six draws."""
    for name, allocator in (("a", "paged"), ("b", "oracle")):
        for seed in (0, 1):
            for size in (8, 16, 32):
                settings = {"allocator": allocator, "block_size": size}
                make_run(tmp_path / name / f"{seed}-{size}", seed=seed, settings=settings, mean_batch_size=float(size))
    pairs = pair(find_runs(tmp_path / "a").runs, find_runs(tmp_path / "b").runs)
    assert len(pairs.pairs) == 6
    assert pairs.within == ["seed", "block_size"]
    found = compare(pairs)
    assert {d.count for d in found} == {2}
    assert {d.verdict for d in found} == {"not judged: 2 of 5 values needed"}
    assert by_name(found)["mean_batch_size"].a == pytest.approx(56 / 3)


def test_many_metrics_are_held_to_a_stricter_mark():
    clear = [(0.0, value) for value in (1.0, 1.4, 1.9, 0.6, 1.2)]
    [alone] = differences([(METRICS["mean_batch_size"], clear)])
    among = differences([(METRICS["mean_batch_size"], clear)] * 10)[0]
    assert alone.verdict == "B better"
    assert among.p == pytest.approx(min(1.0, 10 * alone.p))


def test_one_pair_of_runs_is_looked_at_request_by_request(tmp_path):
    a = find_runs(make_run(tmp_path / "a", ttft=(0.5, 1.0, 1.5))).runs
    b = find_runs(make_run(tmp_path / "b", settings={"allocator": "oracle"}, ttft=(0.6, 1.1, 1.6))).runs
    pairs = pair(a, b)
    assert compare(pairs)[0].verdict == "not judged: 1 of 5 values needed"
    found = by_name(compare_requests(*pairs.pairs[0]))
    assert found["ttft_s_mean"].estimate.mean == pytest.approx(0.1)
    assert found["tpot_s_mean"].count == 2  # the third has one token


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("b", "said"),
    [
        ({"seeds": [0, 1, 3]}, r"not paired: 1 of the 3 runs of A have no partner in B \(seed=2\)"),
        ({"requests": 99}, "different workloads: request 0 has another prompt_token_ids"),
        ({"clock": "wall"}, "not comparable: clock is virtual in .* and wall in"),
        ({"num_requests": 4}, "not comparable: num_requests is 3 in .* and 4 in"),
    ],
)
def test_what_is_not_the_same_workload_is_refused_with_the_reason(tmp_path, b, said):
    with pytest.raises(ConfigError, match=said):
        pair(side(tmp_path / "a", "paged", seeds=[0, 1, 2]), side(tmp_path / "b", "oracle", **{"seeds": [0, 1, 2]} | b))


def test_two_runs_that_could_be_one_partner_are_refused(tmp_path):
    for i in range(2):
        make_run(tmp_path / "a" / str(i), seed=0)
    make_run(tmp_path / "b", seed=0)
    with pytest.raises(ConfigError, match="two runs of A have seed=0"):
        pair(find_runs(tmp_path / "a").runs, find_runs(tmp_path / "b").runs)


def test_the_digest_is_of_the_requests_alone(tmp_path):
    one = make_run(tmp_path / "one", seed=1, ttft=(1.0, 2.0, 3.0))
    same = make_run(tmp_path / "same", seed=1, ttft=(4.0, 5.0, 6.0), settings={"allocator": "oracle"})
    other = make_run(tmp_path / "other", seed=2)
    assert digest(one) == digest(same) != digest(other)


def test_the_command_says_what_changed_and_how_surely(tmp_path):
    side(tmp_path / "a", "reserve_max", kv_waste_fraction=0.7)
    side(tmp_path / "b", "paged", kv_waste_fraction=0.04)
    words = [tmp_path / "a", tmp_path / "b", "--export", "markdown", tmp_path / "out.md"]
    command = [sys.executable, "-m", "experiments.compare", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "changed: allocator reserve_max -> paged; paired by seed and the requests" in done.stdout
    assert "B differs from A in 1 of 6 metrics, at 5 % over all of them: waste better." in done.stdout
    assert "kv\\_waste\\_fraction" in (tmp_path / "out.md").read_text()
