"""Who is let in, by hand-worked pools; and what each admission promises of those that run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.core.request import Sequence
from pagedlab.scheduler.admission.base import ADMISSIONS
from tests.engine.test_sharing import blocks_needed, workloads
from tests.lab import make_executor, make_scheduler, request, run
from tests.recorder.served import served

GUESS = {"initial": 0.7, "minimum": 0.1, "decay_steps": 6, "retract_steps": 2}


def admitted_at_once(scheduler, requests):
    executor = make_executor(scheduler)
    for r in requests:
        scheduler.submit(r)
    plan = scheduler.schedule()
    scheduler.commit(plan, executor.execute(plan), 1.0)
    return [new.request.id for new in plan.admitted]


@pytest.mark.parametrize(("num_blocks", "enter"), [(3, 1), (5, 1), (6, 2), (8, 2), (9, 3)])
def test_reserve_output_counts_prompt_and_max_tokens(num_blocks, enter):
    """R(6, 7): 6 + 7 - 1 slots at its end, 3 blocks of 4, of which it begins with 2."""
    scheduler = make_scheduler(num_blocks, admission="reserve_output")
    assert len(admitted_at_once(scheduler, [request(6, 7, id=i) for i in range(4)])) == enter


def test_on_demand_lets_in_more_of_the_same():
    scheduler = make_scheduler(8, admission="on_demand")
    assert len(admitted_at_once(scheduler, [request(6, 7, id=i) for i in range(4)])) == 4


@settings(max_examples=60, deadline=None, derandomize=True)
@given(workloads(), st.sampled_from([1, 3, 4]), st.integers(0, 6), st.sampled_from(["chunked", "iteration", "static"]))
def test_reserve_output_never_preempts_whatever_shares(requests, block_size, spare, batching):
    blocks = max(blocks_needed(r, block_size, "paged") for r in requests) + spare
    choices = {"admission": "reserve_output", "preemption": "none", "batching": batching}
    for prefixes in (None, "hash_chain", "radix"):
        recorder, _ = run(requests, blocks, block_size, prefix_cache=prefixes, **choices)
        assert recorder.preemptions == []


# ---- estimated peak ------------------------------------------------------------------------------------------------


def waiting(prompt, new, id=0):
    return Sequence(request(prompt, new, id=id))


@pytest.mark.parametrize(
    ("initial", "seqs", "peak"),
    [
        (0.5, [(4, 8)], 8),  # 4 + 8 / 2
        (0.5, [(4, 8), (2, 4)], 10),  # when the second ends: 4 + 2 held, 2 each
        (0.5, [(4, 20), (2, 4)], 14),  # when the first ends, alone: 4 + 10
        (1.0, [(1, 5), (1, 5), (1, 5)], 18),
        (0.0, [(4, 8), (2, 4)], 6),
    ],
)
def test_the_peak_is_when_one_of_them_ends(initial, seqs, peak):
    """Blocks of one slot, so that no tail counts."""
    scheduler = make_scheduler(64, 1, admission="estimated_peak", estimated_peak=GUESS | {"initial": initial})
    assert scheduler.admission.peak([waiting(p, g, i) for i, (p, g) in enumerate(seqs)]) == peak


@pytest.mark.parametrize(("num_blocks", "enter"), [(9, 1), (10, 2)])
def test_who_would_exceed_the_pool_at_its_peak_waits(num_blocks, enter):
    scheduler = make_scheduler(num_blocks, 1, admission="estimated_peak", estimated_peak=GUESS | {"initial": 0.5})
    assert len(admitted_at_once(scheduler, [request(4, 6), request(2, 4, id=1)])) == enter


def test_the_estimate_falls_step_by_step_and_rises_when_blocks_run_out():
    scheduler = make_scheduler(8, admission="estimated_peak", estimated_peak=GUESS)
    admission, seq = scheduler.admission, waiting(4, 10)
    seq.token_s = [0.0] * 3
    seen = []
    for ran_out in (False, False, True, False, False):
        seen.append(round(admission.estimate, 9))
        admission.planned([seq], ran_out)
    assert seen == [0.7, 0.6, 0.5, 0.5, 0.4]  # (3 + 2) / 10 = 0.5, no less than it was
    for _ in range(9):
        admission.planned([seq], False)
    assert admission.estimate == pytest.approx(0.1)
    admission.planned([seq], True)
    assert admission.estimate == 0.5
    seq.token_s = [0.0] * 9
    admission.planned([seq], True)
    assert admission.estimate == 1.0  # at most all of it


def test_the_estimate_is_a_column_of_the_timeline():
    requests = [request(6, 30, id=i, true=30) for i in range(8)]
    guess = {"estimated_peak": GUESS | {"initial": 0.3, "minimum": 0.0, "decay_steps": 3}}
    recorder, summary = served(requests, 24, admission="estimated_peak", **guess)
    estimates = [step.admission_estimate for step in recorder.steps]
    assert estimates[:4] == pytest.approx([0.3, 0.2, 0.1, 0.0])
    assert summary["preemptions"] > 0
    first = recorder.preemptions[0][1]
    assert estimates[first + 1] > estimates[first]


def test_a_lower_guess_lets_more_in_and_preempts_more():
    requests = [request(6, 40, id=i, true=40) for i in range(12)]
    preempted = {}
    for initial in (1.0, 0.1):
        guess = {"initial": initial, "minimum": initial, "decay_steps": 1, "retract_steps": 0}
        _, summary = served(requests, 40, admission="estimated_peak", estimated_peak=guess)
        preempted[initial] = (summary["peak_batch_size"], summary["preemptions"])
    assert preempted[1.0][0] < preempted[0.1][0]
    assert preempted[1.0][1] == 0 < preempted[0.1][1]


def test_what_each_admission_says_of_itself():
    assert {name for name in ADMISSIONS if not ADMISSIONS[name].overcommits} == {"one_at_a_time", "reserve_output"}
    assert {name for name in ADMISSIONS if ADMISSIONS[name].needs_paging} == {"reserve_output", "estimated_peak"}
