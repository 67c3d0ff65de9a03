"""Skipping changes nothing: the same steps, times, preemptions, evictions and slots as planning every step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.allocator.caching_pool import CachingPool
from pagedlab.allocator.fresh_pool import FreshPool
from pagedlab.allocator.host import Host
from pagedlab.allocator.paged import PagedAllocator
from pagedlab.allocator.pool import BlockPool
from pagedlab.allocator.prefixes import Prefixes
from pagedlab.core.request import Request, SamplingParams, Status
from pagedlab.engine import serve
from pagedlab.eviction.base import EVICTIONS
from pagedlab.eviction.leaf_first import LeafFirst
from pagedlab.executor.simulated import SimulatedExecutor
from pagedlab.preemption.base import PREEMPTIONS
from pagedlab.preemption.victim.base import VICTIMS
from pagedlab.prefix_cache.base import PREFIX_CACHES
from pagedlab.prefix_cache.digest import Digest
from pagedlab.recorder.metrics import summarize
from pagedlab.recorder.recorder import Recorder
from pagedlab.scheduler.admission.base import ADMISSIONS
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.order.base import ORDERS
from pagedlab.scheduler.order.fcfs import Fcfs
from pagedlab.scheduler.scheduler import Scheduler
from tests.hardware.devices import cost_model
from tests.lab import ADAPTIVE, BLOCK_BYTES

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


def served(
    requests,
    skip,
    blocks,
    allocator,
    batching,
    tokens,
    order,
    victim,
    admission,
    watermark,
    overlap,
    cache,
    audit,
    preemption,
):
    if cache is None:
        fresh = (
            skip
            and allocator == "paged"
            and preemption == "recompute"
            and all(request.width == 1 for request in requests)
        )
        a = ALLOCATORS[allocator]((FreshPool if fresh else BlockPool)(blocks, BLOCK), 64)
    else:
        index, eviction = cache
        pool = CachingPool(blocks, BLOCK, LeafFirst(EVICTIONS[eviction](blocks)))
        a = PagedAllocator(pool, 64, Prefixes(PREFIX_CACHES[index](BLOCK, Digest()), pool))
    if PREEMPTIONS[preemption].needs_host:
        a.host = Host(blocks // 2, BLOCK, BLOCK_BYTES)
    executor = Counted(cost_model(block_size=BLOCK), blocks, 50, overlap)
    scheduler = Scheduler(
        a,
        ORDERS[order](0) if isinstance(order, str) else order(0),
        ADMISSIONS[admission](a, watermark),
        BATCHINGS[batching](tokens),
        PREEMPTIONS[preemption](a, ADAPTIVE),
        VICTIMS[victim](a),
        8,
        executor.foretold,
        skip,
    )
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
    arrival, requests = 0.0, []
    for i, (prompt, most, true, gap, *outputs) in enumerate(rows):
        arrival += gap
        ids = np.arange(prompt, dtype=np.int32) + (prompt % 2 if choices["cache"] else 0)
        requests.append(Request(i, ids, most, true, arrival, SamplingParams(seed=i, **dict(outputs))))
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
CACHES = [None] * 6 + [(index, name) for index in PREFIX_CACHES for name in ("lru", "arc", "priority_ttl", "sieve")]


@given(
    rows=REQUESTS,
    blocks=st.sampled_from([16, 17, 20, 40, 200]),
    allocator=st.sampled_from(list(ALLOCATORS)),
    batching=st.sampled_from(list(BATCHINGS)),
    tokens=st.sampled_from([3, 8, 32, 512]),
    order=st.sampled_from(list(ORDERS)),
    victim=st.sampled_from(list(VICTIMS)),
    admission=st.sampled_from(list(ADMISSIONS)),
    watermark=st.sampled_from([0.0, 0.2]),
    overlap=st.booleans(),
    cache=st.sampled_from(CACHES),
    audit=st.sampled_from([0, 0, 1, 3]),
    preemption=st.sampled_from(["recompute", *PREEMPTIONS]),
)
@settings(max_examples=200, deadline=None)
def test_skipping_is_the_same_as_planning_every_step(rows, **choices):
    (stepped, of_stepped, _, _), (skipped, of_skipped, executor, recorder) = compared(rows, **choices)
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
    "cache": None,
    "audit": 1,
}
CHOICES |= {"preemption": "recompute"}
BUSY = [(9 + 5 * i % 13, 40, 6 + 7 * i % 23, 0.012 * (i % 3)) for i in range(16)]


@pytest.mark.parametrize("batching", list(BATCHINGS))
@pytest.mark.parametrize("cache", [None, ("hash_chain", "lru")])
def test_most_steps_are_skipped_though_the_pool_is_short(batching, cache):
    (stepped, *_), (skipped, summary, executor, _) = compared(BUSY, **CHOICES | {"batching": batching, "cache": cache})
    assert stepped == skipped
    assert summary["preemptions"] > 0
    assert executor.coasted > (0 if cache else executor.planned / 4)


def test_a_request_alone_is_a_few_stretches_however_long_its_output():
    _, (_, summary, executor, _) = compared([(5, 60, 60, 0.0)], **CHOICES)
    assert (summary["steps"], executor.planned, executor.coasted) == (60, 1, 59)


def test_a_policy_that_says_nothing_is_asked_at_every_step():
    class Silent(Fcfs):
        next_wakeup = ORDERS["fcfs"].__mro__[1].next_wakeup

    (stepped, *_), (skipped, _, executor, _) = compared(BUSY, **CHOICES | {"order": Silent})
    assert stepped == skipped
    assert executor.coasted == 0


def test_a_policy_that_wakes_up_is_asked_then():
    class Clocked(Fcfs):
        def next_wakeup(self, now):
            return (now // 0.02 + 1) * 0.02

    (stepped, *_), (skipped, _, executor, _) = compared(BUSY, **CHOICES | {"order": Clocked})
    assert stepped == skipped
    assert executor.coasted > 0


def test_requests_of_several_outputs_are_never_skipped():
    row = (5, 30, 30, 0.0, ("n", 2))
    (stepped, *_), (skipped, _, executor, _) = compared([row] * 2, **CHOICES)
    assert stepped == skipped
    assert executor.coasted == 0
