"""What a step takes outside of the executor: the engine, over an executor that does nothing."""

from __future__ import annotations

import time
from collections import defaultdict

import numpy as np

from pagedlab.core.clock import WallClock
from pagedlab.core.plan import Outcome, Plan
from pagedlab.core.request import Request
from pagedlab.engine import serve
from pagedlab.executor.base import CachePlan, Executor, finish_reason
from pagedlab.hardware.calibration.observation import Observation
from pagedlab.model.shape import ModelShape
from pagedlab.recorder.recorder import Recorder
from pagedlab.run import build_scheduler
from pagedlab.settings import Settings

_PROMPT, _OUTPUT = 24, 48  # tokens: a block or two at admission, then some as it grows


class _Idle(Executor):
    """Samples token 0 at once. gaps: (wall, CPU) seconds between one step and the next, with the plan of the latter."""

    def __init__(self, num_blocks: int):
        self.clock, self.num_blocks = WallClock(), num_blocks
        self.gaps: list[tuple[float, float, int, int, int]] = []
        self._left: tuple[float, float] | None = None

    @classmethod
    def create(cls, settings: Settings, folder: object, shape: ModelShape, cache: CachePlan) -> Executor:
        return cls(cache.num_blocks(0))

    def execute(self, plan: Plan) -> Outcome:
        if self._left is not None:
            wall, cpu = time.perf_counter() - self._left[0], time.process_time() - self._left[1]
            blocks = sum(len(new.block_ids) for new in plan.admitted) + sum(len(new.block_ids) for new in plan.grown)
            self.gaps.append((wall, cpu, plan.num_sequences, len(plan.admitted), blocks))
        tokens = [0 if plan.samples(i) else -1 for i in range(len(plan.batch))]
        finish = [
            finish_reason(seq, 0, frozenset()) if token == 0 else None
            for seq, token in zip(plan.batch, tokens, strict=True)
        ]
        self._left = time.perf_counter(), time.process_time()
        return Outcome(tokens, finish, 0.0)


def observe_engine(
    settings: Settings, num_blocks: int, max_model_len: int, batches: list[int], rounds: int
) -> list[Observation]:
    """Serve `batches` requests at a time through the configured scheduler and policies; medians of equal steps."""
    found: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for _ in range(rounds):
        for batch in batches:
            executor = _Idle(num_blocks)
            prompt = np.zeros(min(_PROMPT, max_model_len), dtype=np.int32)
            requests = [Request(i, prompt, _OUTPUT + i % 16) for i in range(batch)]
            serve(requests, build_scheduler(settings, num_blocks, max_model_len), executor, Recorder())
            for wall, cpu, *sizes in executor.gaps:
                found[(sizes[0], sizes[1], sizes[2])].append((wall, cpu))
    return [
        Observation("engine", {"sequences": r, "admitted": a, "blocks": b}, *np.median(times, axis=0).tolist())
        for (r, a, b), times in sorted(found.items())
        if len(times) >= rounds
    ]
