"""Whatever becomes of a victim, every request generates what it would alone: random programs on tiny pools, with every
invariant checked after every step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.core.request import Status
from tests.lab import naive_answer, request, run

PREEMPTIONS = ("recompute", "swap", "adaptive")


@st.composite
def workloads(draw):
    """Prompts of few different tokens, so that a prefix cache finds something; some ask for several outputs."""
    requests = []
    for i in range(draw(st.integers(2, 6))):
        new = draw(st.integers(1, 10))
        kind = draw(st.sampled_from(["greedy", "sampled", "n", "best_of", "beams"]))
        several = {
            "greedy": {},
            "sampled": {"temperature": 1.0},
            "n": {"temperature": 1.0, "n": draw(st.integers(2, 3))},
            "best_of": {"temperature": 1.0, "best_of": 2},
            "beams": {"beam_width": draw(st.integers(2, 3)), "length_penalty": draw(st.sampled_from([0.0, 1.0]))},
        }[kind]
        requests.append(
            request(
                draw(st.lists(st.integers(0, 1), min_size=1, max_size=10)),
                new,
                id=i,
                arrival=draw(st.sampled_from([0.0, 0.0, 0.015, 0.1])),
                true=draw(st.integers(1, new)),
                seed=draw(st.integers(0, 3)),
                **several,
            )
        )
    return sorted(requests, key=lambda r: r.arrival_s)


def blocks_for_one(r, block_size):
    """The most that a request alone can need."""
    shared = len(r.prompt) // block_size
    return shared + r.width * (-(-(len(r.prompt) + r.max_tokens - 1) // block_size) - shared)


@pytest.mark.parametrize("preemption", PREEMPTIONS)
@pytest.mark.parametrize("cache", ["none", "hash_chain", "radix"])
@given(
    workloads(),
    st.sampled_from(["chunked", "prefill_first"]),
    st.sampled_from([1, 2, 3, 4]),
    st.integers(0, 4),
    st.sampled_from([3, 8, 64]),
    st.sampled_from(["fcfs", "random"]),
    st.sampled_from(["last_arrived", "most_blocks"]),
    st.sampled_from([0, 1, 3, 8, 64]),
    st.booleans(),
)
def test_tokens_do_not_depend_on_what_becomes_of_a_victim(
    preemption, cache, requests, batching, block_size, spare, tokens, order, victim, host_blocks, leaf_first
):
    caching = {} if cache == "none" else {"prefix_cache": cache, "leaf_first": leaf_first}
    recorder, _ = run(
        requests,
        max(blocks_for_one(r, block_size) for r in requests) + spare,
        block_size,
        batching=batching,
        tokens=tokens,
        order=order,
        victim=victim,
        max_model_len=max(r.max_slots for r in requests),
        preemption=preemption,
        host_blocks=host_blocks,
        **caching,
    )
    for seq in recorder.sequences:
        assert seq.status is Status.FINISHED
        assert [o.token_ids for o in seq.outputs()] == [o.token_ids for o in naive_answer(seq.request)]
    for step in recorder.steps:
        assert 0 <= step.host_blocks <= host_blocks
    kinds = [record.kind for _, _, record in recorder.preemptions]
    assert len(recorder.returns) == kinds.count("swap")
    if preemption == "recompute" or host_blocks == 0:
        assert "swap" not in kinds
