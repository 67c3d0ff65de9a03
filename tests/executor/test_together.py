"""Advancing together changes nothing: the same steps, times, tokens and blocks as looking at each sequence."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.core.errors import EngineStalled, InvariantError
from pagedlab.core.request import Request, Status
from pagedlab.engine import serve
from pagedlab.executor.simulated import SimulatedExecutor, _Followed
from pagedlab.recorder.metrics import summarize
from pagedlab.recorder.recorder import Recorder
from pagedlab.scheduler.cohort import Cohort
from tests.executor.policies import policies, requests_of
from tests.hardware.devices import cost_model
from tests.lab import make_scheduler

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


def served(requests, together, blocks, audit_every, stop_after, **choices):
    executor = Watched(cost_model(block_size=BLOCK), blocks, 50, num_host_blocks=blocks)
    executor.seen = []
    scheduler = make_scheduler(
        blocks,
        BLOCK,
        max_num_seqs=8,
        max_model_len=64,
        foretold=executor.foretold if together else None,
        **choices,
    )
    a = scheduler.allocator
    recorder = Recorder()
    stop = (lambda: len(recorder.steps) >= stop_after) if stop_after else (lambda: False)
    serve(requests, scheduler, executor, recorder, stop, audit_every)
    kept = [
        (
            s.id,
            s.status,
            s.computed,
            s.output,
            s.token_s,
            s.finish_s,
            s.preemptions,
            s.recomputed_tokens,
            s.slots_unused,
        )
        for s in recorder.sequences
    ]
    answers = [[output.token_ids for output in s.outputs()] for s in recorder.sequences]
    told = (kept, answers, list(recorder.steps), recorder.preemptions, recorder.stays, a.pool.free_ids(), executor.seen)
    return told, summarize(recorder, blocks, BLOCK, "completed"), recorder


def compared(rows, **choices):
    requests = requests_of(rows, choices.get("prefix_cache"))
    return served(requests, False, **choices), served(requests, True, **choices)


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 24),
        st.integers(1, 30),
        st.integers(1, 30),
        st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.3]),
        st.sampled_from([("n", 1)] * 6 + [("n", 2), ("beam_width", 2), ("beam_width", 3)]),
    ),
    min_size=1,
    max_size=14,
)


@given(
    rows=REQUESTS,
    blocks=st.sampled_from([13, 14, 16, 20, 40, 200]),
    chosen=policies(),
    audit_every=st.sampled_from([0, 1, 3]),
    stop_after=st.sampled_from([0, 0, 7, 20]),
)
@settings(max_examples=150, deadline=None)
def test_together_is_the_same_as_each_apart(rows, chosen, **choices):
    (apart, summary_apart, _), (together, summary_together, recorder) = compared(rows, **chosen, **choices)
    for a, b in zip(apart, together, strict=True):
        assert a == b
    # Gaps that are the same are counted, and so summed in another order.
    itl_apart, itl_together = summary_apart.pop("itl_s"), summary_together.pop("itl_s")
    assert summary_apart == summary_together
    assert itl_apart == itl_together or itl_apart == pytest.approx(itl_together, rel=1e-12)
    if not choices["stop_after"]:
        assert all(seq.status in (Status.FINISHED, Status.REFUSED) for seq in recorder.sequences)


def test_an_abort_between_steps_leaves_the_others_as_they_were():
    outputs = {}
    for together in (False, True):
        executor = SimulatedExecutor(cost_model(block_size=BLOCK), 40, 50)
        scheduler = make_scheduler(40, foretold=executor.foretold if together else None)
        seqs = [scheduler.submit(Request(i, np.arange(9, dtype=np.int32), 20, 20)) for i in range(4)]
        for step in range(60):
            if not scheduler.has_work:
                break
            if step == 7:
                scheduler.abort(seqs[1])
                scheduler.audit()
            plan = scheduler.schedule()
            scheduler.commit(plan, executor.execute(plan), float(step))
        scheduler.audit()
        assert scheduler.allocator.pool.num_free == 40
        outputs[together] = [(seq.finish_reason, seq.output, seq.token_s, seq.computed) for seq in seqs]
    assert outputs[True] == outputs[False]
    assert outputs[True][1][0] == "abort"
    assert [len(output) for _, output, _, _ in outputs[True]] == [20, 7, 20, 20]


# A workload in which all of it happens: arrivals amid decodes, chunks, preemptions, several ends in a step.
BUSY = [(9 + 5 * i % 13, 40, 6 + 7 * i % 23, 0.012 * (i % 3)) for i in range(16)]
CHOICES = {"allocator": "paged", "batching": "chunked", "tokens": 16, "order": "fcfs", "victim": "last_arrived"}
CHOICES |= {"blocks": 20, "watermark": 0.0, "audit_every": 1, "stop_after": 0}


def test_the_busy_workload_is_busy():
    _, (_, summary, recorder) = compared(BUSY, **CHOICES)
    assert summary["preemptions"] > 5
    assert summary["completed"] == 16
    ends = Counter(seq.finish_s for seq in recorder.sequences)
    assert max(ends.values()) > 1


FAULTS = {
    "a_block_comes_a_step_late": (Cohort, "_await_full", "len(self._times) + left", "len(self._times) + left + 1"),
    "a_block_comes_a_step_early": (Cohort, "_await_full", "len(self._times) + left", "len(self._times) + left - 1"),
    "who_left_still_grows": (Cohort, "_filled", "if self._members.get(m.seq.id) is m", ""),
    "memory_is_not_looked_at": (Cohort, "decode", "self._num_full() > self._allocator.pool.num_available", "False"),
    "the_limit_is_not_looked_at": (Cohort, "decode", "len(self._members) > most", "False"),
    "a_left_over_token_is_not_seen": (Cohort, "decode", "seq.to_compute == 1", "False"),
    "the_last_admitted_comes_first": (Cohort, "admitted", "self._admissions += 1", "self._admissions -= 1"),
    "slots_are_not_counted": (Cohort, "_give_blocks", "self._allocator.fill", "(lambda count: None)"),
    "times_are_those_of_all_steps": (
        Cohort,
        "_settle",
        "stretch(since, now)",
        "stretch(since - 1, now - 1)",
    ),
    "an_end_is_not_settled": (Cohort, "left", "self._settle(member, steps)", "pass"),
    "nobody_is_told_of_the_end_of_it": (Cohort, "dissolve", "[], True", "[], False"),
    "contexts_do_not_grow": (_Followed, "step", "self.blocks += self.enter[self.steps % self.size]", "pass"),
    "who_ended_is_still_priced": (_Followed, "ended", "self.enter[enter] -= 1", "pass"),
    "everybody_goes_on_a_step_longer": (_Followed, "ended", "== self.steps:", "== self.steps - 1:"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_caught(name, monkeypatch):
    owner, method, old, new = FAULTS[name]
    source = textwrap.dedent(inspect.getsource(getattr(owner, method)))
    assert source.count(old) == 1
    namespace = {}
    exec(
        f"from __future__ import annotations\n{source.replace(old, new)}",
        vars(sys.modules[owner.__module__]),
        namespace,
    )
    monkeypatch.setattr(owner, method, namespace[method])
    different = False
    for batching in ("chunked", "prefill_first"):
        try:
            (apart, _, _), (together, _, _) = compared(BUSY, **CHOICES | {"batching": batching, "tokens": 3})
        except (InvariantError, EngineStalled, LookupError, ValueError):
            return
        different |= apart != together
    assert different
