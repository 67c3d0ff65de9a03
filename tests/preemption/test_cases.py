"""Known bug kinds of engines that swap, as small inputs. R(p, g): p prompt tokens, g new ones; B = 4 unless said.

The ids are those of the case list that the project keeps. E43 beside them: two R(14, 18) on 8 blocks outgrow the pool
in the 4th step, the younger yields, with 16 tokens computed, that is 4 blocks.
"""

import pytest

from pagedlab.allocator.host import Host
from pagedlab.core.errors import InvariantError
from pagedlab.core.request import Status
from tests.lab import make_executor, make_scheduler, naive_answer, naive_output, request, run


def step(scheduler, executor, now=0.0):
    plan = scheduler.schedule()
    outcome = executor.execute(plan)
    scheduler.commit(plan, outcome, now)
    scheduler.audit()
    return plan


def serve_rest(scheduler, executor):
    while scheduler.has_work:
        step(scheduler, executor)


def swapping(num_blocks, *requests, **choices):
    """A scheduler that swaps, its executor, and its sequences, after the first step that preempted."""
    scheduler = make_scheduler(num_blocks, **{"preemption": "swap"} | choices)
    executor = make_executor(scheduler)
    seqs = [scheduler.submit(r) for r in requests]
    for _ in range(50):
        plan = step(scheduler, executor)
        if plan.preempted:
            return scheduler, executor, seqs, plan
    raise AssertionError("nothing was preempted")


# ---- E43, E45: swapped, not recomputed ----------------------------------------------------------------------------


@pytest.mark.parametrize("batching", ["chunked", "prefill_first"])
def test_e43_by_swap_costs_no_token(batching):
    requests = [request(14, 18, id=0), request(14, 18, id=1)]
    recorder, _ = run(requests, 8, batching=batching, preemption="swap")
    (record,) = [record for _, _, record in recorder.preemptions]
    assert (record.kind, record.fallback, record.victim, record.tokens_lost) == ("swap", False, 1, 0)
    assert (record.blocks_freed, record.blocks_moved, record.bytes_moved) == (4, 4, 4000)
    (back,) = [record for _, _, record in recorder.returns]
    assert (back.request_id, back.blocks_moved, back.bytes_moved, back.blocks_attached) == (1, 4, 4000, 0)
    assert [seq.output for seq in recorder.sequences] == [naive_output(r) for r in requests]
    assert [seq.recomputed_tokens for seq in recorder.sequences] == [0, 0]
    fed = sum(s.tokens for s in recorder.steps)
    assert fed == 2 * (14 + 17)


@pytest.mark.parametrize("preempt_after", range(1, 12))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("preemption", ["swap", "adaptive"])
def test_e45_a_request_preempted_at_any_step_generates_the_same(preempt_after, temperature, preemption):
    elder = request(24 - preempt_after, 25 + preempt_after, id=0, temperature=temperature, seed=5)
    younger = request(6, 18, id=1, temperature=temperature, seed=6)
    recorder, _ = run([elder, younger], 12, preemption=preemption)
    assert [seq.output for seq in recorder.sequences] == [naive_output(elder), naive_output(younger)]
    assert recorder.preemptions[0][2].victim == 1


# ---- E4: abort in each state --------------------------------------------------------------------------------------


@pytest.mark.parametrize("twice", [False, True])
def test_e4_abort_while_swapped_out_frees_its_host_blocks(twice):
    scheduler, executor, (elder, younger), _ = swapping(8, request(14, 18, id=0), request(14, 18, id=1))
    assert (younger.status, younger.swapped, scheduler.allocator.host_blocks) == (Status.PREEMPTED, True, 4)
    for _ in range(1 + twice):
        scheduler.abort(younger)
    scheduler.audit()
    assert scheduler.allocator.host_blocks == 0
    serve_rest(scheduler, executor)
    assert scheduler.allocator.pool.num_free == 8
    assert elder.output == naive_output(elder.request)


def test_e4_what_a_return_reads_is_handed_out_only_when_the_step_is_over():
    scheduler, executor, (elder, younger), _ = swapping(8, request(14, 18, id=0), request(14, 18, id=1))
    scheduler.abort(elder)
    plan = scheduler.schedule()
    host = scheduler.allocator.host
    assert [host_block for host_block, _ in plan.swapped_in] == [0, 1, 2, 3]
    assert host.pool.free_ids() == [4, 5, 6, 7]
    assert host.tables == {}
    host.audit()
    scheduler.commit(plan, executor.execute(plan), 0.0)
    assert sorted(host.pool.free_ids()) == list(range(8))
    scheduler.abort(younger)
    assert scheduler.allocator.pool.num_free == 8


