"""Skipping changes nothing: the same steps, times, preemptions, evictions and slots as planning every step."""

from __future__ import annotations

import inspect
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.allocator.pool import BlockPool
from pagedlab.allocator.run_pool import RunPool
from pagedlab.allocator.stack_pool import StackPool
from pagedlab.core.errors import EngineStalled, InvariantError
from pagedlab.core.request import Request, Status
from pagedlab.engine import Engine, serve
from pagedlab.executor.simulated import SimulatedExecutor
from pagedlab.preemption.base import PREEMPTIONS
from pagedlab.recorder.metrics import summarize
from pagedlab.recorder.recorder import Recorder
from pagedlab.recorder.timeline import Timeline
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.batching.prefill_first import PrefillFirst
from pagedlab.scheduler.order.base import Order
from pagedlab.scheduler.order.fcfs import Fcfs
from pagedlab.scheduler.owing import OwingCohort
from pagedlab.scheduler.scheduler import Scheduler
from tests.executor.policies import policies, requests_of
from tests.hardware.devices import cost_model
from tests.lab import make_scheduler

BLOCK = 4


class Counted(SimulatedExecutor):
    """How many steps were planned, and how many were not: of prompts, and of those that decode."""

    planned = entered = coasted = stretches = 0

    def execute(self, plan):
        self.planned += 1
        return super().execute(plan)

    def enter(self, *args):
        self.entered += 1
        return super().enter(*args)

    def coast(self, *args):
        self.stretches += 1
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
    assert executor.planned + executor.entered + executor.coasted == of_skipped["steps"]
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


# ---- more than one thing at a time ----------------------------------------------------------------------------------

PIECES = [(18 + i, 40, 12, 0.02) for i in range(6)]
ALONE = [
    (4, 40, 3, 0.0),
    (4, 40, 40, 0.0),
    (4, 40, 40, 0.0),
]  # of 16 blocks two of them need 22, when the first has gone


def test_steps_of_prompts_need_no_plan_where_they_are_apart_from_decodes():
    choices = CHOICES | {"batching": "prefill_first", "tokens": 32, "blocks": 200}
    (stepped, *_), (skipped, _, executor, _) = compared(BUSY, **choices)
    assert stepped == skipped
    assert executor.entered > 8
    assert executor.planned < 4  # the first step in which the next in line gets no row, and such


def test_prompts_in_pieces_need_no_plan_but_for_a_last_piece_that_looks_like_a_decode():
    choices = CHOICES | {"batching": "prefill_first", "tokens": 8, "blocks": 200}
    (stepped, *_), (skipped, _, executor, _) = compared(PIECES, **choices)
    assert stepped == skipped
    assert executor.entered > 2 * len(PIECES)
    assert executor.planned < executor.entered / 3


def test_a_stretch_goes_on_when_somebody_ends():
    rows = [(5, 40, 9 + 3 * i, 0.0) for i in range(8)]
    choices = CHOICES | {"batching": "prefill_first", "tokens": 512, "blocks": 200}
    (stepped, *_), (skipped, summary, executor, _) = compared(rows, **choices)
    assert stepped == skipped
    assert (executor.planned, executor.entered, executor.stretches) == (0, 1, 1)
    assert executor.coasted == summary["steps"] - 1 == 9 + 3 * 7 - 1


def test_a_stretch_ends_with_an_answer_to_which_somebody_has_a_question():
    """It comes at once, so the stretch must not go on: two others run 30 steps longer."""

    class Again:
        turns = 1

        def request(self, before, answer, ended_s):
            return Request(9, np.arange(6, dtype=np.int32), 5, 5, ended_s)

    requests = [Request(i, np.arange(4 + i, dtype=np.int32), 40, 10 + 15 * i) for i in range(3)]
    requests[0] = replace(requests[0], follow_up=Again())
    choices = CHOICES | {"batching": "prefill_first", "tokens": 512, "blocks": 200}
    (stepped, *_), (skipped, _, executor, recorder) = (served(requests, skip, **choices) for skip in (False, True))
    assert stepped == skipped
    assert recorder.admitted_s[9] == recorder.sequences[0].finish_s
    assert executor.stretches > 1


FAULTS = {
    "who_ended_still_grows": (OwingCohort, "_unplanned", "due[member.due] -= 1", "pass"),
    "what_they_held_is_free_twice": (OwingCohort, "_unplanned", "left += ", "left += 2 * "),
    "growth_is_that_of_the_step_before": (OwingCohort, "_unplanned", "due[step % size]", "due[(step - 1) % size]"),
    "contexts_do_not_grow": (SimulatedExecutor, "coast", "blocks += enter[steps % size]", "pass"),
    "they_are_priced_as_before_the_end": (SimulatedExecutor, "coast", "of_decodes(count", "of_decodes(together.count"),
    "blocks_are_counted_from_the_first_piece": (
        SimulatedExecutor,
        "coast",
        "blocks, grown_by = followed.blocks, 0",
        "",
    ),
    "nobody_is_told_of_the_end": (SimulatedExecutor, "coast", "together.ended += ended", "pass"),
    "it_goes_on_whoever_waits": (Scheduler, "coasting", "not (waits or", "not (False or"),
    "a_prompt_is_fed_beyond_the_limit": (PrefillFirst, "enter", "whole=entry.total_tokens > 0", "whole=False"),
    "a_prompt_in_pieces_is_forgotten": (PrefillFirst, "enter", "scheduler.prefilling()", "[]"),
    "a_piece_is_a_whole_prompt": (
        Scheduler,
        "entered",
        "samples = seq.computed == len(seq.request.prompt)",
        "samples = 1",
    ),
    "who_waits_is_not_looked_at": (Scheduler, "entering", "self._look_at_queue()", "pass"),
    "slots_are_those_of_the_first_piece": (Timeline, "_since", "steps = np.arange(1,", "steps = np.arange(0,"),
    "who_ended_runs_on": (Engine, "_coast", "running - len(finished)", "running"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_caught(name, monkeypatch):
    owner, method, old, new = FAULTS[name]
    source = textwrap.dedent(inspect.getsource(getattr(owner, method)))
    assert old in source
    namespace = {}
    mutated = f"from __future__ import annotations\n{source.replace(old, new)}"
    exec(compile(mutated, f"<mutated {method}>", "exec"), vars(sys.modules[owner.__module__]), namespace)
    monkeypatch.setattr(owner, method, namespace[method])
    different = False
    for rows, tokens, blocks in ((BUSY, 8, 200), (BUSY, 32, 24), (PIECES, 8, 200), (ALONE, 512, 16)):
        choices = CHOICES | {"batching": "prefill_first", "tokens": tokens, "blocks": blocks}
        try:
            (stepped, *_), (skipped, *_) = compared(rows, **choices)
        except (InvariantError, EngineStalled, LookupError, ValueError):
            return
        different |= stepped != skipped
    assert different
