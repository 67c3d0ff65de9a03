"""Steps of the executor, made by hand: any batch at any context, and nothing need be served to get there."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagedlab.core.plan import Admission, Plan
from pagedlab.core.request import Request, Sequence
from pagedlab.executor.torch import TorchExecutor
from pagedlab.microprofile.turns import Cell


def step_cell(
    executor: TorchExecutor,
    operator: str,
    contexts: list[int],
    chunks: list[tuple[int, int]],
    vocab_size: int,
    seed: int,
) -> Cell:
    """contexts: of sequences that feed one token, itself included. chunks: (new, cached) tokens of the others. What is
    cached was never computed: how long a step takes does not depend on it."""
    dice = np.random.default_rng(seed)
    block_size, entering = executor.inputs.block_size, Plan()
    fed = [*[(1, context - 1) for context in contexts], *chunks]
    ids = iter(dice.permutation(executor.num_blocks).tolist())
    plan = Plan()
    for row, (new, cached) in enumerate(fed):
        prompt = dice.integers(0, vocab_size, new + cached).astype(np.int32)
        request = Request(row, prompt, max_tokens=2)
        table = [next(ids) for _ in range(-(-(new + cached) // block_size))]
        entering.admitted.append(Admission(row, request, prompt, table, cached))
        plan.add(Sequence(request, row=row, computed=cached), new)
    sizes: dict[str, Any] = {"contexts": contexts, "chunks": [list(chunk) for chunk in chunks]}
    return Cell(operator, sizes, lambda: executor.execute(plan), prepare=lambda: executor.inputs.apply(entering))
