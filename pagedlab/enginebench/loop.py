"""What a decode step costs beside the model: scheduler, memory and inputs, without a forward."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from pagedlab.core.plan import Outcome
from pagedlab.core.request import Request, Sequence
from pagedlab.executor.base import finish_reason
from pagedlab.executor.inputs import InputBuilder
from pagedlab.recorder.recorder import Recorder
from pagedlab.run import build_scheduler
from pagedlab.settings import Settings

_PROMPT = 128


def loop_costs(settings: Settings, batch: int, steps: int) -> dict[str, Any]:
    """Milliseconds a step, medians over `steps` steps in which `batch` sequences decode, and nobody comes or goes.

    The parts are those of the engine's loop: `schedule` (who runs, and blocks for those that need one), `inputs`
    (tables, slots, positions and token ids), `commit` (tokens appended, ends looked for), `recorder`.
    """
    length = _PROMPT + steps + 2
    blocks = batch * (-(-length // settings.block_size))
    settings.scheduler.max_num_seqs = batch
    scheduler = build_scheduler(settings, blocks, length)
    inputs, recorder = InputBuilder(batch, length, settings.block_size), Recorder()
    for i in range(batch):
        recorder.submitted(scheduler.submit(Request(i, np.zeros(_PROMPT, dtype=np.int32), steps + 2, steps + 2)))
    parts: dict[str, list[float]] = {name: [] for name in ("schedule", "inputs", "commit", "recorder")}
    now = 0.0
    while scheduler.has_work:
        marks = [time.perf_counter()]
        plan = scheduler.schedule(now)
        marks.append(time.perf_counter())
        inputs.apply(plan)
        step = inputs.build(plan)
        inputs.append(step.sampled_seqs, np.zeros(len(step.sampled_seqs), dtype=np.int32))
        marks.append(time.perf_counter())
        outcome = _sampled(plan.batch, step.sampled_seqs.tolist())
        slots, counts = scheduler.allocator.split(), scheduler.allocator.cache_counts()
        running, waiting = scheduler.num_running, scheduler.num_waiting
        steady = step.num_decodes == batch
        marks.append(time.perf_counter())
        finished = scheduler.commit(plan, outcome, now + 1)
        marks.append(time.perf_counter())
        recorder.step(now, now + 1, plan, outcome, slots, counts, running, waiting, finished)
        marks.append(time.perf_counter())
        if steady and not finished:
            for name, begin in zip(parts, (0, 1, 3, 4), strict=True):
                parts[name].append(1e3 * (marks[begin + 1] - marks[begin]))
        now += 1
    medians = {name: float(np.median(spent)) for name, spent in parts.items()}
    return {"batch": batch, "steps": len(parts["schedule"]), **{f"{name}_ms": ms for name, ms in medians.items()}}


def _sampled(batch: list[Sequence], sampled: list[int]) -> Outcome:
    tokens = [-1] * len(batch)
    finish: list[str | None] = [None] * len(batch)
    for i in sampled:
        tokens[i], finish[i] = 0, finish_reason(batch[i], 0, frozenset())
    return Outcome(tokens, finish, 1.0)