# ---- E10: references across branches and their swap state ---------------------------------------------------------


@pytest.mark.parametrize("several", [{"temperature": 1.0, "n": 3}, {"beam_width": 3}], ids=str)
def test_e10_a_group_drops_and_takes_back_all_its_references(several):
    """Three sequences of a prompt of two full blocks and a bit."""
    group = request(9, 8, id=1, **several)
    scheduler, executor, (_, seq), plan = swapping(11, request(20, 20, id=0), group)
    record = plan.preempted[0]
    assert (record.victim, record.kind) == (1, "swap")
    host = scheduler.allocator.host
    tables = list(host.tables[1].values())
    assert len(tables) == 3
    assert {tuple(table[:2]) for table in tables} == {tuple(tables[0][:2])}, "the prompt is there once"
    assert [host.pool.ref[block] for block in tables[0][:2]] == [3, 3]
    assert set(scheduler.allocator.holdings) == {0}
    while seq.swapped:
        step(scheduler, executor)
    held = [scheduler.allocator.holdings[part.key].table for part in seq.parts]
    assert len({tuple(table[:2]) for table in held}) == 1
    assert [scheduler.allocator.pool.ref[block] for block in held[0][:2]] == [3, 3]
    serve_rest(scheduler, executor)
    assert [o.token_ids for o in seq.outputs()] == [o.token_ids for o in naive_answer(group)]


def test_e10_a_group_swapped_out_in_the_step_that_was_to_copy_for_it_has_the_source():
    """The younger group wants a block for each branch's first own token; what it got of them is taken back again."""
    group = request(6, 8, id=1, temperature=1.0, n=3)
    for blocks in range(10, 15):
        recorder, _ = run([request(14, 16, id=0), group], blocks, preemption="swap")
        assert [o.token_ids for o in recorder.sequences[1].outputs()] == [o.token_ids for o in naive_answer(group)]


# ---- E47: the return counts what the next step needs ---------------------------------------------------------------


@pytest.mark.parametrize(("free", "comes_back"), [(3, False), (4, True)])
def test_e47_who_comes_back_has_room_for_all_that_it_knows(free, comes_back):
    """12 tokens computed fill 3 blocks; the 13th, which it feeds next, needs a 4th."""
    scheduler, executor, (elder, younger), _ = swapping(8, request(18, 14, id=0), request(10, 18, id=1))
    assert (younger.computed, younger.num_tokens) == (12, 13)
    scheduler.abort(elder)
    pool = scheduler.allocator.pool
    taken = pool.allocate(pool.num_free - free)
    plan = scheduler.schedule()
    assert (younger.status is Status.RUNNING) == comes_back
    assert plan.memory_blocked == (not comes_back)
    if comes_back:
        assert [seq.id for seq in plan.batch] == [1]
    pool.release(taken)
    if comes_back:
        scheduler.commit(plan, executor.execute(plan), 0.0)
    serve_rest(scheduler, executor)
    assert younger.output == naive_output(younger.request)


# ---- E48: a block that others share ------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["hash_chain", "radix"])
@pytest.mark.parametrize("others_stay", [True, False])
def test_e48_a_shared_block_stays_with_the_other_and_is_attached_or_reloaded(cache, others_stay):
    """Both begin with the same 8 tokens, so share 2 blocks. The younger is swapped out whole; back, it finds them
    cached, held by the other or by nobody, and only what is its own is moved."""
    first = list(range(8))
    elder, younger = request([*first, 1, 2, 3, 4], 24, id=0), request([*first, 9, 9, 9], 24, id=1, arrival=0.001)
    scheduler = make_scheduler(9, preemption="swap", prefix_cache=cache)
    executor = make_executor(scheduler)
    seqs = [scheduler.submit(elder)]
    step(scheduler, executor)
    seqs.append(scheduler.submit(younger))
    plan = step(scheduler, executor)
    assert seqs[1].cached_tokens >= 8
    while not plan.preempted:
        plan = step(scheduler, executor)
    record = plan.preempted[0]
    held = scheduler.allocator.holdings[0].table
    assert record.victim == 1
    assert record.blocks_moved > record.blocks_freed, "what the other holds is copied and not freed"
    assert set(held[:2]) <= {block for block, _ in plan.swapped_out}
    if not others_stay:
        scheduler.abort(seqs[0])
    while seqs[1].swapped:
        plan = step(scheduler, executor)
    (back,) = plan.returned
    assert back.blocks_attached >= 2
    assert back.blocks_attached + back.blocks_moved == record.blocks_moved
    serve_rest(scheduler, executor)
    assert seqs[1].output == naive_output(younger)
    if others_stay:
        assert seqs[0].output == naive_output(elder)


