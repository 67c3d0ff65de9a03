"""Several outputs of one request: what they are does not depend on what they share (cases E8, E11, E13, E14, E45)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.core.request import Request, SamplingParams, Status
from tests.lab import VOCAB, make_executor, make_scheduler, naive_answer, naive_output, request, run

ALLOCATORS = ("paged", "paged", "paged", "reserve_max", "power_of_two", "oracle", "reserve_output")


def blocks_needed(r: Request, block_size: int, allocator: str) -> int:
    """Enough for the request alone, in whatever way its outputs share."""
    each = -(-r.max_slots // block_size)
    return each * r.width if allocator == "paged" else 2 * each * r.width


@st.composite
def samplings(draw, obey_eos=False):
    kind = draw(st.sampled_from(["one", "n", "n", "best_of", "beam", "beam", "beam"]))
    seed = draw(st.integers(0, 3))
    given = {"seed": seed, "ignore_eos": not obey_eos or draw(st.booleans())}
    if kind == "beam":
        given |= {"beam_width": draw(st.integers(2, 4)), "length_penalty": draw(st.sampled_from([0.0, 1.0, 2.0, -1.0]))}
        return given | {"early_stopping": draw(st.sampled_from(["false", "true", "never"]))}
    given["temperature"] = 1.0
    if kind == "n":
        given["n"] = draw(st.integers(2, 4))
    if kind == "best_of":
        given |= {"n": draw(st.integers(1, 2)), "best_of": draw(st.integers(2, 4))}
    return given


@st.composite
def workloads(draw, obey_eos=False):
    requests = []
    for i in range(draw(st.integers(1, 5))):
        new = draw(st.integers(1, 12))
        requests.append(
            request(
                draw(st.lists(st.integers(0, 3), min_size=1, max_size=11)),
                new,
                id=i,
                arrival=draw(st.sampled_from([0.0, 0.0, 0.015, 0.1])),
                true=None if obey_eos else draw(st.integers(1, new)),
                **draw(samplings(obey_eos)),
            )
        )
    return sorted(requests, key=lambda r: r.arrival_s)


def check(recorder, eos=None):
    for seq in recorder.sequences:
        assert seq.status is Status.FINISHED, seq.refusal
        want = naive_answer(seq.request, eos)
        assert [done.token_ids for done in seq.outputs()] == [done.token_ids for done in want]
        assert [done.finish_reason for done in seq.outputs()] == [done.finish_reason for done in want]
        if seq.branches:
            for done, naive in zip(seq.outputs(), want, strict=True):
                assert done.score == (None if naive.score is None else pytest.approx(naive.score))
        assert seq.output == want[0].token_ids
        assert seq.finish_reason == want[0].finish_reason


in_its_time = settings(deadline=None, max_examples=80)


@in_its_time
@given(
    workloads(),
    st.sampled_from(ALLOCATORS),
    st.sampled_from(["chunked", "prefill_first"]),
    st.sampled_from([1, 2, 3, 4, 16]),
    st.integers(0, 12),
    st.sampled_from([4, 5, 8, 64]),
    st.sampled_from(["on_demand", "one_at_a_time"]),
    st.sampled_from(["last_arrived", "most_blocks"]),
    st.sampled_from([4, 6, 8]),
)
def test_outputs_do_not_depend_on_memory_or_scheduling(
    requests, allocator, batching, block_size, spare, tokens, admission, victim, max_num_seqs
):
    need = max(blocks_needed(r, block_size, allocator) for r in requests)
    recorder, _ = run(
        requests,
        (need if allocator == "paged" else 4 * need) + spare // block_size,
        block_size,
        allocator=allocator,
        batching=batching,
        tokens=tokens,
        admission=admission,
        victim=victim,
        max_num_seqs=max_num_seqs,
        max_model_len=max(r.max_slots for r in requests),
    )
    check(recorder)
    for step in recorder.steps:
        assert step.tokens <= tokens
        assert step.running <= max_num_seqs


@in_its_time
@given(workloads(obey_eos=True), st.integers(0, VOCAB - 1), st.sampled_from([1, 4]))
def test_an_end_of_sequence_token_ends_a_sample_or_a_beam(requests, eos, block_size):
    recorder, _ = run(requests, max(blocks_needed(r, block_size, "paged") for r in requests), block_size, eos=eos)
    check(recorder, eos)


@pytest.mark.parametrize("preempt_after", range(1, 12))
@pytest.mark.parametrize(
    "sampling", [{"n": 3, "temperature": 1.0}, {"beam_width": 3}, {"n": 1, "best_of": 3, "temperature": 1.0}], ids=str
)
def test_a_request_preempted_at_any_step_answers_the_same(preempt_after, sampling):  # case E45
    elder = request(30 - preempt_after, 20 + preempt_after, id=0)
    younger = request(6, 14, id=1, seed=6, **sampling)
    recorder, _ = run([elder, younger], 8 + 3 * preempt_after // 4 + 6)
    check(recorder)


def test_preemptions_of_groups_do_happen_in_these_tests():
    recorder, _ = run([request(20, 30, id=0), request(6, 14, id=1, beam_width=3)], 14)
    assert recorder.sequences[1].preemptions
    check(recorder)


def test_the_first_of_n_is_what_the_request_says_alone_and_the_others_differ():
    recorder, _ = run([request(9, 12, seed=5, temperature=0.8, n=4)], 32)
    outputs = [done.token_ids for done in recorder.sequences[0].outputs()]
    assert outputs[0] == naive_output(request(9, 12, seed=5, temperature=0.8))
    assert len(set(map(tuple, outputs))) == 4


def test_seeds_of_children_do_not_collide_over_many_requests():
    seeds = {SamplingParams(seed=s).of_child(c).seed for s in range(500) for c in range(20)}
    assert len(seeds) == 10_000


# ---- E11: copy-on-write at a partial tail --------------------------------------------------------------------------


def at_fork(prompt, **sampling):
    """(scheduler, executor) after the step that fed the prompt."""
    scheduler = make_scheduler(32)
    executor = make_executor(scheduler)
    scheduler.submit(request(prompt, 8, temperature=1.0, **sampling))
    plan = scheduler.schedule()
    scheduler.commit(plan, executor.execute(plan), 1.0)
    scheduler.audit()
    return scheduler, executor


@pytest.mark.parametrize(
    ("prompt", "copies", "tables", "refs"),
    [(6, 1, 3, [1, 1, 2]), (8, 0, 4, [1, 1, 2, 2]), (5, 1, 3, [1, 1, 2]), (3, 1, 2, [1, 1])],
)
def test_e11_only_a_partial_tail_is_copied_and_only_once(prompt, copies, tables, refs):
    scheduler, executor = at_fork(prompt, n=2)
    pool, holdings = scheduler.allocator.pool, scheduler.allocator.holdings
    shared = list(holdings[0].table)
    assert holdings[0].table == holdings[(0, 1)].table
    assert {pool.ref[block] for block in shared} == {2}
    plan = scheduler.schedule()
    first, second = (holdings[key].table for key in (0, (0, 1)))
    assert len(plan.copies) == copies
    for copy in plan.copies:
        assert copy.source == shared[-1]  # the tail, which the last to write keeps
        assert copy.destination not in shared
        assert {first[-1], second[-1]} == {copy.source, copy.destination}
    assert first[: prompt // 4] == second[: prompt // 4] == shared[: prompt // 4]
    assert len({*first, *second}) == tables
    assert sorted(pool.ref[block] for block in {*first, *second}) == refs
    scheduler.commit(plan, executor.execute(plan), 2.0)
    scheduler.audit()
    assert scheduler.schedule().copies == []  # their own blocks from here on


# ---- E13: beams that are pruned -------------------------------------------------------------------------------------


def test_e13_a_beam_whose_parent_loses_gets_a_copy_of_the_winners_tail():
    """Until both survivors descend from one beam: the tail of the loser is freed once, and may be the copy's place."""
    seen = 0
    for seed in range(12):
        scheduler = make_scheduler(8)
        executor = make_executor(scheduler)
        trunk = scheduler.submit(request([seed, 3, 1, 2, 9, 7], 8, beam_width=2))
        pool, holdings = scheduler.allocator.pool, scheduler.allocator.holdings
        while scheduler.has_work:
            before = {key: list(h.table) for key, h in holdings.items()}
            plan = scheduler.schedule()
            scheduler.commit(plan, executor.execute(plan), 1.0)
            scheduler.audit()
            if len(before) == 2 and len(holdings) == 2 and holdings[0].table == holdings[(0, 1)].table:
                seen += 1
                assert {pool.ref[block] for block in holdings[0].table} == {2}
                assert pool.num_free == 8 - len(holdings[0].table)
                free = pool.free_ids()
                assert len(set(free)) == len(free)
                follow = scheduler.schedule()
                for copy in follow.copies:
                    assert copy.source != copy.destination
                    assert copy.destination in free
                scheduler.commit(follow, executor.execute(follow), 2.0)
                scheduler.audit()
        assert [c.token_ids for c in trunk.answer] == [c.token_ids for c in naive_answer(trunk.request)]
        assert pool.num_free == 8
    assert seen > 5


