"""Synthetic requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.core.errors import ConfigError, WorkloadError
from pagedlab.core.request import Request
from pagedlab.settings import ArrivalSettings, LengthSettings, SamplingSettings

Build = Callable[..., list[Request]]
OBEY_EOS = SamplingSettings(temperature=0.7, top_p=0.9, top_k=40, ignore_eos=False)


def facts(request: Request) -> dict[str, Any]:
    return {**asdict(request), "prompt": request.prompt.tolist()}


@given(
    seed=st.integers(0, 2**70),
    count=st.integers(1, 12),
    prefix=st.integers(0, 5),
    groups=st.integers(1, 4),
    cap=st.none() | st.integers(1, 20),
    process=st.sampled_from([ArrivalSettings("at_once"), ArrivalSettings("gamma", rate=2, burstiness=0.5)]),
)
def test_whatever_is_asked_the_requests_are_well_formed(
    synthetic: Build, seed: int, count: int, prefix: int, groups: int, cap: int | None, process: ArrivalSettings
) -> None:
    asked: dict[str, Any] = {
        "num_requests": count,
        "prompt": LengthSettings("uniform", low=2, high=9),
        "output": LengthSettings("uniform", low=3, high=15),
        "max_tokens": cap,
        "shared_prefix_tokens": prefix,
        "shared_prefix_groups": groups,
        "arrival": process,
    }
    requests = synthetic(seed, **asked)
    assert [request.id for request in requests] == list(range(count))
    assert [r.arrival_s for r in requests] == sorted(r.arrival_s for r in requests)
    for request in requests:
        assert request.prompt.dtype == np.int32
        assert prefix + 2 <= request.prompt_tokens <= prefix + 9
        assert (request.prompt >= 0).all()
        assert (request.prompt < 260).all()
        assert request.true_output_tokens is not None
        assert 1 <= request.true_output_tokens <= request.max_tokens
        assert cap is None or request.max_tokens == cap
        # Requests of one group begin alike.
        group_first = requests[request.id % groups]
        assert request.prompt[:prefix].tolist() == group_first.prompt[:prefix].tolist()

    assert [facts(r) for r in requests] == [facts(r) for r in synthetic(seed, **asked)]


def test_each_group_has_a_prefix_of_its_own_and_each_request_a_tail(synthetic: Build) -> None:
    requests = synthetic(num_requests=6, shared_prefix_tokens=20, shared_prefix_groups=3)
    assert len({tuple(request.prompt[:20]) for request in requests}) == 3
    assert len({tuple(request.prompt[20:]) for request in requests}) == 6
    assert {request.prompt_tokens for request in requests} == {30}


def test_what_a_prefix_cache_is_told_of_each_request(synthetic: Build) -> None:
    plain = synthetic(num_requests=3, shared_prefix_tokens=20)
    assert {(r.pin_tokens, r.cache_priority, r.cache_salt) for r in plain} == {(0, 35, "")}
    asked = synthetic(
        num_requests=5, shared_prefix_tokens=20, pin_shared_prefix=True, cache_priorities=[10, 80], tenants=3
    )
    assert [r.cache_priority for r in asked] == [10, 80, 10, 80, 10]
    assert [r.cache_salt for r in asked] == ["tenant 0", "tenant 1", "tenant 2", "tenant 0", "tenant 1"]
    assert {r.pin_tokens for r in asked} == {20}
    assert [r.prompt.tolist() for r in asked[:3]] == [r.prompt.tolist() for r in plain]


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"cache_priorities": []}, "workload.cache_priorities"),
        ({"cache_priorities": [35, 101]}, "workload.cache_priorities=101: expected numbers from 0 to 100"),
        ({"cache_priorities": [-1]}, "workload.cache_priorities=-1"),
        ({"tenants": 0}, "workload.tenants=0"),
    ],
)
def test_what_a_prefix_cache_cannot_be_told_is_refused(synthetic: Build, asked: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        synthetic(**asked)


def test_without_max_tokens_the_client_declares_the_length_that_comes(synthetic: Build) -> None:
    for request in synthetic(output=LengthSettings("uniform", low=1, high=50)):
        assert request.max_tokens == request.true_output_tokens


def test_outputs_end_at_max_tokens(synthetic: Build) -> None:
    assert {(r.max_tokens, r.true_output_tokens) for r in synthetic(max_tokens=4)} == {(4, 4)}
    assert {(r.max_tokens, r.true_output_tokens) for r in synthetic(max_tokens=40)} == {(40, 10)}


def test_where_eos_is_obeyed_no_length_is_known_beforehand(synthetic: Build) -> None:
    for request in synthetic(sampling=OBEY_EOS):
        assert request.true_output_tokens is None
        assert request.max_tokens == 10
        assert not request.sampling.ignore_eos


def test_sampling_settings_reach_every_request_with_a_seed_of_its_own(synthetic: Build) -> None:
    requests = synthetic(seed=3, sampling=OBEY_EOS)
    assert {(r.sampling.temperature, r.sampling.top_p, r.sampling.top_k) for r in requests} == {(0.7, 0.9, 40)}
    assert len({request.sampling.seed for request in requests}) == 10
    assert all(0 <= request.sampling.seed < 2**63 for request in requests)


def test_sampling_seeds_are_the_same_on_every_machine_and_day(synthetic: Build) -> None:
    """They come from numpy's SeedSequence, whose output is promised never to change."""
    assert [r.sampling.seed for r in synthetic(seed=3)[:2]] == [4179074259846486160, 3865415296644351828]


