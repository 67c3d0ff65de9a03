"""Swapping on a real model: what comes back from the host is what went there, bit by bit, and the tokens are those of
transformers' `generate`."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from pagedlab.core.request import Request, SamplingParams
from pagedlab.executor.torch import TorchExecutor
from tests.lab import make_scheduler
from tests.torch_lab import Served, conf_model, load, make_torch_executor, outputs, run_model, sampling, with_answers

SIZES = [(17, 30), (1, 25), (58, 38), (16, 1), (15, 40), (33, 20), (3, 12), (40, 24)]
KERNELS = ("cpu", "torch", "reference")


@pytest.fixture(scope="module")
def tiny() -> Served:
    return with_answers(*load(conf_model("tiny_llama")), SIZES)


def kv(executor, scheduler, part):
    """Keys and values of all that a sequence has computed, of all layers: [2 x layers, tokens, heads, size]."""
    table = torch.tensor(scheduler.allocator.holdings[part.key].table)
    return torch.stack([cache[table].flatten(0, 1)[: part.computed] for cache in executor.k_cache + executor.v_cache])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [1, 3])
def test_what_comes_back_is_what_went_bit_by_bit(dtype, kernel, width):
    settings = conf_model("tiny_llama")
    settings.dtype = dtype
    model, shape = load(settings)
    blocks = 18 if width == 1 else 24
    scheduler = make_scheduler(blocks, preemption="swap", max_model_len=100)
    executor = make_torch_executor(model, shape, blocks, 4, kernel, 16, 100, host_blocks=blocks)
    random = np.random.default_rng(0)
    several = SamplingParams(temperature=0.0 if width == 1 else 1.0, n=width)
    for i, (prompt, new) in enumerate([(30, 20), (19, 20), (9, 12)]):
        scheduler.submit(Request(i, random.integers(5, 500, prompt).astype(np.int32), new, sampling=several))
    gone: dict[tuple[int, int], torch.Tensor] = {}
    compared = 0
    while scheduler.has_work:
        before = {
            (seq.id, part.index): kv(executor, scheduler, part) for seq in scheduler.running for part in seq.feeding
        }
        plan = scheduler.schedule()
        for record in plan.preempted:
            assert record.kind == "swap"
            gone |= {key: held for key, held in before.items() if key[0] == record.victim}
        back = {record.request_id for record in plan.returned}
        waiting = [(seq, part) for seq in scheduler.running if seq.id in back for part in seq.feeding]
        outcome = executor.execute(plan)
        for seq, part in waiting:
            went = gone.pop((seq.id, part.index))
            now = kv(executor, scheduler, part)
            assert went.dtype is getattr(torch, dtype)
            assert torch.equal(went.view(torch.uint8), now.view(torch.uint8))
            compared += went.shape[1]
        assert (outcome.swap_out_s > 0) == bool(plan.swapped_out)
        assert (outcome.swap_in_s > 0) == bool(plan.swapped_in)
        assert 0 <= outcome.swap_s <= outcome.seconds
        scheduler.commit(plan, outcome, 0.0)
        scheduler.audit()
    executor.close()
    assert not gone
    assert compared > 40, "hardly anything was swapped"


@pytest.mark.parametrize(
    ("preemption", "batching", "block_size", "kernel"),
    [
        (preemption, batching, block_size, KERNELS[i % 3])
        for i, (preemption, batching, block_size) in enumerate(
            product(["swap", "adaptive"], ["chunked", "prefill_first"], [1, 4, 16])
        )
    ],
)
def test_tokens_are_those_of_generate(tiny, preemption, batching, block_size, kernel):
    recorder = run_model(
        tiny.model,
        tiny.shape,
        tiny.requests,
        -(-116 // block_size),
        block_size,
        kernel,
        preemption=preemption,
        batching=batching,
        tokens={"chunked": 16, "prefill_first": 64}[batching],
    )
    assert outputs(recorder) == tiny.outputs
    assert recorder.preemptions
    if preemption == "swap":
        assert all(record.kind == "swap" for _, _, record in recorder.preemptions)
        assert sum(seq.recomputed_tokens for seq in recorder.sequences) == 0


@pytest.mark.parametrize("cache", ["hash_chain", "radix"])
@pytest.mark.parametrize("host_blocks", [3, 60])
def test_tokens_are_those_of_generate_with_a_prefix_cache(tiny, cache, host_blocks):
    recorder = run_model(
        tiny.model, tiny.shape, tiny.requests, 29, preemption="swap", host_blocks=host_blocks, prefix_cache=cache
    )
    assert outputs(recorder) == tiny.outputs
    kinds = {record.kind for _, _, record in recorder.preemptions}
    assert kinds == ({"recompute"} if host_blocks == 3 else {"swap"})


def test_sampled_tokens_are_those_of_a_run_without_preemptions(tiny):
    requests = sampling(tiny.requests, temperature=0.8, top_k=40)
    roomy = run_model(tiny.model, tiny.shape, requests, 200)
    tight = run_model(tiny.model, tiny.shape, requests, 29, preemption="swap")
    assert not roomy.preemptions
    assert tight.preemptions
    assert outputs(tight) == outputs(roomy)


def test_beams_are_those_of_a_run_without_preemptions(tiny):
    requests = [Request(r.id, r.prompt, 12, 12, sampling=SamplingParams(beam_width=3)) for r in tiny.requests[:5]]
    roomy = run_model(tiny.model, tiny.shape, requests, 200)
    tight = run_model(tiny.model, tiny.shape, requests, 34, preemption="swap")
    assert not roomy.preemptions
    assert {record.kind for _, _, record in tight.preemptions} == {"swap"}
    for one, other in zip(tight.sequences, roomy.sequences, strict=True):
        assert [beam.token_ids for beam in one.outputs()] == [beam.token_ids for beam in other.outputs()]
        scores = [beam.score for beam in other.outputs()]
        assert [beam.score for beam in one.outputs()] == pytest.approx(scores, abs=1e-5)


def test_a_swap_that_is_lost_is_noticed(tiny, monkeypatch):
    """The comparison can fail: host blocks come back one too far."""
    swap = TorchExecutor._swap

    def shifted(self, pairs, sources, targets):
        count = sources[0].shape[0]
        if sources is self.host_cache:
            pairs = [((host + 1) % count, block) for host, block in pairs]
        return swap(self, pairs, sources, targets)

    monkeypatch.setattr(TorchExecutor, "_swap", shifted)
    recorder = run_model(tiny.model, tiny.shape, tiny.requests, 29, preemption="swap")
    assert outputs(recorder) != tiny.outputs
