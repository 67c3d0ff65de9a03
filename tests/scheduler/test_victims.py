"""Whose blocks are taken: each policy by a table of running requests, ties included; E43 under each of them."""

import pytest

from pagedlab.core.errors import EngineStalled
from pagedlab.core.request import Sequence, Status
from pagedlab.preemption.base import PREEMPTIONS
from pagedlab.preemption.victim.base import VICTIMS
from tests.lab import naive_output, request, run


def running(id, prompt, generated, new=20, true=20, arrival=0.0, priority=0):
    """A request in the middle of its output."""
    seq = Sequence(request(prompt, new, id, arrival, true, priority=priority), Status.RUNNING)
    seq.output, seq.token_s = [0] * generated, [0.0] * generated
    seq.computed = prompt + generated - 1
    return seq


BUSY = [
    running(0, prompt=8, generated=9, arrival=0.0, priority=4),
    running(1, prompt=2, generated=6, arrival=1.0, priority=1),
    running(2, prompt=7, generated=2, arrival=2.0, priority=9, true=9),
    running(3, prompt=9, generated=4, arrival=3.0, priority=2),
    running(4, prompt=9, generated=7, arrival=4.0, priority=3),
]


@pytest.mark.parametrize(
    ("victim", "in_turn"),
    [
        ("last_arrived", [4, 3, 2, 1, 0]),
        ("lowest_priority", [2, 0, 4, 3, 1]),
        ("fewest_computed", [1, 2, 3, 4, 0]),  # 7, 8, 12, 15, 16
        ("shortest_output", [2, 3, 1, 4, 0]),
        ("longest_remaining", [3, 1, 4, 0, 2]),  # 16, 14, 13, 11, 7
    ],
)
def test_who_yields_one_after_the_other(victim, in_turn):
    policy, left, chosen = VICTIMS[victim](None), list(BUSY), []
    while left:
        chosen.append(policy.choose(left))
        left.remove(chosen[-1])
    assert [seq.id for seq in chosen] == in_turn


TIES = {
    "last_arrived": [running(0, 5, 5), running(1, 5, 5)],
    "lowest_priority": [running(0, 5, 5, arrival=2.0), running(1, 5, 5, arrival=1.0)],
    "fewest_computed": [running(0, 6, 4), running(1, 5, 5)],
    "shortest_output": [running(0, 5, 5), running(1, 4, 5)],  # of one output the longest prompt
    "longest_remaining": [running(0, 5, 5, arrival=2.0), running(1, 5, 5, arrival=1.0)],
}


@pytest.mark.parametrize(
    ("victim", "loses"),
    [
        ("last_arrived", 1),
        ("lowest_priority", 0),
        ("fewest_computed", 1),
        ("shortest_output", 0),
        ("longest_remaining", 0),
    ],
)
def test_ties(victim, loses):
    for order in (TIES[victim], TIES[victim][::-1]):
        assert VICTIMS[victim](None).choose(order).id == loses


@pytest.mark.parametrize("batching", ["chunked", "prefill_first", "iteration", "static"])
@pytest.mark.parametrize("victim", list(VICTIMS))
def test_e43_costs_one_preemption_whoever_chooses(victim, batching):
    """8 blocks of 4, two R(14, 18) at once: the younger yields at its 4th step, both make 18 tokens."""
    requests = [request(14, 18, id=i, true=18, priority=i) for i in range(2)]
    recorder, _ = run(requests, 8, victim=victim, batching=batching)
    assert [(number, record.victim) for _, number, record in recorder.preemptions] == [(3, 1)]
    assert [seq.output for seq in recorder.sequences] == [naive_output(r) for r in requests]
    assert [len(seq.output) for seq in recorder.sequences] == [18, 18]


@pytest.mark.parametrize("order", ["fcfs", "priority", "sjf", "srtf", "mlfq", "vtc"])
@pytest.mark.parametrize("preemptive", [False, True])
def test_e43_costs_one_preemption_in_every_order(order, preemptive):
    requests = [request(14, 18, id=i, true=18) for i in range(2)]
    recorder, _ = run(requests, 8, order=order, preemptive=preemptive and order in ("priority", "srtf", "mlfq"))
    assert [len(seq.output) for seq in recorder.sequences] == [18, 18]
    assert [record.victim for _, _, record in recorder.preemptions] == [1]


def test_what_each_preemption_says():
    requests = [request(14, 18, id=0), request(14, 18, id=1)]
    recorder, _ = run(requests, 8)
    ((time, step, record),) = recorder.preemptions
    assert (time, step) == (pytest.approx(0.03), 3)
    assert (record.victim, record.beneficiary, record.reason) == (1, 0, "pool exhausted")
    assert (record.blocks_freed, record.tokens_lost) == (4, 16)


# ---- preemption=none -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("admission", ["reserve_output", "one_at_a_time"])
def test_without_preemption_what_never_overcommits_serves_all(admission):
    requests = [request(3 + i, 12, id=i) for i in range(6)]
    recorder, _ = run(requests, 8, preemption="none", admission=admission)
    assert recorder.preemptions == []
    assert [seq.output for seq in recorder.sequences] == [naive_output(r) for r in requests]


def test_without_preemption_a_run_that_runs_out_fails_and_says_why():
    """Past the config, which refuses it: an admission that lets in more than fits."""
    with pytest.raises(EngineStalled, match=r"request 1 would have to give up its 4 blocks.*preemption=none"):
        run([request(14, 18, id=i) for i in range(2)], 8, preemption="none")


def test_only_none_never_preempts():
    assert [name for name in PREEMPTIONS if not PREEMPTIONS[name].preempts] == ["none"]
