"""Policies decide when a token is made, never which: on a real model, each order, batching, preemption and victim gives
the tokens of transformers' `generate`, greedy, and those of a run with room for all, sampled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagedlab.preemption.victim.base import VICTIMS
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.order.base import ORDERS
from tests.torch_lab import Served, conf_model, load, outputs, run_model, sampling, with_answers

SIZES = [(17, 30), (1, 25), (58, 38), (16, 1), (15, 40), (33, 20), (3, 12), (40, 24)]
PREEMPTIONS = ("recompute", "swap", "adaptive")
# Every order with every batching; preemptions and victims go round, each meets each.
COMBINATIONS = [
    (order, batching, PREEMPTIONS[i % 3], victim)
    for i, (order, batching, victim) in enumerate(
        (order, batching, list(VICTIMS)[(3 * o + b) % len(list(VICTIMS))])
        for o, order in enumerate(ORDERS)
        for b, batching in enumerate(BATCHINGS)
    )
]


@pytest.fixture(scope="module")
def tiny() -> Served:
    served = with_answers(*load(conf_model("tiny_llama")), SIZES)
    requests = [replace(r, priority=(5 * r.id) % 3, client="ab"[r.id % 2]) for r in served.requests]
    return replace(served, requests=requests)


def tight(tiny, requests, order, batching, preemption, victim):
    return run_model(
        tiny.model,
        tiny.shape,
        requests,
        29,
        order=order,
        batching=batching,
        preemption=preemption,
        victim=victim,
        preemptive=order in ("priority", "srtf", "mlfq") and batching != "static",
        prefix_cache="radix",
        tokens=64,
    )


@pytest.mark.parametrize(("order", "batching", "preemption", "victim"), COMBINATIONS)
def test_tokens_are_those_of_generate(tiny, order, batching, preemption, victim):
    recorder = tight(tiny, tiny.requests, order, batching, preemption, victim)
    assert recorder.preemptions
    assert outputs(recorder) == tiny.outputs


@pytest.mark.parametrize(("order", "batching", "preemption", "victim"), COMBINATIONS[::3])
def test_sampled_tokens_are_those_of_a_run_with_room(tiny, order, batching, preemption, victim):
    requests = sampling(tiny.requests, temperature=0.8, top_k=40)
    assert outputs(tight(tiny, requests, order, batching, preemption, victim)) == outputs(
        run_model(tiny.model, tiny.shape, requests, 200)
    )
