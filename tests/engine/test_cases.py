"""Known bug kinds of paged-KV engines as small inputs. R(p, g): p prompt tokens, g new ones. B = 4 unless said.

The ids are those of the case list that the project keeps; each kind is tried with more inputs than its first one.
"""

import pytest

from pagedlab.core.clock import VirtualClock
from pagedlab.core.errors import EngineStalled
from pagedlab.core.plan import Outcome
from pagedlab.core.request import Status
from pagedlab.engine import serve
from pagedlab.recorder.recorder import Recorder
from tests.lab import make_executor, make_scheduler, naive_output, request, run


def step(scheduler, executor, now=0.0):
    plan = scheduler.schedule()
    outcome = executor.execute(plan)
    scheduler.commit(plan, outcome, now)
    scheduler.audit()
    return plan


# ---- E34: block edges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
@pytest.mark.parametrize("prompt_edge", ["B-1", "B", "B+1", "2B", "2B+1"])
@pytest.mark.parametrize("new", ["1", "2", "B", "B+1"])
def test_e34_a_request_holds_ceil_of_p_plus_g_minus_1_over_b_blocks_at_its_end(block_size, prompt_edge, new):
    prompt, new = (eval(text, {"B": block_size}) for text in (prompt_edge.replace("2B", "2*B"), new))
    if prompt == 0:
        return
    peak = -(-(prompt + new - 1) // block_size)
    recorder, _ = run([request(prompt, new)], peak, block_size)
    assert recorder.sequences[0].status is Status.FINISHED
    held = [(s.usage.total - s.usage.free) // block_size for s in recorder.steps]
    assert max(held) == peak


@pytest.mark.parametrize(("p", "g", "blocks"), [(4, 1, 1), (4, 2, 2), (5, 4, 2), (8, 2, 3)])
def test_e34_the_listed_numbers(p, g, blocks):
    recorder, _ = run([request(p, g)], 8)
    assert max((32 - s.usage.free) // 4 for s in recorder.steps) == blocks


# ---- E35, E36: larger than the pool ------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "p", "g", "need"), [(2, 20, 1, 5), (2, 6, 10, 4), (1, 4, 2, 2), (3, 1, 13, 4)])
@pytest.mark.parametrize("batching", ["chunked", "prefill_first"])
def test_e35_e36_what_can_never_fit_is_refused_at_submission_and_the_queue_goes_on(n, p, g, need, batching):
    recorder, _ = run([request(p, g, id=0), request(3, 1, id=1)], n, batching=batching, max_model_len=100)
    refused, served = recorder.sequences
    assert refused.status is Status.REFUSED
    assert f"can need {need} blocks" in refused.refusal
    assert f"the pool can give {n} at most" in refused.refusal
    assert served.output == naive_output(served.request)


def test_an_empty_prompt_and_zero_new_tokens_are_refused():
    scheduler = make_scheduler(4)
    assert "expected at least 1" in scheduler.submit(request([], 3)).refusal
    assert "expected at least 1" in scheduler.submit(request(3, 0)).refusal
    assert not scheduler.has_work


# ---- E37, E38: exact fit and the watermark -----------------------------------------------------------------------


@pytest.mark.parametrize(("p", "g"), [(6, 3), (8, 1), (1, 8), (7, 2)])
def test_e37_an_exact_fit_is_served_without_preemption_in_spite_of_a_watermark(p, g):
    recorder, _ = run([request(p, g)], 2, watermark=0.5)
    assert recorder.sequences[0].output == naive_output(request(p, g))
    assert recorder.preemptions == []


def test_e38_the_first_into_an_empty_pool_bypasses_the_watermark():
    recorder, _ = run([request(36, 4)], 10, watermark=0.2)
    assert recorder.steps[0].running == 1
    assert len(recorder.steps) == 4


def test_the_watermark_keeps_room_for_those_that_run():
    scheduler = make_scheduler(10, watermark=0.2)
    executor = make_executor(scheduler)
    for i in range(3):
        scheduler.submit(request(12, 8, id=i))
    plan = step(scheduler, executor)
    assert len(plan.admitted) == 2  # 3 + 3 blocks; the third would leave 1 of the 2 to be kept
    assert plan.memory_blocked


# ---- E41: the longest prompt ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "g", "made"), [(16, 5, 1), (15, 5, 2), (12, 5, 5), (12, 6, 5)])
def test_e41_a_prompt_at_the_limit_ends_with_length_and_the_queue_goes_on(p, g, made):
    recorder, _ = run([request(p, g, id=0), request(3, 2, id=1)], 8, max_model_len=16)
    first, second = recorder.sequences
    assert (len(first.output), first.finish_reason) == (made, "length")
    assert second.status is Status.FINISHED


def test_a_prompt_beyond_the_limit_is_refused_with_both_numbers():
    recorder, _ = run([request(17, 1)], 8, max_model_len=16)
    assert recorder.sequences[0].refusal == "request 0 has 17 prompt tokens, max_model_len is 16"


# ---- E43: thrash --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", ["chunked", "prefill_first"])
def test_e43_two_requests_that_outgrow_the_pool_cost_one_preemption_of_the_younger(batching):
    requests = [request(14, 18, id=0), request(14, 18, id=1)]
    recorder, _ = run(requests, 8, batching=batching)
    (record,) = recorder.preemptions
    _, number, preemption = record
    assert number == 3  # its 4th step
    assert (preemption.victim, preemption.beneficiary) == (1, 0)
    assert (preemption.blocks_freed, preemption.tokens_lost) == (4, 16)
    assert preemption.reason == "pool exhausted"
    assert [len(seq.output) for seq in recorder.sequences] == [18, 18]
    assert [seq.output for seq in recorder.sequences] == [naive_output(r) for r in requests]
    assert recorder.sequences[1].recomputed_tokens == 16


# ---- E44: livelock ------------------------------------------------------------------------------------------------


class Mute:
    """An executor that never samples: the engine must notice, and say what it saw."""

    clock = VirtualClock()

    def execute(self, plan):
        for seq, fed in zip(plan.batch, plan.num_tokens, strict=True):
            seq.computed -= fed  # nothing ever counts as computed
        return Outcome([-1] * len(plan.batch), [None] * len(plan.batch), 0.01)


def test_e44_a_run_without_a_finished_token_ends_with_a_dump():
    scheduler = make_scheduler(4)
    with pytest.raises(EngineStalled, match=r"no token finished in \d+ steps: 0 waiting, Usage\(.*running"):
        serve([request(3, 4)], scheduler, Mute(), Recorder())


# ---- E4, E1: abort ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("twice", [False, True])
def test_e4_abort_in_each_state_frees_everything_once(steps, twice):
    """R(20, 4), T = 8: waiting (0 steps), after the chunks 1 to 3, while decoding, and after its end."""
    scheduler = make_scheduler(8, tokens=8)
    executor = make_executor(scheduler)
    seq = scheduler.submit(request(20, 4))
    for _ in range(steps):
        if scheduler.has_work:
            step(scheduler, executor)
    scheduler.abort(seq)
    if twice:
        scheduler.abort(seq)
    scheduler.audit()
    assert scheduler.allocator.pool.num_free == 8
    assert not scheduler.has_work
    assert seq.finish_reason == ("abort" if steps < 6 else "length")


def test_e4_abort_while_preempted_leaves_the_queue_in_order():
    scheduler = make_scheduler(8)
    executor = make_executor(scheduler)
    seqs = [scheduler.submit(request(14, 18, id=i)) for i in range(3)]
    for _ in range(4):
        step(scheduler, executor)
    assert seqs[1].status is Status.PREEMPTED
    scheduler.abort(seqs[1])
    scheduler.audit()
    while scheduler.has_work:
        step(scheduler, executor)
    assert seqs[2].output == naive_output(seqs[2].request)
    assert scheduler.allocator.pool.num_free == 8


def test_rows_of_ended_requests_are_reused_without_a_trace():
    """Two rows, nine requests: a stale row or block table would change a token."""
    requests = [request(3 + 5 * (i % 3), 6, id=i) for i in range(9)]
    recorder, _ = run(requests, 20, max_num_seqs=2)
    assert [seq.output for seq in recorder.sequences] == [naive_output(r) for r in requests]
    assert max(s.running for s in recorder.steps) == 2
