"""Advancing together changes nothing: the same steps, times, tokens and blocks as looking at each sequence."""

from __future__ import annotations

from dataclasses import asdict

from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.allocator.pool import BlockPool
from pagedlab.core.request import Request, SamplingParams, Status
from pagedlab.engine import serve
from pagedlab.executor.simulated import SimulatedExecutor
from pagedlab.preemption.base import PREEMPTIONS
from pagedlab.preemption.victim.base import VICTIMS
from pagedlab.recorder.metrics import summarize
from pagedlab.recorder.recorder import Recorder
from pagedlab.scheduler.admission.base import ADMISSIONS
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.order.base import ORDERS
from pagedlab.scheduler.scheduler import Scheduler
from tests.hardware.devices import cost_model

import numpy as np

BLOCK = 4


class Watched(SimulatedExecutor):
    """Keeps the blocks that every plan hands out, and for which row."""

    def execute(self, plan):
        self.seen.append(
            (
                sorted(plan.released),
                [(new.row, new.block_ids, new.token_ids.tolist()) for new in plan.admitted],
                [asdict(growth) for growth in plan.grown],
                [asdict(record) for record in plan.preempted],
                plan.total_tokens,
                plan.num_sequences,
                plan.memory_blocked,
            )
        )
        return super().execute(plan)


def served(requests, together, blocks, allocator, batching, tokens, order, victim, watermark, audit_every, stop_after):
    a = ALLOCATORS[allocator](BlockPool(blocks, BLOCK), 64)
    executor = Watched(cost_model(block_size=BLOCK), blocks, 50)
    executor.seen = []
    scheduler = Scheduler(
        a,
        ORDERS[order](0),
        ADMISSIONS["on_demand"](a, watermark),
        BATCHINGS[batching](tokens),
        PREEMPTIONS["recompute"](a),
        VICTIMS[victim](a),
        8,
        executor.foretold if together else None,
    )
    recorder = Recorder()
    stop = (lambda: len(recorder.steps) >= stop_after) if stop_after else (lambda: False)
    serve(requests, scheduler, executor, recorder, stop, audit_every)
    kept = [
        (s.id, s.status, s.computed, s.output, s.token_s, s.finish_s, s.preemptions, s.recomputed_tokens, s.slots_unused)
        for s in recorder.sequences
    ]
    told = (kept, list(recorder.steps), recorder.preemptions, recorder.stays, a.pool.free_ids(), executor.seen)
    return told, summarize(recorder, blocks, BLOCK, "completed"), recorder


REQUESTS = st.lists(
    st.tuples(st.integers(1, 24), st.integers(1, 30), st.integers(1, 30), st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.3])),
    min_size=1,
    max_size=14,
)


@given(
    rows=REQUESTS,
    blocks=st.sampled_from([13, 14, 16, 20, 40, 200]),
    allocator=st.sampled_from(list(ALLOCATORS)),
    batching=st.sampled_from(list(BATCHINGS)),
    tokens=st.sampled_from([3, 8, 32, 512]),
    order=st.sampled_from(list(ORDERS)),
    victim=st.sampled_from(list(VICTIMS)),
    watermark=st.sampled_from([0.0, 0.2]),
    audit_every=st.sampled_from([0, 1, 3]),
    stop_after=st.sampled_from([0, 0, 7, 20]),
)
@settings(max_examples=150, deadline=None)
def test_together_is_the_same_as_each_apart(rows, **choices):
    arrival, requests = 0.0, []
    for i, (prompt, most, true, gap) in enumerate(rows):
        arrival += gap
        ids = np.arange(prompt, dtype=np.int32)
        requests.append(Request(i, ids, most, true, arrival, SamplingParams(seed=i)))
    apart, summary_apart, _ = served(requests, False, **choices)
    together, summary_together, recorder = served(requests, True, **choices)
    for a, b in zip(apart, together, strict=True):
        assert a == b
    assert summary_apart == summary_together
    if not choices["stop_after"]:
        assert all(seq.status in (Status.FINISHED, Status.REFUSED) for seq in recorder.sequences)
