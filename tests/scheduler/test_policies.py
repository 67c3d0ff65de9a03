"""Each seam by hand-worked queues: who is next, who is admitted, what runs in which step, whose blocks are taken."""

import pytest

from pagedlab.core.request import Status
from pagedlab.scheduler.order.base import ORDERS
from tests.lab import make_executor, make_scheduler, request, run, scheduler_settings


def run_steps(scheduler, count):
    """The first `count` steps as lists of (request id, tokens fed)."""
    executor, steps = make_executor(scheduler), []
    for now in range(count):
        plan = scheduler.schedule()
        steps.append([(seq.id, fed) for seq, fed in zip(plan.batch, plan.num_tokens, strict=True)])
        scheduler.commit(plan, executor.execute(plan), float(now))
        scheduler.audit()
    return steps


def submitted(scheduler, *requests):
    return [scheduler.submit(r) for r in requests]


# ---- batching ----------------------------------------------------------------------------------------------------


def test_chunked_feeds_decodes_first_and_fills_the_budget_with_prompts():
    scheduler = make_scheduler(64, batching="chunked", tokens=8)
    submitted(scheduler, request(5, 9, id=0), request(9, 9, id=1), request(2, 9, id=2))
    assert run_steps(scheduler, 4) == [
        [(0, 5), (1, 3)],  # the second prompt gets what the budget leaves
        [(0, 1), (1, 6), (2, 1)],  # a begun prompt goes before a new one
        [(0, 1), (1, 1), (2, 1)],  # the last token of a prompt is fed like a decode
        [(0, 1), (1, 1), (2, 1)],
    ]


def test_prefill_first_runs_whole_prompts_in_steps_of_their_own():
    scheduler = make_scheduler(64, batching="prefill_first", tokens=8)
    submitted(scheduler, request(5, 9, id=0), request(3, 9, id=1), request(6, 9, id=2))
    assert run_steps(scheduler, 3) == [
        [(0, 5), (1, 3)],
        [(2, 6)],  # would not have fitted whole
        [(0, 1), (1, 1), (2, 1)],
    ]


def test_prefill_first_splits_a_prompt_longer_than_the_limit_over_steps():
    scheduler = make_scheduler(64, batching="prefill_first", tokens=8)
    submitted(scheduler, request(19, 9, id=0), request(4, 9, id=1))
    assert run_steps(scheduler, 4) == [[(0, 8)], [(0, 8)], [(0, 3), (1, 4)], [(0, 1), (1, 1)]]


@pytest.mark.parametrize("batching", ["chunked", "prefill_first"])
def test_more_decodes_than_budget_leave_the_latest_admitted_for_later(batching):
    scheduler = make_scheduler(64, batching=batching, tokens=3)
    submitted(scheduler, *(request(1, 9, id=i) for i in range(4)))
    steps = run_steps(scheduler, 4)
    assert steps[0] == [(0, 1), (1, 1), (2, 1)]
    assert steps[-1] == [(0, 1), (1, 1), (2, 1)]


def test_the_number_of_running_sequences_is_limited():
    scheduler = make_scheduler(64, max_num_seqs=2)
    submitted(scheduler, *(request(2, 2, id=i) for i in range(3)))
    assert run_steps(scheduler, 3) == [[(0, 2), (1, 2)], [(0, 1), (1, 1)], [(2, 2)]]


# ---- order -------------------------------------------------------------------------------------------------------


def test_fcfs_admits_by_arrival_and_by_id_among_equals():
    scheduler = make_scheduler(64, max_num_seqs=1)
    submitted(scheduler, request(2, 1, id=0, arrival=2), request(2, 1, id=2, arrival=1), request(2, 1, id=1, arrival=1))
    assert [step[0][0] for step in run_steps(scheduler, 3)] == [1, 2, 0]


def test_a_preempted_sequence_comes_back_before_all_that_arrived_later():
    """The younger loses its blocks at its 4th step; the later one would fit at once, and must wait for it."""
    requests = [request(14, 18, id=0), request(14, 18, id=1), request(2, 2, id=2, arrival=0.001)]
    recorder, _ = run(requests, 8)
    elder, younger, later = recorder.sequences
    assert younger.preemptions == 1
    assert elder.finish_s < younger.token_s[3] <= later.token_s[0]


