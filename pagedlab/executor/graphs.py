"""Decode steps as CUDA graphs: the launches of a step are recorded once for each batch size, then replayed.

Between two decode steps only numbers change, so they are written into tensors that stay where they are, and the
recorded launches read them there. A batch is padded to the next recorded size by sequences that feed token 0 into
slot -1, which writes nothing, and whose output nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from pagedlab.executor.inputs import StepInputs
from pagedlab.kernels.base import PagedBatch


@dataclass(slots=True)
class Fed:
    """What one forward is fed. token_ids, positions int64 [1, T]; sampled int64 [R]: rows whose logits are wanted."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    sampled: torch.Tensor
    batch: PagedBatch


Forward = Callable[[Fed], torch.Tensor]
# Takes a function of no arguments that fills and returns a tensor; returns one that does it again by replay.
Record = Callable[[Callable[[], torch.Tensor]], Callable[[], torch.Tensor]]


def cuda_record(launches: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Record on a stream of its own, after two warm-up runs in which kernels are compiled and chosen."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launches()
        launches()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = launches()

    def replay() -> torch.Tensor:
        graph.replay()
        return out

    return replay


class DecodeGraphs:
    """The recordings, made when a size is first met. Host-side choices of a kernel (how often a context is split) are
    made once for the longest context, and so hold for every shorter one."""

    def __init__(self, forward: Forward, record: Record, max_num_seqs: int, max_blocks: int, max_model_len: int):
        self._forward = forward
        self._record = record
        self._max_num_seqs = max_num_seqs
        self._max_blocks = max_blocks
        self._max_model_len = max_model_len
        self._recorded: dict[int, tuple[Fed, Callable[[], torch.Tensor]]] = {}

    def run(self, step: StepInputs, device: torch.device) -> torch.Tensor:
        """Logits of the step's sequences, [S, V]: valid until the next run."""
        count = step.num_decodes
        size = next(size for size in self.sizes() if size >= count)
        if size not in self._recorded:
            fed = self._padding(size, device)
            self._recorded[size] = (fed, self._record(lambda: self._launch(fed)))
        fed, replay = self._recorded[size]
        _fill(fed.token_ids[0], step.token_ids, 0)
        _fill(fed.positions[0], step.positions, 0)
        _fill(fed.batch.slot_mapping, step.slot_mapping, -1)
        _fill(fed.batch.context_lens, step.context_lens, 1)
        fed.batch.block_tables.zero_()
        tables = pinned(torch.from_numpy(step.block_tables), device)
        fed.batch.block_tables[:count, : tables.shape[1]].copy_(tables, non_blocking=True)
        return replay()[:count]

    def _launch(self, fed: Fed) -> torch.Tensor:
        fed.batch.scratch.clear()  # what a kernel derived from other numbers
        return self._forward(fed)

    def sizes(self) -> list[int]:
        """1, 2, 4, 8 and then steps of 8: the padding costs little and the recordings stay few."""
        return [size for size in (1, 2, 4) if size <= self._max_num_seqs] + [*range(8, self._max_num_seqs + 8, 8)]

    def _padding(self, size: int, device: torch.device) -> Fed:
        batch = PagedBatch(
            slot_mapping=torch.full((size,), -1, dtype=torch.int64, device=device),
            block_tables=torch.zeros((size, self._max_blocks), dtype=torch.int32, device=device),
            context_lens=torch.ones(size, dtype=torch.int64, device=device),
            query_start=torch.arange(size + 1, dtype=torch.int64, device=device),
            num_decodes=size,
            starts=list(range(size + 1)),
            contexts=[self._max_model_len] * size,
        )
        tokens = torch.zeros((1, size), dtype=torch.int64, device=device)
        return Fed(tokens, torch.zeros_like(tokens), torch.arange(size, dtype=torch.int64, device=device), batch)


def _fill(target: torch.Tensor, values: np.ndarray, padding: int) -> None:
    target.fill_(padding)
    source = pinned(torch.from_numpy(values).to(target.dtype), target.device)
    target[: len(values)].copy_(source, non_blocking=True)


def pinned(source: torch.Tensor, device: torch.device) -> torch.Tensor:
    """For a copy that the host need not wait for, if it is to a GPU."""
    return source.pin_memory() if device.type == "cuda" else source
