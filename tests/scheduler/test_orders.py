"""Each order by a hand-worked queue, and what each promises: who is next, who yields, who is never overtaken."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.core.request import Status
from pagedlab.scheduler.order.base import ORDERS
from pagedlab.scheduler.predictor.base import PREDICTORS
from tests import lab
from tests.lab import make_executor, make_scheduler, naive_output
from tests.recorder.served import served

MLFQ = {"levels": 3, "quantum": 4, "ageing_s": 1000.0}


def request(prompt, new, id=0, **given):
    """One whose length an oracle knows."""
    return lab.request(prompt, new, id, **{"true": new} | given)


def one_server(requests, order, **choices):
    """Serve one request at a time, a step a second: the recorder."""
    given = {"max_num_seqs": 1, "order": order} | choices
    recorder, _ = served(requests, 64, **given)
    for seq in recorder.sequences:
        assert seq.output == naive_output(seq.request)
    return recorder


def admitted(recorder):
    """Ids in the order of first admission."""
    return list(recorder.admitted_s)


def steps_of(requests, order, count, **choices):
    """Whose request runs in each step of one server."""
    scheduler = make_scheduler(64, max_num_seqs=1, order=order, **choices)
    executor, ran = make_executor(scheduler, step_s=1.0), []
    for r in requests:
        scheduler.submit(r)
    for now in range(count):
        plan = scheduler.schedule(float(now))
        ran += [seq.id for seq in plan.batch]
        scheduler.commit(plan, executor.execute(plan), now + 1.0)
        scheduler.audit()
    assert not scheduler.has_work
    return ran


# ---- hand-worked queues --------------------------------------------------------------------------------------------

QUEUE = [
    # id, prompt, new, arrival, priority
    (0, 3, 4, 0.0, 2),
    (1, 9, 2, 0.0, 1),
    (2, 3, 6, 0.0, 1),
    (3, 2, 2, 0.0, 5),
    (4, 2, 4, 0.5, 0),
]


def queue():
    return [request(p, g, id=i, arrival=at, priority=urgency) for i, p, g, at, urgency in QUEUE]


@pytest.mark.parametrize(
    ("order", "sequence"),
    [
        ("fcfs", [0, 1, 2, 3, 4]),
        ("priority", [1, 4, 2, 0, 3]),  # 4 has not arrived when the first is admitted
        ("sjf", [1, 3, 0, 4, 2]),
        ("srtf", [1, 3, 0, 4, 2]),  # nobody yields here: 4 is never before the one that runs
    ],
)
def test_who_is_admitted_when(order, sequence):
    assert admitted(one_server(queue(), order)) == sequence


def test_srtf_lets_the_longer_one_yield_and_come_back():
    """A runs alone in the seconds 0 to 2 and has 7 tokens left; B, of 3, comes: seconds 3 to 5. A ends in second 12."""
    long, short = request(2, 10, id=0), request(2, 3, id=1, arrival=2.5)
    recorder = one_server([long, short], "srtf", preemptive=True)
    assert [seq.finish_s for seq in recorder.sequences] == [13.0, 6.0]
    ((time, step, record),) = recorder.preemptions
    assert (time, step, record.victim, record.beneficiary, record.reason) == (3.0, 3, 0, 1, "outranked")
    assert (record.blocks_freed, record.tokens_lost) == (2, 4)  # it had just got a block for its next token


def test_srtf_without_preemption_lets_the_running_one_end():
    recorder = one_server([request(2, 10, id=0), request(2, 3, id=1, arrival=2.5)], "srtf")
    assert [seq.finish_s for seq in recorder.sequences] == [10.0, 13.0]


def test_srtf_goes_by_what_remains_not_by_the_whole():
    """At 6 s A has 4 of 10 left: B, of 5, does not go before it."""
    recorder = one_server([request(2, 10, id=0), request(2, 5, id=1, arrival=5.5)], "srtf", preemptive=True)
    assert recorder.preemptions == []
    assert [seq.finish_s for seq in recorder.sequences] == [10.0, 15.0]


def test_a_rank_cannot_be_subtracted_from():
    """The same queue: a rank says that B is shorter than A, and not that A is nearly done."""
    recorder = one_server(
        [request(2, 10, id=0), request(2, 5, id=1, arrival=5.5)], "srtf", preemptive=True, predictor="rank"
    )
    assert [record.victim for _, _, record in recorder.preemptions] == [0]


def test_priority_takes_the_memory_of_the_least_urgent():
    """Case E52: 4 blocks of 4, all taken; the urgent one needs 2 of them: the least urgent, latest one yields."""
    running = [request(4, 4, id=i, priority=p) for i, p in enumerate([3, 7, 7])]
    scheduler = make_scheduler(6, order="priority", preemptive=True)
    executor = make_executor(scheduler, step_s=1.0)
    seqs = [scheduler.submit(r) for r in running]
    for now in range(2):
        plan = scheduler.schedule(float(now))
        scheduler.commit(plan, executor.execute(plan), now + 1.0)
    urgent = scheduler.submit(request(5, 2, id=9, arrival=1.5, priority=0))
    plan = scheduler.schedule(2.0)
    assert [(r.victim, r.beneficiary, r.reason) for r in plan.preempted] == [(2, 9, "outranked")]
    assert (urgent.status, seqs[2].status) == (Status.RUNNING, Status.PREEMPTED)
    assert sorted(seq.id for seq in plan.batch) == [0, 1, 9]  # the victim's place in the step is given back
    scheduler.commit(plan, executor.execute(plan), 3.0)
    scheduler.audit()


def test_nobody_yields_where_it_would_not_be_enough():
    """The urgent one needs 5 of 6 blocks, those behind it hold 2: they are left alone."""
    scheduler = make_scheduler(6, order="priority", preemptive=True)
    executor = make_executor(scheduler)
    for i, urgency in enumerate([0, 9]):
        scheduler.submit(request(5, 3, id=i, priority=urgency))
    plan = scheduler.schedule()
    scheduler.commit(plan, executor.execute(plan), 1.0)
    scheduler.submit(request(18, 2, id=7, priority=1, arrival=0.5))
    plan = scheduler.schedule(1.0)
    assert plan.preempted == []
    assert plan.memory_blocked


def test_mlfq_by_quanta_of_4_and_8():
    """A and B (3 prompt tokens) begin on level 0, C (7) skips to level 1. Fed and generated tokens use a quantum up.

    A: 3 + 1 = 4, down; B the same; C, before them on level 1: 7 + 1 = 8, down; A: 2 tokens a step of 8, down; B ends;
    C, before A on level 2, ends; A ends.
    """
    a, b, c = request(3, 6, id=0), request(3, 2, id=1), request(7, 2, id=2)
    ran = steps_of([a, b, c], "mlfq", 10, preemptive=True, mlfq=MLFQ)
    assert ran == [0, 1, 2, 0, 0, 0, 0, 1, 2, 0]


def test_mlfq_ages_what_waits_back_to_the_first_level():
    """C (level 1) would wait behind all that come to level 0; after 5 s it is one of them, behind those of then."""
    crowd = [request(2, 1, id=i, arrival=float(i)) for i in range(20)]
    late = request(7, 1, id=99, arrival=0.0)
    queued = sorted([*crowd, late], key=lambda r: r.arrival_s)
    never = one_server(queued, "mlfq", mlfq=MLFQ)
    aged = one_server(queued, "mlfq", mlfq=MLFQ | {"ageing_s": 5.0})
    assert admitted(never)[-1] == 99
    assert aged.admitted_s[99] == 6.0


def test_vtc_serves_clients_in_turn_whatever_they_send():
    greedy = [request(4, 2, id=i, client="a") for i in range(3)]
    modest = [request(4, 2, id=i, client="b") for i in (3, 4)]
    assert admitted(one_server(greedy + modest, "vtc")) == [0, 3, 1, 4, 2]


def test_vtc_counts_tokens_not_requests():
    """A request of a costs 4 + 2 x 2 = 8, one of b 4 + 2 x 6 = 16: a gets two for each of b."""
    cheap = [request(4, 2, id=i, client="a") for i in range(5)]
    dear = [request(4, 6, id=i, client="b") for i in (5, 6, 7)]
    assert admitted(one_server(cheap + dear, "vtc")) == [0, 5, 1, 2, 6, 3, 4, 7]


def test_vtc_lifts_a_client_that_was_idle():
    """b comes when a has been served three times. It is not owed three: they take turns from there."""
    first = [request(4, 2, id=i, client="a") for i in range(6)]
    second = [request(4, 2, id=i, client="b", arrival=5.5) for i in (6, 7, 8)]
    assert admitted(one_server(first + second, "vtc")) == [0, 1, 2, 3, 6, 4, 7, 5, 8]


def test_vtc_charges_a_prompt_once_however_often_it_is_preempted():
    requests = [request(6, 8, id=i, client="a") for i in range(6)]
    recorder, scheduler = lab.run(requests, 8, order="vtc")
    assert recorder.preemptions
    assert scheduler.order.counters == {"a": 6 * (6 + 2 * 8)}


def test_lpm_serves_the_longest_cached_prefix_first():
    shared = list(range(8))
    first, other = request([*shared, 40], 2, id=0), request([30] * 9, 2, id=1)
    longer, shorter = request([*shared, 41], 2, id=2), request([*shared[:4], 42], 2, id=3)
    recorder = one_server([first, other, shorter, longer], "lpm", prefix_cache="hash_chain")
    assert admitted(recorder) == [0, 2, 3, 1]
    assert [seq.cached_tokens for seq in recorder.sequences] == [0, 0, 4, 8]


def test_lpm_goes_by_arrival_while_many_wait():
    shared = list(range(8))
    queued = [request([*shared, 40], 2, id=0), request([30] * 9, 2, id=1), request([*shared, 41], 2, id=2)]
    assert admitted(one_server(queued, "lpm", prefix_cache="radix", lpm_max_waiting=2)) == [0, 2, 1]
    assert admitted(one_server(queued, "lpm", prefix_cache="radix", lpm_max_waiting=1)) == [0, 1, 2]


# ---- predictors ----------------------------------------------------------------------------------------------------


def test_the_noisy_predictor_has_the_error_it_states():
    noisy = PREDICTORS["noisy"](0.5, 7)
    logs = np.log([noisy.length(request(2, 100, id=i, true=100)) / 100 for i in range(4000)])
    assert abs(np.median(logs)) < 0.03
    assert abs(logs.std() - 0.5) < 0.02
    assert noisy.length(request(2, 100, id=3)) == noisy.length(request(5, 100, id=3))
    assert PREDICTORS["noisy"](0.0, 7).length(request(2, 9, true=5)) == PREDICTORS["oracle"](0.0, 7).length(
        request(2, 9, true=5)
    )


@pytest.mark.parametrize("order", ["sjf", "srtf"])
def test_a_noisy_predictor_makes_another_order_than_the_oracle(order):
    queued = [request(2, 4 + i % 5, id=i) for i in range(12)]
    told = admitted(one_server(queued, order, predictor="noisy", predictor_sigma=2.0))
    assert told != admitted(one_server(queued, order))
    assert sorted(told) == list(range(12))


# ---- what is promised ----------------------------------------------------------------------------------------------


@st.composite
def jobs(draw):
    """Jobs of one server; a prompt takes one step, whatever was generated before a preemption included."""
    arrivals = sorted(draw(st.lists(st.integers(0, 12), min_size=2, max_size=7)))
    return [
        request(
            2,
            draw(st.integers(1, 9)),
            id=i,
            arrival=float(at),
            priority=draw(st.integers(0, 2)),
            client=draw(st.sampled_from("ab")),
        )
        for i, at in enumerate(arrivals)
    ]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(jobs())
def test_srtf_has_the_least_mean_completion_time_of_one_server(jobs):
    def total(order, **choices):
        return sum(seq.finish_s for seq in one_server(jobs, order, **choices).sequences)

    best = total("srtf", preemptive=True)
    for order in ("fcfs", "priority", "sjf", "srtf", "mlfq", "vtc", "random"):
        assert best <= total(order, mlfq=MLFQ) + 1e-9, order
    for order in ("priority", "mlfq"):
        assert best <= total(order, preemptive=True, mlfq=MLFQ) + 1e-9, order
    for predictor in ("rank", "noisy"):
        assert best <= total("srtf", preemptive=True, predictor=predictor) + 1e-9, predictor


@settings(max_examples=40, deadline=None, derandomize=True)
@given(jobs(), st.integers(3, 12), st.sampled_from(["chunked", "prefill_first", "iteration", "static"]))
def test_fcfs_never_overtakes(jobs, num_blocks, batching):
    recorder, _ = served(jobs, num_blocks, batching=batching, max_num_seqs=3)
    first = [recorder.admitted_s[seq.id] for seq in recorder.sequences]
    assert first == sorted(first)


CLIENT_WEIGHTS = (1.0, 2.0)


def gap_of_backlogged(requests, order, num_blocks):
    """The most by which the service of two clients differs over any span in which both wait, from the plans alone."""
    # Nobody is preempted, as in the theorem.
    scheduler = make_scheduler(num_blocks, order=order, admission="reserve_output", tokens=64)
    executor, served_of, history = make_executor(scheduler), {"a": 0.0, "b": 0.0}, []
    for r in requests:
        scheduler.submit(r)
    gap = 0.0
    while scheduler.has_work:
        plan = scheduler.schedule()
        outcome = executor.execute(plan)
        waiting = {seq.request.client for seq in scheduler.order.sequences()}
        scheduler.commit(plan, outcome, 0.0)
        if waiting != {"a", "b"}:
            break
        history = history or [0.0]
        for new in plan.admitted:
            served_of[new.request.client] += CLIENT_WEIGHTS[0] * new.request.prompt_tokens
        for seq, token in zip(plan.batch, outcome.tokens, strict=True):
            served_of[seq.request.client] += CLIENT_WEIGHTS[1] * (token >= 0)
        history.append(served_of["a"] - served_of["b"])
        gap = max(gap, max(history) - min(history))
    return gap


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from("aaab"), st.integers(1, 14), st.integers(1, 10)), min_size=20, max_size=40))
def test_vtc_keeps_the_service_gap_within_its_published_bound(shapes):
    num_blocks = 12
    requests = [request(p, g, id=i, client=client) for i, (client, p, g) in enumerate(shapes)]
    bound = 2 * max(CLIENT_WEIGHTS[0] * max(p for _, p, _ in shapes), CLIENT_WEIGHTS[1] * num_blocks * 4)
    assert gap_of_backlogged(requests, "vtc", num_blocks) <= bound


def test_fcfs_does_not_keep_that_bound_and_the_recorder_sees_it():
    """a sends 40 requests before b sends 20: under fcfs b gets nothing as long as a waits."""
    requests = [request(4, 4, id=i, client="a" if i < 40 else "b") for i in range(60)]
    assert gap_of_backlogged(requests, "fcfs", 6) > 2 * 2 * 6 * 4 > gap_of_backlogged(requests, "vtc", 6)
    gaps = {}
    for order in ("fcfs", "vtc"):
        _, summary = served(requests, 6, order=order, admission="reserve_output", tokens=64)
        gaps[order] = summary["service_gap_tokens"]
        assert gaps[order] == gap_of_backlogged(requests, order, 6)
    assert gaps["vtc"] < gaps["fcfs"]


# ---- starvation ----------------------------------------------------------------------------------------------------

FAIR = [name for name in ORDERS if not ORDERS[name].starves]


def crowded(order, count, gap_s, new, prompt=5, its_id=1000, **choices):
    """A request that no order likes, and a stream of those that every order likes better, more than can be served.

    Returns how many of the stream had ended when it did.
    """
    unloved = request([30 + i for i in range(9)], 8, id=its_id, arrival=1.5, priority=5, client="a")
    shape = [1, 2, 3, 4, *([5] * (prompt - 4))]
    ids = [i for i in range(count + 1) if i != its_id][:count]
    stream = [request(shape, new, id=i, arrival=n * gap_s, client="b") for n, i in enumerate(ids)]
    prefixes = {"prefix_cache": "hash_chain"} if order == "lpm" else {}
    queued = sorted([unloved, *stream], key=lambda r: r.arrival_s)
    choices = {"lpm_max_waiting": 10**6, "mlfq": MLFQ | {"ageing_s": 5.0}} | choices
    recorder = one_server(queued, order, **prefixes, **choices)
    (it,) = (seq for seq in recorder.sequences if seq.id == its_id)
    return sum(seq.finish_s < it.finish_s for seq in recorder.sequences)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.sampled_from(FAIR), st.sampled_from([0.3, 1.0]), st.integers(2, 3), st.integers(5, 8))
def test_an_order_that_says_so_starves_nobody(order, gap_s, new, prompt):
    """Far more comes than can be served."""
    assert crowded(order, 70, gap_s, new, prompt) < 25


@pytest.mark.parametrize("new", [2, 3])
@pytest.mark.parametrize("prompt", [5, 8])
def test_mlfq_that_preempts_starves_nobody_either(new, prompt):
    """Just as much comes as can be served: a token or more each time it has aged, until it ends."""
    assert crowded("mlfq", 100, float(new), new, prompt, preemptive=True) < 60


@pytest.mark.parametrize("order", [name for name in ORDERS if ORDERS[name].starves])
def test_an_order_that_may_starve_does_and_says_why(order):
    its_id = 1000
    if order == "random":
        its_id = max(range(100), key=lambda i: np.random.default_rng((0, i)).random())
    assert crowded(order, 100, 1.0, 2, its_id=its_id) == 100
    assert "wait" in ORDERS[order].__doc__


def test_those_who_are_fair_are_fcfs_mlfq_and_vtc():
    assert FAIR == ["fcfs", "mlfq", "vtc"]