def test_e48_what_was_evicted_meanwhile_is_reloaded():
    """One block more than the elder comes to need: it evicts all that the younger leaves in the cache."""
    elder, younger = request(14, 18, id=0), request(14, 18, id=1)
    recorder, _ = run([elder, younger], 8, preemption="swap", prefix_cache="hash_chain")
    (_, _, back), *_ = recorder.returns
    assert (back.blocks_attached, back.blocks_moved) == (0, 4)
    assert [seq.output for seq in recorder.sequences] == [naive_output(elder), naive_output(younger)]


# ---- E49: the host full, or absent --------------------------------------------------------------------------------


@pytest.mark.parametrize(("host_blocks", "kind"), [(0, "recompute"), (3, "recompute"), (4, "swap"), (5, "swap")])
def test_e49_without_room_on_the_host_it_is_recomputed_and_counted(host_blocks, kind):
    requests = [request(14, 18, id=0), request(14, 18, id=1)]
    recorder, _ = run(requests, 8, preemption="swap", host_blocks=host_blocks)
    (record,) = [record for _, _, record in recorder.preemptions]
    assert (record.kind, record.fallback) == (kind, kind == "recompute")
    assert recorder.sequences[1].recomputed_tokens == (16 if kind == "recompute" else 0)
    assert [seq.output for seq in recorder.sequences] == [naive_output(r) for r in requests]


# ---- E51: preempt while something reads ---------------------------------------------------------------------------


def test_e51_a_fenced_block_is_handed_out_to_nobody_while_it_is_read():
    host = Host(4, 4)
    assert host.store(1, {1: [7, 8, 9]}) == [(7, 0), (8, 1), (9, 2)]
    host.take_back(1)
    assert host.store(2, {2: [5, 6]}) is None, "only block 3 is free: the others are being read"
    assert host.store(3, {3: [5]}) == [(5, 3)]
    host.audit()
    host.pool.lift_fences()
    assert host.store(2, {2: [5, 6]}) is not None
    host.audit()


def test_e51_a_block_released_in_the_step_that_reads_it_is_free_afterwards():
    host = Host(2, 4)
    host.store(1, {1: [0], (1, 1): [0, 1]})
    assert host.pool.ref == [2, 1]
    host.pool.fence(0)
    host.forget(1)
    assert host.pool.free_ids() == [1]
    host.audit()
    host.pool.lift_fences()
    assert host.pool.free_ids() == [1, 0]


def test_a_request_is_on_the_host_once():
    host = Host(4, 4)
    host.store(1, {1: [0]})
    with pytest.raises(InvariantError, match="request 1 is swapped out twice"):
        host.store(1, {1: [1]})


# ---- who comes back when ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", ["chunked", "prefill_first"])
@pytest.mark.parametrize("order", ["fcfs", "random"])
def test_nobody_is_admitted_while_somebody_is_swapped_out(batching, order):
    """Not even one that would fit, and whatever the order says of the two."""
    choices = {"batching": batching, "order": order}
    scheduler, executor, seqs, _ = swapping(8, request(14, 18, id=0), request(14, 18, id=1), **choices)
    seqs += [scheduler.submit(request(2, 1, id=i)) for i in range(2, 6)]
    while any(seq.swapped for seq in seqs):
        plan = step(scheduler, executor)
        if {new.request.id for new in plan.admitted} - {0, 1}:
            assert not any(seq.swapped for seq in seqs), "another one went first"
    serve_rest(scheduler, executor)
    assert [seq.output for seq in seqs] == [naive_output(seq.request) for seq in seqs]


def test_of_several_that_are_swapped_out_the_first_in_the_order_is_back_first():
    """The latest arrived yields first, so the other one, later swapped out, is before it in the queue."""
    recorder, _ = run([request(8, 16, id=i) for i in range(3)], 9, preemption="swap")
    gone = [record.victim for _, _, record in recorder.preemptions]
    assert gone[:2] == [2, 1]
    assert recorder.returns[0][2].request_id == 1