# ---- E14: n = 4 -----------------------------------------------------------------------------------------------------


def test_e14_four_samples_of_a_prompt_of_ten_hold_six_blocks_and_compute_the_prompt_once():
    recorder, _ = run([request(10, 3, n=4, temperature=1.0)], 12)
    assert max(12 - step.usage.free // 4 for step in recorder.steps) == 6
    assert max(step.sharing.mapped for step in recorder.steps) == 12
    assert sum(step.tokens for step in recorder.steps) == 10 + 4 * 2
    assert recorder.sequences[0].recomputed_tokens == 0
    assert sum(step.copies for step in recorder.steps) == 3


@pytest.mark.parametrize("allocator", ["reserve_max", "reserve_output", "oracle", "power_of_two"])
def test_e14_a_contiguous_allocator_gives_each_sample_a_run_and_a_copy_of_the_prompt(allocator):
    recorder, _ = run([request(10, 3, n=4, true=3, temperature=1.0)], 32, allocator=allocator, max_model_len=12)
    granted = 4 if allocator == "power_of_two" else 3
    assert max(32 - step.usage.free // 4 for step in recorder.steps) == 4 * granted
    assert sum(step.copies for step in recorder.steps) == 3 * 3  # three blocks of prompt for each of three
    assert all(step.sharing.saved == 0 for step in recorder.steps)
    assert [c.token_ids for c in recorder.sequences[0].outputs()] == [
        c.token_ids for c in naive_answer(recorder.sequences[0].request)
    ]


# ---- E8: what fails changes nothing ---------------------------------------------------------------------------------


def state_of(allocator):
    holdings = {k: (list(h.table), h.promised, h.tokens) for k, h in allocator.holdings.items()}
    return allocator.pool.free_ids(), list(allocator.pool.ref), holdings, allocator.usage(), allocator.sharing()


def test_e8_a_copy_without_a_block_for_it_is_refused_and_changes_nothing():
    """N = 4: three blocks with a tail of 2, forked into three. Two tails must be copied, one block is free."""
    scheduler = make_scheduler(4)
    a = scheduler.allocator
    trunk = make_scheduler(64).submit(request(10, 3, n=3, temperature=1.0))  # a group, past this pool's refusal
    a.admit(trunk)
    a.grow(0, 10)
    assert a.fork(0, (0, 1)) == a.fork(0, (0, 2)) == []
    a.audit()
    assert a.pool.num_free == 1
    assert a.grow(0, 11) == [3]
    before = state_of(a)
    assert a.grow((0, 1), 11) is None
    assert state_of(a) == before
    a.release(0)
    assert a.grow((0, 1), 11) is not None
    assert a.grow((0, 2), 11) == []  # the last that writes needs no copy
    a.audit()


@pytest.mark.parametrize("allocator", ["reserve_output", "power_of_two"])
def test_e8_a_group_of_runs_is_admitted_whole_or_not_at_all(allocator):
    scheduler = make_scheduler(8, allocator=allocator, max_model_len=32)
    a = scheduler.allocator
    first = make_scheduler(64).submit(request(9, 4, true=4, n=2, temperature=1.0))
    second = make_scheduler(64).submit(request(9, 4, true=4, id=1, n=2, temperature=1.0))
    assert a.can_admit(first)
    a.admit(first)
    before = state_of(a)
    assert not a.can_admit(second)
    with pytest.raises(Exception, match="no 2 free runs"):
        a.admit(second)
    assert state_of(a) == before
    a.audit()


# ---- what can never run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "line"),
    [
        ({"max_num_seqs": 3}, "runs 4 sequences side by side, max_num_seqs is 3"),
        ({"tokens": 3}, "and max_num_batched_tokens 3"),
        ({"num_blocks": 9}, "can need 10 blocks"),  # 2 shared, then 2 for each: 10 + 7 - 1 slots
        ({"allocator": "reserve_output", "num_blocks": 15}, "needs 4 runs of 4 blocks of 4 slots, one for each"),
        ({"allocator": "power_of_two", "num_blocks": 15}, "the pool can give 3 at most (of 15 blocks)"),
    ],
)
def test_a_request_too_wide_is_refused_with_both_numbers(choices, line):
    scheduler = make_scheduler(**{"num_blocks": 16, "max_model_len": 16} | choices)
    seq = scheduler.submit(request(10, 7, true=7, n=4, temperature=1.0))
    assert seq.status is Status.REFUSED
    assert line in seq.refusal
    assert not scheduler.has_work


@pytest.mark.parametrize("steps", range(10))
@pytest.mark.parametrize("sampling", [{"n": 3, "temperature": 1.0}, {"beam_width": 3}], ids=str)
@pytest.mark.parametrize("allocator", ["paged", "reserve_output"])
def test_aborted_in_any_state_it_gives_all_back(steps, sampling, allocator):  # case E4
    scheduler = make_scheduler(24, tokens=8, allocator=allocator, max_model_len=24)
    executor = make_executor(scheduler)
    seq = scheduler.submit(request(18, 5, **sampling))
    other = scheduler.submit(request(5, 4, id=1, **sampling))
    for _ in range(steps):
        if scheduler.has_work:
            plan = scheduler.schedule()
            scheduler.commit(plan, executor.execute(plan), 1.0)
            scheduler.audit()
    scheduler.abort(seq)
    scheduler.abort(seq)
    while scheduler.has_work:
        scheduler.audit()
        plan = scheduler.schedule()
        scheduler.commit(plan, executor.execute(plan), 1.0)
    scheduler.audit()
    assert scheduler.allocator.pool.num_free == 24
    assert [c.token_ids for c in other.answer] == [c.token_ids for c in naive_answer(other.request)]