def test_more_requests_or_another_arrival_leave_the_others_as_they_were(synthetic: Build) -> None:
    lengths = LengthSettings("paper_sharegpt")
    few = synthetic(num_requests=5, prompt=lengths, output=lengths)
    many = synthetic(num_requests=9, prompt=lengths, output=lengths, arrival=ArrivalSettings("poisson", rate=1))
    for a, b in zip(few, many, strict=False):
        assert facts(a) == {**facts(b), "arrival_s": 0.0}


def test_input_and_output_lengths_are_independent_and_each_from_its_own_histogram(synthetic: Build) -> None:
    paper = LengthSettings("paper_sharegpt")
    requests = synthetic(num_requests=4000, prompt=paper, output=paper)
    inputs = [request.prompt_tokens for request in requests]
    outputs = [request.max_tokens for request in requests]
    assert np.mean(inputs) == pytest.approx(161.31, rel=0.1)
    assert np.mean(outputs) == pytest.approx(337.99, rel=0.1)
    assert np.corrcoef(inputs, outputs)[0, 1] == pytest.approx(0, abs=0.05)


def test_tokens_are_uniform_over_the_whole_vocabulary(synthetic: Build) -> None:
    (request,) = synthetic(num_requests=1, prompt=LengthSettings("fixed", mean=260_000))
    counts = np.bincount(request.prompt, minlength=260)
    assert len(counts) == 260
    assert counts == pytest.approx(1000, rel=0.15)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_requests": 0}, "workload.num_requests=0: expected a whole number from 1"),
        ({"num_requests": 2**30}, f"workload.num_requests={2**30}: expected a whole number from 1"),
        ({"max_tokens": 0}, "workload.max_tokens=0: expected a whole number from 1"),
        ({"shared_prefix_tokens": -1}, "workload.shared_prefix_tokens=-1: expected a whole number from 0"),
        ({"shared_prefix_groups": 0}, "workload.shared_prefix_groups=0: expected a whole number from 1"),
        ({"prompt": LengthSettings("fixed")}, "workload.prompt.mean=null: expected a number"),
        ({"output": LengthSettings("fixed")}, "workload.output.mean=null: expected a number"),
        ({"arrival": ArrivalSettings("poisson")}, "workload.arrival.rate=null: expected a number"),
    ],
)
def test_what_cannot_work_is_refused(synthetic: Build, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        synthetic(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_more_tokens_than_memory_can_hold_are_refused_before_they_are_made(synthetic: Build) -> None:
    with pytest.raises(WorkloadError, match=r"^workload: the prompts hold 16777216000 tokens, expected at most"):
        synthetic(num_requests=1000, prompt=LengthSettings("fixed", mean=2**24))