def test_in_prefill_first_it_comes_back_in_a_step_of_decodes():
    scheduler, executor, seqs, _ = swapping(
        8, request(14, 18, id=0), request(12, 18, id=1), request(4, 4, id=2), batching="prefill_first"
    )
    scheduler.submit(request(4, 4, id=3))
    while not (plan := step(scheduler, executor)).returned:
        assert not plan.admitted, "a new prompt went first"
    assert 3 not in {new.request.id for new in plan.admitted}
    assert set(plan.num_tokens) == {1}
    serve_rest(scheduler, executor)
    assert [seq.output for seq in seqs] == [naive_output(seq.request) for seq in seqs]


# ---- the cheaper of the two ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token_s", "kind"), [(0.0024, "recompute"), (0.0026, "swap")], ids=["tokens are cheap", "tokens are dear"]
)
def test_adaptive_takes_the_cheaper_by_the_model(token_s, kind, monkeypatch):
    """16 tokens in 4 blocks of 1000 bytes: 4000 x 2 / 200000 bytes a second = 40 ms against 16 x token_s, which is
    38.4 ms or 41.6 ms."""
    from pagedlab.settings import AdaptiveSettings
    from tests import lab

    settings = AdaptiveSettings("adaptive", "last_arrived", None, None, "model", token_s, 0.0, 2e5)
    monkeypatch.setattr(lab, "ADAPTIVE", settings)
    recorder, _ = run([request(14, 18, id=0), request(14, 18, id=1)], 8, preemption="adaptive")
    record = recorder.preemptions[0][2]
    assert record.kind == kind
    assert record.swap_estimate_s == pytest.approx(0.04)
    assert record.recompute_estimate_s == pytest.approx(16 * token_s)


def test_adaptive_counts_the_pairs_of_the_model(monkeypatch):
    """A prompt of 9 and three samples of 3 more: 9 tokens once and 3 x 3, and pairs 81 / 2 and 3 x (144 - 81) / 2."""
    from pagedlab.settings import AdaptiveSettings
    from tests import lab

    monkeypatch.setattr(
        lab, "ADAPTIVE", AdaptiveSettings("adaptive", "last_arrived", None, None, "model", 1.0, 100.0, 1.0)
    )
    scheduler = make_scheduler(16, preemption="adaptive")
    executor = make_executor(scheduler)
    seq = scheduler.submit(request(9, 8, temperature=1.0, n=3))
    for _ in range(4):
        step(scheduler, executor)
    swap_s, recompute_s = scheduler.preemption.estimate(seq)
    assert [part.computed for part in seq.parts] == [12, 12, 12]
    assert recompute_s == 18 + 100 * (81 / 2 + 3 * (144 - 81) / 2)
    assert swap_s == 2 * 1000 * 5, "2 full blocks of the prompt, and a third of each sample"


def test_adaptive_goes_by_what_it_has_measured():
    """Steps take 10 ms whatever they feed, and a block 1 ms each way: after a prompt of 14 + 14 tokens in one step one
    costs 10 / 28 ms, and the settings' 1 ms is forgotten."""
    scheduler = make_scheduler(8, preemption="adaptive")
    executor = make_executor(scheduler, swap_s=0.001)
    seqs = [scheduler.submit(request(14, 18, id=i)) for i in range(2)]
    step(scheduler, executor)
    swap_s, recompute_s = scheduler.preemption.estimate(seqs[1])
    assert swap_s == pytest.approx(4000 * 2 / 2e5), "nothing was swapped so far: the settings"
    assert recompute_s == pytest.approx(14 * 0.01 / 28)
    scheduler.preemption.token_s.seconds *= 100
    while not step(scheduler, executor).preempted:
        pass
    assert seqs[1].swapped
    assert scheduler.preemption.out_s.value == pytest.approx(0.001 / 1000)


def test_adaptive_without_room_falls_back_only_where_it_would_have_swapped():
    for token_s, fallback in ((1.0, True), (1e-9, False)):
        scheduler = make_scheduler(8, preemption="adaptive", host_blocks=0)
        executor = make_executor(scheduler)
        for i in range(2):
            scheduler.submit(request(14, 18, id=i))
        step(scheduler, executor)
        scheduler.preemption.token_s.seconds = token_s * scheduler.preemption.token_s.units
        scheduler.preemption.measures = False
        while not (plan := step(scheduler, executor)).preempted:
            pass
        assert (plan.preempted[0].kind, plan.preempted[0].fallback) == ("recompute", fallback)