def test_random_order_is_another_for_another_seed_and_the_same_for_the_same():
    def drawn(seed):
        order = ORDERS["random"](scheduler_settings(), None, seed)
        for i in range(20):
            order.push(make_scheduler(4).submit(request(2, 1, id=i)))
        return [order.pop().id for _ in range(20)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert sorted(drawn(1)) == list(range(20)) != drawn(1)


# ---- admission ---------------------------------------------------------------------------------------------------


def test_one_at_a_time_never_batches():
    scheduler = make_scheduler(64, admission="one_at_a_time")
    submitted(scheduler, request(2, 2, id=0), request(2, 2, id=1))
    assert run_steps(scheduler, 4) == [[(0, 2)], [(0, 1)], [(1, 2)], [(1, 1)]]


def test_the_head_of_the_queue_is_not_overtaken_by_one_that_would_fit():
    scheduler = make_scheduler(6)
    submitted(scheduler, request(12, 4, id=0), request(16, 4, id=1), request(2, 1, id=2))
    assert run_steps(scheduler, 2) == [[(0, 12)], [(0, 1)]]


# ---- victim ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("victim", "loses"), [("last_arrived", 2), ("most_blocks", 1)])
def test_whose_blocks_are_taken(victim, loses):
    """Blocks of 4: request 0 holds 2, 1 holds 4, 2 holds 2, all 8; the first that outgrows its last block asks."""
    scheduler = make_scheduler(8, victim=victim)
    seqs = submitted(scheduler, request(8, 9, id=0), request(14, 9, id=1), request(6, 9, id=2))
    run_steps(scheduler, 2)
    assert [seq.id for seq in seqs if seq.status is Status.PREEMPTED] == [loses]
    assert seqs[loses].preemptions == 1


def test_a_victim_that_had_its_place_in_the_step_gives_it_back():
    """most_blocks takes request 0, scheduled just before: it must not be fed without its blocks."""
    scheduler = make_scheduler(7, victim="most_blocks")
    first, second = submitted(scheduler, request(15, 9, id=0), request(12, 9, id=1))
    steps = run_steps(scheduler, 2)
    assert steps[1] == [(1, 1)]
    assert first.status is Status.PREEMPTED
    assert second.status is Status.RUNNING


# ---- static and iteration ------------------------------------------------------------------------------------------


def test_static_lets_nobody_in_before_the_whole_batch_has_ended():
    scheduler = make_scheduler(64, batching="static", tokens=8, max_num_seqs=2)
    submitted(scheduler, request(3, 2, id=0), request(4, 4, id=1), request(2, 2, id=2))
    assert run_steps(scheduler, 6) == [
        [(0, 3), (1, 4)],
        [(0, 1), (1, 1)],
        [(1, 1)],  # there is a row for the third now
        [(1, 1)],
        [(2, 2)],
        [(2, 1)],
    ]


def test_static_fills_its_batch_over_several_steps_of_prompts():
    scheduler = make_scheduler(64, batching="static", tokens=8)
    submitted(scheduler, *(request(5, 2, id=i) for i in range(3)))
    steps = run_steps(scheduler, 4)
    assert steps == [[(0, 5)], [(1, 5)], [(2, 5)], [(0, 1), (1, 1), (2, 1)]]


def test_iteration_runs_whole_prompts_beside_decodes():
    scheduler = make_scheduler(64, batching="iteration", tokens=8)
    submitted(scheduler, request(5, 9, id=0), request(3, 9, id=1), request(7, 3, id=2), request(1, 9, id=3))
    assert run_steps(scheduler, 3) == [
        [(0, 5), (1, 3)],
        [(0, 1), (1, 1)],  # 6 are left, too few for a whole prompt of 7, and nobody overtakes it
        [(0, 1), (1, 1)],
    ]


def test_iteration_feeds_a_prompt_longer_than_any_step_beside_the_decodes():
    scheduler = make_scheduler(64, batching="iteration", tokens=8)
    submitted(scheduler, request(2, 9, id=0), request(13, 9, id=1), request(2, 9, id=2))
    assert run_steps(scheduler, 4) == [
        [(0, 2), (1, 6)],
        [(0, 1), (1, 7)],
        [(0, 1), (1, 1), (2, 2)],
        [(0, 1), (1, 1), (2, 1)],
    ]
