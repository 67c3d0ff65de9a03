"""What is measured of scheduling: SLOs, waits, stalls, preemptions, the service gap, worked out by hand."""

import pytest

from pagedlab.core.request import Status
from pagedlab.recorder.folder import requests_table
from pagedlab.recorder.metrics import Gaps, Slo, summarize, waits
from tests.lab import request
from tests.recorder.served import served


def two():
    """One after the other, a step a second: R(2, 3) in the seconds 0 to 2, R(200, 3) from 3 on."""
    return served([request(2, 3, id=0), request(200, 3, id=1)], 64, max_num_seqs=1)


def summary_of(recorder, slo):
    return summarize(recorder, 64, 4, "completed", slo=slo)


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (Slo(), None),
        (Slo(ttft_s=1.0), [True, False]),  # first tokens at 1 s and 4 s
        (Slo(ttft_s=4.0), [True, True]),
        (Slo(ttft_s=0.9), [False, False]),
        (Slo(tpot_s=1.0), [True, True]),
        (Slo(ttft_s=4.0, tpot_s=0.9), [False, False]),
    ],
)
def test_goodput_is_the_share_and_the_rate_of_those_that_meet_both(slo, met):
    recorder, _ = two()
    summary = summary_of(recorder, slo)
    if met is None:
        assert (summary["goodput_fraction"], summary["goodput_requests_per_s"]) == (None, None)
        assert requests_table(recorder, slo).column("met_slo").to_pylist() == [None, None]
        return
    assert summary["goodput_fraction"] == met.count(True) / 2
    assert summary["goodput_requests_per_s"] == met.count(True) / 6.0
    assert requests_table(recorder, slo).column("met_slo").to_pylist() == met


def test_who_was_refused_has_not_met_anything():
    recorder, _ = served([request(2, 3, id=0), request(400, 3, id=1)], 4, max_model_len=1000)
    assert recorder.sequences[1].status is Status.REFUSED
    assert summarize(recorder, 4, 4, "completed", slo=Slo(ttft_s=9.0))["goodput_fraction"] == 0.5


def test_a_request_of_one_token_has_no_time_per_token_to_exceed():
    recorder, _ = served([request(2, 1)], 4)
    assert summarize(recorder, 4, 4, "completed", slo=Slo(tpot_s=0.0))["goodput_fraction"] == 1.0


def test_waits_by_the_size_of_the_prompt():
    recorder, summary = two()
    assert waits(recorder) == {0: 0.0, 1: 3.0}
    assert summary["wait_s"]["mean"] == 1.5
    assert summary["longest_wait_s"] == 3.0
    of = {limit: summary[f"wait_s_prompt_to_{limit}"]["mean"] for limit in ("64", "256", "1024", "4096", "any")}
    assert of == {"64": 0.0, "256": 3.0, "1024": None, "4096": None, "any": None}


def test_e43_the_stall_of_the_victim_and_how_often_who_was_preempted():
    """The younger has tokens at the seconds 1, 2, 3, is preempted, and gets its next at 19."""
    recorder, summary = served([request(14, 18, id=0), request(14, 18, id=1)], 8)
    assert Gaps(recorder.sequences).longest().tolist() == [1.0, 16.0]
    assert (summary["max_itl_s"]["mean"], summary["max_itl_s"]["p50"]) == (8.5, 8.5)
    assert summary["preempted_requests"] == 1
    assert (summary["preemptions_per_request"]["mean"], summary["preemptions_per_request"]["max"]) == (0.5, 1)
    assert summary["preemptions_outranked"] == 0
    assert summary["recompute_tax"] == 16 / summary["computed_tokens"]


def test_the_service_gap_by_hand():
    """fcfs, one server. a waits with two, b with one, of R(4, 2): 4 for the prompt and 2 x 2 for the output each.

    The first of a is served 4 + 2, then 2, the second 4 + 2, while both wait; then a waits no more.
    """
    requests = [request(4, 2, id=i, client=c) for i, c in enumerate("aaabb")]
    recorder, summary = served(requests, 64, max_num_seqs=1)
    assert [step.served for step in recorder.service[:3]] == [{"a": (4, 1)}, {"a": (0, 1)}, {"a": (4, 1)}]
    assert [set(step.backlogged) for step in recorder.service[:6]] == [{"a", "b"}] * 4 + [{"b"}] * 2
    assert summary["service_gap_tokens"] == 6 + 2 + 6 + 2


def test_without_a_second_client_there_is_no_gap():
    assert two()[1]["service_gap_tokens"] is None


def test_the_weights_of_service_are_given():
    requests = [request(4, 2, id=i, client=c) for i, c in enumerate("aaabb")]
    recorder, _ = served(requests, 64, max_num_seqs=1)
    assert summarize(recorder, 64, 4, "completed", service_weights=(1.0, 0.0))["service_gap_tokens"] == 8


def test_what_several_outputs_are_served():
    """n = 3: three tokens at the end of the prompt, then three a step; none for the prompt that is fed again."""
    several = request(4, 3, id=0, client="a", n=3, temperature=1.0)
    recorder, _ = served([several, request(2, 2, id=1, client="b")], 64)
    assert [step.served.get("a") for step in recorder.service] == [(4, 3), (0, 3), (0, 3)]
    crowd = [request(6, 8, id=i, client="ab"[i % 2], n=2, temperature=1.0) for i in range(4)]
    recorder, summary = served(crowd, 10)
    assert summary["preemptions"] > 0
    assert sum(made for step in recorder.service for _, made in step.served.values()) == 4 * 2 * 8
    assert sum(fed for step in recorder.service for fed, _ in step.served.values()) == 4 * 6