# ---- beside the orders --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "first_back"),
    [("fcfs", 1), ("priority", 2), ("srtf", 2), ("vtc", 2)],
)
def test_those_swapped_out_come_back_in_the_order_of_the_policy(order, first_back):
    """Three prompts of 2 blocks fill the pool: 2 yields at once, 1 when 0 and 1 have 3 blocks each; 0 runs to its
    end. 2 is more urgent than 1, has less left to come, and is of the client that was served less."""
    requests = [
        request(8, 16, id=0, true=16, client="a", priority=0),
        request(8, 16, id=1, true=16, client="a", priority=2),
        request(8, 9, id=2, true=9, client="b", priority=1),
    ]
    recorder, _ = run(requests, 6, order=order, preemption="swap", tokens=24)
    assert {record.victim for _, _, record in recorder.preemptions} == {1, 2}
    assert recorder.returns[0][2].request_id == first_back
    assert [seq.output for seq in recorder.sequences] == [naive_output(r) for r in requests]


def test_who_was_swapped_out_for_others_waits_behind_them():
    """One row. 0 yields to 1; 2 arrives, as urgent as 1: it goes before 0, which is back at the end."""
    requests = [
        request(6, 20, id=0, priority=5, arrival=0.0),
        request(6, 4, id=1, priority=0, arrival=0.03),
        request(6, 4, id=2, priority=0, arrival=0.05),
    ]
    recorder, _ = run(requests, 40, order="priority", preemptive=True, preemption="swap", max_num_seqs=1)
    assert [(r.victim, r.beneficiary, r.reason, r.kind) for _, _, r in recorder.preemptions] == [
        (0, 1, "outranked", "swap")
    ]
    ((back_s, _, back),) = recorder.returns
    assert back.request_id == 0
    assert back_s >= recorder.sequences[2].finish_s > recorder.admitted_s[2] >= recorder.sequences[1].finish_s
    assert recorder.sequences[0].recomputed_tokens == 0


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("batching", ["chunked", "iteration", "prefill_first"])
def test_who_is_first_never_yields_while_others_are_behind_it(batching, preemption):
    """The last to arrive, 1, is the most urgent. Recomputed for lack of a block, it would be let in again in place of
    0, feed its three outputs, and lack the block again, for ever."""
    requests = [
        request(8, 6, id=0, priority=3, n=2, temperature=1.0),
        request(9, 8, id=1, priority=0, arrival=0.02, n=3, temperature=1.0),
    ]
    choices = {"order": "priority", "preemptive": True, "batching": batching, "preemption": preemption}
    recorder, _ = run(requests, 8, tokens=4, max_num_seqs=8, **choices)
    assert {r.victim for _, _, r in recorder.preemptions} == {0}
    for seq, asked in zip(recorder.sequences, requests, strict=True):
        assert [o.token_ids for o in seq.outputs()] == [o.token_ids for o in naive_answer(asked)]


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_who_takes_a_place_in_the_step_has_the_tokens_of_who_yielded(preemption):
    """4 tokens a step, of which the two outputs of 0 feed 2 in each; then 1 has all 4 for its prompt."""
    requests = [request(8, 4, id=0, priority=3, n=2, temperature=1.0), request(4, 2, id=1, arrival=0.025)]
    recorder, _ = run(requests, 4, tokens=4, max_num_seqs=8, order="priority", preemptive=True, preemption=preemption)
    ((_, number, record),) = recorder.preemptions
    assert (record.victim, record.beneficiary, record.reason) == (0, 1, "outranked")
    assert [(s.batch, s.tokens) for s in recorder.steps[number - 1 : number + 1]] == [(2, 2), (1, 4)]


def test_a_closed_static_batch_takes_nobody_back():
    """Two of R(14, 18) on 8 blocks: the younger is swapped out, and comes back when the elder has ended."""
    requests = [request(14, 18, id=0), request(14, 18, id=1)]
    recorder, _ = run(requests, 12, batching="static", preemption="swap")
    ((back_s, _, back),) = recorder.returns
    assert back.request_id == 1
    assert back_s >= recorder.sequences[0].finish_s
    assert [seq.output for seq in recorder.sequences] == [naive_output(r) for r in requests]
