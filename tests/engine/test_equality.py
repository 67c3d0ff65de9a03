"""Whatever the memory does, every request generates what it would alone (invariant I12, case E58)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.core.request import Status
from tests.lab import VOCAB, naive_output, request, run

ALLOCATORS = ("paged", "reserve_max", "power_of_two", "oracle", "reserve_output")


@st.composite
def workloads(draw):
    n = draw(st.integers(1, 7))
    requests = []
    for i in range(n):
        new = draw(st.integers(1, 14))
        requests.append(
            request(
                draw(st.lists(st.integers(0, 3), min_size=1, max_size=14)),
                new,
                id=i,
                arrival=draw(st.sampled_from([0.0, 0.0, 0.015, 0.1, 0.5])),
                true=draw(st.integers(1, new)),
                temperature=draw(st.sampled_from([0.0, 1.0])),
                seed=draw(st.integers(0, 3)),
            )
        )
    return sorted(requests, key=lambda r: r.arrival_s)


@given(
    workloads(),
    st.sampled_from(ALLOCATORS),
    st.sampled_from(["chunked", "prefill_first"]),
    st.sampled_from([1, 2, 3, 4, 16]),
    st.integers(1, 12),
    st.sampled_from([1, 3, 8, 64]),
    st.sampled_from(["fcfs", "random"]),
    st.sampled_from(["on_demand", "one_at_a_time"]),
    st.sampled_from(["last_arrived", "most_blocks"]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([0.0, 0.2]),
)
def test_tokens_do_not_depend_on_memory_or_scheduling(
    requests, allocator, batching, block_size, spare, tokens, order, admission, victim, max_num_seqs, watermark
):
    need = max(-(-r.max_slots // block_size) for r in requests)
    blocks = need + spare // block_size if allocator == "paged" else 2 * need + spare
    recorder, _ = run(
        requests,
        blocks,
        block_size,
        allocator=allocator,
        batching=batching,
        tokens=tokens,
        order=order,
        admission=admission,
        victim=victim,
        max_num_seqs=max_num_seqs,
        watermark=watermark,
        max_model_len=max(r.max_slots for r in requests),
    )
    served = [seq for seq in recorder.sequences if seq.status is not Status.REFUSED]
    assert allocator == "power_of_two" or len(served) == len(requests)
    for seq in served:
        assert seq.output == naive_output(seq.request)
        assert seq.finish_reason == "length"
    for step in recorder.steps:
        assert step.usage.total == blocks * block_size
        assert step.tokens <= tokens
        assert step.running <= max_num_seqs


@given(workloads(), st.integers(0, VOCAB - 1), st.sampled_from([1, 4]))
def test_an_end_of_sequence_token_stops_unless_it_is_ignored(requests, eos, block_size):
    requests = [request(list(r.prompt), r.max_tokens, r.id, r.arrival_s, ignore_eos=r.id % 2 == 0) for r in requests]
    blocks = max(-(-r.max_slots // block_size) for r in requests)
    recorder, _ = run(requests, blocks, block_size, eos=eos)
    for seq in recorder.sequences:
        assert seq.output == naive_output(seq.request, eos)
        stopped = not seq.request.sampling.ignore_eos and seq.output[-1] == eos
        assert seq.finish_reason == ("stop" if stopped else "length")


@pytest.mark.parametrize("preempt_after", range(1, 12))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_request_preempted_at_any_step_generates_the_same(preempt_after, temperature):  # case E45
    """A second, earlier request whose growth takes the blocks just when the victim has made so many tokens."""
    elder = request(24 - preempt_after, 25 + preempt_after, id=0, temperature=temperature, seed=5)
    younger = request(6, 18, id=1, temperature=temperature, seed=6)
    recorder, _ = run([elder, younger], 12)
    assert [seq.output for seq in recorder.sequences] == [naive_output(elder), naive_output(younger)]
    _, number, record = recorder.preemptions[0]
    assert record.victim == 1
    assert record.tokens_lost == 6 + number - 1
    assert recorder.sequences[0].preemptions == 0


def test_a_sample_does_not_depend_on_who_else_is_in_the_batch():
    one = request(9, 12, id=3, temperature=0.7, seed=11)
    others = [request(5 + i, 9, id=i, temperature=0.7, seed=i) for i in range(3)]
    alone, _ = run([one], 32)
    together, _ = run([*others, one], 32)
    assert together.sequences[-1].output == alone.sequences[0].output
    other_seed, _ = run([request(9, 12, id=3, temperature=0.7, seed=12)], 32)
    assert other_seed.sequences[0].output != alone.sequences[0].output


def test_the_same_run_twice_is_the_same_run():
    requests = [request(5 + 3 * i, 20, id=i, arrival=0.01 * i) for i in range(8)]
    first, _ = run(requests, 14)
    second, _ = run(requests, 14)
    assert first.steps == second.steps
    assert first.preemptions == second.preemptions
    assert len(first.preemptions) > 0
    assert [seq.token_s for seq in first.sequences] == [seq.token_s for seq in second.sequences]
