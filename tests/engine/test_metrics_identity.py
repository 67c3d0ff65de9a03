"""What every summary must satisfy, whatever was run: the slots add up, the tokens add up, waste is its definition."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedlab.core.request import Status
from pagedlab.recorder.metrics import SPLIT, split_over_time, summarize
from tests.lab import request, run

ALLOCATORS = ("paged", "paged", "paged", "reserve_max", "power_of_two", "oracle", "reserve_output")

# Each example is a whole run: on a busy machine it may take its time. The same examples in every run.
in_its_time = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def workloads(draw):
    """Up to eight requests, bunched or far apart (the pool lies idle in between), some of which may never fit."""
    arrivals = sorted(draw(st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.035, 0.4]), min_size=1, max_size=8)))
    requests = []
    for i, arrival in enumerate(arrivals):
        new = draw(st.sampled_from([1, 2, 6, 10, 14]))
        true = draw(st.sampled_from([new, new, -(-new // 2), 1]))
        requests.append(request(draw(st.integers(1, 8)), new, id=i, arrival=arrival, true=true))
    return requests


@st.composite
def runs(draw, allocators=ALLOCATORS):
    """(recorder, num_blocks, block_size) of a run over a small pool."""
    tight = draw(st.booleans())  # much is preempted, where anything can be
    block_size = draw(st.integers(1, 2 if tight else 5))
    num_blocks = draw(st.integers(-(-9 // block_size), -(-(14 if tight else 40) // block_size)))
    slots = num_blocks * block_size
    recorder, _ = run(
        draw(workloads()),
        num_blocks,
        block_size,
        allocator=draw(st.sampled_from(allocators)),
        batching=draw(st.sampled_from(["chunked", "prefill_first"])),
        tokens=draw(st.sampled_from([3, 8, 64] if tight else [1, 2, 5, 64])),
        victim=draw(st.sampled_from(["last_arrived", "most_blocks"])),
        watermark=0.0 if tight else draw(st.sampled_from([0.0, 0.25])),
        max_num_seqs=5 if tight else draw(st.integers(1, 5)),
        max_model_len=slots if tight else draw(st.sampled_from([slots, slots // 2])),
    )
    return recorder, num_blocks, block_size


def held_for(recorder):
    """(seconds, row) of the timeline: a row holds until the next one starts. What follows the last step is no time."""
    rows = list(recorder.steps)
    while rows and rows[-1].batch == 0:
        rows.pop()
    ends = [row.start_s for row in rows[1:]] + [row.end_s for row in rows[-1:]]
    return [(end - row.start_s, row) for row, end in zip(rows, ends, strict=True)]


@in_its_time
@given(runs())
def test_the_seven_fractions_of_the_pool_sum_to_one(run):
    recorder, num_blocks, block_size = run
    summary = summarize(recorder, num_blocks, block_size, "completed")
    fractions = [summary[f"kv_{kind}_fraction"] for kind in SPLIT]
    assert len(fractions) == 7
    assert all(0 <= fraction <= 1 for fraction in fractions)
    if any(row.batch for row in recorder.steps):
        assert sum(fractions) == pytest.approx(1, abs=1e-9)
    else:
        assert all(seq.status is Status.REFUSED for seq in recorder.sequences)
        assert fractions == [0] * 7


@in_its_time
@given(runs())
def test_the_split_of_every_step_is_the_pool_and_no_part_is_negative(run):
    recorder, num_blocks, block_size = run
    split = split_over_time(recorder)
    assert set(split) == set(SPLIT)
    assert all(len(slots) == len(recorder.steps) for slots in split.values())
    for step in range(len(recorder.steps)):
        slots = [int(split[kind][step]) for kind in SPLIT]
        assert min(slots) >= 0
        assert sum(slots) == num_blocks * block_size


@in_its_time
@given(runs(["oracle"]))
def test_an_oracle_promises_nothing_that_is_never_filled(run):
    recorder, num_blocks, block_size = run
    assert not split_over_time(recorder)["internal"].any()
    assert summarize(recorder, num_blocks, block_size, "completed")["kv_internal_fraction"] == 0


@in_its_time
@given(runs(["paged"]))
def test_paged_promises_in_vain_only_to_those_that_it_preempts(run):
    recorder, num_blocks, block_size = run
    internal = split_over_time(recorder)["internal"]
    assert internal.any() <= bool(recorder.preemptions)
    if not recorder.preemptions:
        assert summarize(recorder, num_blocks, block_size, "completed")["kv_internal_fraction"] == 0


@in_its_time
@given(runs(["reserve_max", "reserve_output", "power_of_two"]))
def test_what_a_reservation_promises_in_vain_is_counted_over_the_whole_stay(run):
    """A reserving allocator never preempts, so a stay lasts from the admission to the end of the request."""
    recorder, *_ = run
    assert recorder.preemptions == []
    internal = split_over_time(recorder)["internal"]
    stays = sorted(recorder.stays)
    assert len(stays) == sum(seq.status is Status.FINISHED for seq in recorder.sequences)
    assert sum(end - first for first, end, _ in stays) == sum(step.running for step in recorder.steps)
    for number, step in enumerate(recorder.steps):
        inside = [unused for first, end, unused in stays if first <= number < end]
        assert len(inside) == step.running
        assert internal[number] == sum(inside)


@in_its_time
@given(runs())
def test_tokens_are_conserved(run):
    """Computed once each, but for the last one of a request, and again what a preemption threw away."""
    recorder, num_blocks, block_size = run
    summary = summarize(recorder, num_blocks, block_size, "completed")
    served = [seq for seq in recorder.sequences if seq.status is Status.FINISHED]
    assert summary["completed"] == len(served) == len(recorder.sequences) - summary["refused"]
    assert summary["prompt_tokens"] == sum(len(seq.request.prompt) for seq in served)
    assert summary["output_tokens"] == sum(len(seq.output) for seq in served)
    assert summary["output_tokens"] == sum(min(s.request.max_tokens, s.request.true_output_tokens) for s in served)
    recomputed = sum(seq.recomputed_tokens for seq in served)
    computed = sum(len(seq.request.prompt) + len(seq.output) - 1 for seq in served) + recomputed
    assert summary["computed_tokens"] == sum(step.tokens for step in recorder.steps) == computed
    assert summary["recomputed_tokens"] == recomputed
    # Every run ends with all served, so all that a preemption threw away has been computed again.
    assert recomputed == sum(record.tokens_lost for _, _, record in recorder.preemptions)


@in_its_time
@given(runs())
def test_waste_is_what_is_allocated_and_holds_no_token(run):
    recorder, num_blocks, block_size = run
    summary = summarize(recorder, num_blocks, block_size, "completed")
    tokens = allocated = tokens_when_full = allocated_when_full = 0.0
    for seconds, row in held_for(recorder):
        taken = num_blocks * block_size - row.usage.free
        tokens += seconds * row.usage.tokens
        allocated += seconds * taken
        if row.memory_blocked:
            tokens_when_full += seconds * row.usage.tokens
            allocated_when_full += seconds * taken
    assert summary["kv_waste_fraction"] == pytest.approx(1 - tokens / allocated if allocated else 0, abs=1e-9)
    full = summary["kv_waste_fraction_when_full"]
    if any(row.memory_blocked for row in recorder.steps):
        assert full == pytest.approx(1 - tokens_when_full / allocated_when_full, abs=1e-9)
    else:
        assert full is None


@in_its_time
@given(runs())
def test_the_timeline_has_no_gap_and_lasts_as_long_as_the_run(run):
    recorder, num_blocks, block_size = run
    summary = summarize(recorder, num_blocks, block_size, "completed")
    for row, following in zip(recorder.steps, recorder.steps[1:], strict=False):
        assert row.start_s < row.end_s == following.start_s
    assert summary["duration_s"] == pytest.approx(sum(seconds for seconds, _ in held_for(recorder)))
    assert summary["steps"] == sum(row.batch > 0 for row in recorder.steps)
    for seq in recorder.sequences:
        if seq.finish_s is not None:
            assert seq.request.arrival_s < seq.token_s[0] <= seq.token_s[-1] == seq.finish_s
            assert seq.finish_s <= recorder.steps[-1].end_s
