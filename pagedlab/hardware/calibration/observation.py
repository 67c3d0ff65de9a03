"""What was measured on a machine, and what the cost model says of the same: the two sides of a calibration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from pagedlab.hardware.cost import CostModel, StepWork


@dataclass(frozen=True, slots=True)
class Observation:
    """How long something took: seconds by the wall, and of this process on all its threads; medians over the rounds.
    spread: the longest less the shortest, of the median.

    operator and its sizes:
        product      m rows times a matrix [k, n] of the model, mean of the layers
        decode       all layers' attention of sequences that feed one token: contexts, block_size
        prefill      all layers' attention of chunks: (new, cached) tokens of each
        copy, swap   so many blocks within the cache; to the host or back
        engine       what a step takes outside of the executor: sequences, admitted, blocks
        rest         the executor's step without products and attention: contexts of decodes, chunks
        step         the executor's step: contexts of decodes, chunks
    A context counts this step's token.
    """

    operator: str
    sizes: dict[str, Any]
    seconds: float
    cpu_seconds: float
    spread: float = 0.0


def work(sizes: dict[str, Any], block_size: int) -> StepWork:
    """The step that `sizes` (contexts, chunks) describes: every sequence samples, nobody is new."""
    contexts, chunks = sizes["contexts"], [(new, cached) for new, cached in sizes["chunks"]]
    count = len(contexts) + len(chunks)
    return StepWork(
        tokens=len(contexts) + sum(new for new, _ in chunks),
        sequences=count,
        decodes=len(contexts),
        decode_slots=_slots(contexts, block_size),
        sampled=count,
        chunks=chunks,
    )


def predicted_s(cost: CostModel, seen: Observation) -> float:
    """Seconds by the cost model, of blocks of the observation's own size where it names one."""
    sizes, layers = seen.sizes, cost.model.shape.num_layers
    match seen.operator:
        case "product":
            return cost.gemm_s(sizes["m"], sizes["k"], sizes["n"])
        case "decode":
            slots = _slots(sizes["contexts"], cost.block_size)
            return cost.decode_attention_s(len(sizes["contexts"]), slots)
        case "prefill":
            return cost.prefill_attention_s([(new, cached) for new, cached in sizes["chunks"]])
        case "copy":
            return cost.copy_s(sizes["blocks"])
        case "swap":
            return cost.swap_in_s(sizes["blocks"])
        case "engine":
            return cost.host_s(sizes["sequences"], sizes["admitted"], sizes["blocks"])
        case "rest":
            step = work(sizes, cost.block_size)
            return layers * cost.elementwise_s(step.tokens) + cost.host_s(step.sequences, 0, 0)
        case _:
            return cost.step_s(work(sizes, cost.block_size))


def data_hash(observations: Iterable[Observation]) -> str:
    """SHA-256 of all that was measured."""
    text = json.dumps([asdict(seen) for seen in observations], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _slots(contexts: list[int], block_size: int) -> int:
    return sum(-(-context // block_size) * block_size for context in contexts)
