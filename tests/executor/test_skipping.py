"""Skipping changes nothing: the same steps, times, preemptions, evictions and slots as planning every step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.allocator.pool import BlockPool
from pagedlab.allocator.run_pool import RunPool
from pagedlab.allocator.stack_pool import StackPool
from pagedlab.core.request import Status
from pagedlab.engine import serve
from pagedlab.executor.simulated import SimulatedExecutor
from pagedlab.preemption.base import PREEMPTIONS
from pagedlab.recorder.metrics import summarize
from pagedlab.recorder.recorder import Recorder
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.order.base import Order
from pagedlab.scheduler.order.fcfs import Fcfs
from tests.executor.policies import policies, requests_of
from tests.hardware.devices import cost_model
from tests.lab import make_scheduler

BLOCK = 4


class Counted(SimulatedExecutor):
    """How many steps were planned, and how many were not."""

    planned = coasted = 0

    def execute(self, plan):
        self.planned += 1
        return super().execute(plan)

    def coast(self, *args):
        steps = super().coast(*args)
        self.coasted += len(steps.ends)
        return steps


def served(requests, skip, blocks, overlap, audit, **choices):
    counted = choices["preemption"] == "recompute" and "prefix_cache" not in choices
    fresh = skip and counted and all(request.width == 1 for request in requests)
    executor = Counted(cost_model(block_size=BLOCK), blocks, 50, overlap, num_host_blocks=blocks // 2)
    scheduler = make_scheduler(
        blocks,
        BLOCK,
        max_num_seqs=8,
        max_model_len=64,
        foretold=executor.foretold,
        skip=skip,
        host_blocks=blocks // 2,
        pool=BlockPool if not fresh else StackPool if choices["allocator"] == "paged" else RunPool,
        **choices,
    )
    a = scheduler.allocator
    recorder = Recorder()
    serve(requests, scheduler, executor, recorder, audit_every=audit)
    kept = [
        (
            s.id,
            s.status,
            s.computed,
            list(s.output),
            list(s.token_s),
            s.finish_s,
            s.preemptions,
            s.recomputed_tokens,
            s.cached_tokens,
            s.slots_unused,
            [list(output.token_ids) for output in s.outputs()],
        )
        for s in recorder.sequences
    ]
    told = (kept, list(recorder.steps), recorder.preemptions, recorder.stays, a.pool.num_free)
    return told, summarize(recorder, blocks, BLOCK, "completed"), executor, recorder


def compared(rows, **choices):
    requests = requests_of(rows, "prefix_cache" in choices)
    return served(requests, False, **choices), served(requests, True, **choices)


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 24),
        st.integers(1, 40),
        st.integers(1, 40),
        st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.3]),
        st.sampled_from([("n", 1)] * 9 + [("n", 2), ("beam_width", 2)]),
    ),
    min_size=1,
    max_size=14,
)


@given(
    rows=REQUESTS,
    blocks=st.sampled_from([16, 17, 20, 40, 200]),
    chosen=policies(("lru", "arc", "priority_ttl", "sieve"), ("recompute", *PREEMPTIONS)),
    overlap=st.booleans(),
    audit=st.sampled_from([0, 0, 1, 3]),
)
@settings(max_examples=200, deadline=None)
def test_skipping_is_the_same_as_planning_every_step(rows, chosen, **choices):
    (stepped, of_stepped, _, _), (skipped, of_skipped, executor, recorder) = compared(rows, **chosen, **choices)
    for a, b in zip(stepped, skipped, strict=True):
        assert a == b  # the times to the last bit
    assert of_stepped == of_skipped
    assert executor.planned + executor.coasted == of_skipped["steps"]
    assert all(seq.status in (Status.FINISHED, Status.REFUSED) for seq in recorder.sequences)


CHOICES = {"blocks": 24, "allocator": "paged", "batching": "chunked", "tokens": 32, "order": "fcfs"}
CHOICES |= {
    "victim": "last_arrived",
    "admission": "on_demand",
    "watermark": 0.0,
    "overlap": False,
    "audit": 1,
}
CHOICES |= {"preemption": "recompute"}
BUSY = [(9 + 5 * i % 13, 40, 6 + 7 * i % 23, 0.012 * (i % 3)) for i in range(16)]


@pytest.mark.parametrize("batching", list(BATCHINGS))
@pytest.mark.parametrize("cache", [{}, {"prefix_cache": "hash_chain"}])
def test_most_steps_are_skipped_though_the_pool_is_short(batching, cache):
    (stepped, *_), (skipped, summary, executor, _) = compared(BUSY, **CHOICES | {"batching": batching} | cache)
    assert stepped == skipped
    assert summary["preemptions"] > 0
    assert executor.coasted > (0 if cache else executor.planned / 4)


def test_a_request_alone_is_a_few_stretches_however_long_its_output():
    _, (_, summary, executor, _) = compared([(5, 60, 60, 0.0)], **CHOICES)
    assert (summary["steps"], executor.planned, executor.coasted) == (60, 1, 59)


def test_a_policy_that_says_nothing_is_asked_at_every_step(monkeypatch):
    monkeypatch.setattr(Fcfs, "next_wakeup", Order.next_wakeup)
    (stepped, *_), (skipped, _, executor, _) = compared(BUSY, **CHOICES)
    assert stepped == skipped
    assert executor.coasted == 0


def test_a_policy_that_wakes_up_is_asked_then(monkeypatch):
    monkeypatch.setattr(Fcfs, "next_wakeup", lambda self, now: (now // 0.02 + 1) * 0.02)
    (stepped, *_), (skipped, _, executor, _) = compared(BUSY, **CHOICES)
    assert stepped == skipped
    assert executor.coasted > 0


@pytest.mark.parametrize(
    "looks",
    [
        {"order": "mlfq"},
        {"order": "vtc"},
        {"order": "priority", "preemptive": True},
        {"order": "srtf", "preemptive": True},
        {"admission": "estimated_peak"},
        {"preemption": "adaptive"},
    ],
)
def test_a_policy_that_looks_at_each_step_is_asked_at_every_one(looks):
    (stepped, *_), (skipped, _, executor, _) = compared(BUSY, **CHOICES | looks)
    assert stepped == skipped
    assert executor.coasted == 0


@pytest.mark.parametrize("looks", [{"order": "priority"}, {"order": "srtf"}, {"admission": "reserve_output"}])
def test_others_let_steps_be_skipped(looks):
    (stepped, *_), (skipped, _, executor, _) = compared(BUSY, **CHOICES | looks)
    assert stepped == skipped
    assert executor.coasted > executor.planned / 4


def test_a_static_batch_closes_though_the_step_that_closes_it_could_be_skipped():
    """One that arrives amid the decodes of another waits until that has ended."""
    rows = [(4, 20, 20, 0.0), (4, 3, 3, 0.1)]
    (stepped, *_), (skipped, _, executor, recorder) = compared(rows, **CHOICES | {"batching": "static"})
    assert stepped == skipped
    assert executor.coasted > 0
    first, second = recorder.sequences
    assert first.request.arrival_s < second.request.arrival_s < first.finish_s <= recorder.admitted_s[1]


def test_requests_of_several_outputs_are_never_skipped():
    row = (5, 30, 30, 0.0, ("n", 2))
    (stepped, *_), (skipped, _, executor, _) = compared([row] * 2, **CHOICES)
    assert stepped == skipped
    assert executor.coasted == 0
