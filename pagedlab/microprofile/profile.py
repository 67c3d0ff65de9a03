"""The micro-profile of a machine: everything that the constants of its cost model are fitted to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from pagedlab.core.errors import ConfigError
from pagedlab.executor.program import ATTEND, HEAD, PRODUCT
from pagedlab.executor.torch import TorchExecutor
from pagedlab.hardware.calibration.observation import Observation
from pagedlab.interrupts import Interrupts
from pagedlab.microprofile.attention import AttentionAway, decode_cell, fill_cache, prefill_cell
from pagedlab.microprofile.engine import observe_engine
from pagedlab.microprofile.moves import move_cells
from pagedlab.microprofile.products import ProductsAway, product_cells
from pagedlab.microprofile.steps import step_cell
from pagedlab.microprofile.turns import Cell, observe
from pagedlab.run import Lab
from pagedlab.settings import Settings


@dataclass
class ProfileSizes:
    """What is measured, each list in tokens, sequences or blocks; what the model or the pool has no room for is left
    out.

    rows: of products. batches x contexts: decodes; block_sizes: of the attention kernel alone, beside the run's own.
    chunks x cached: prompt chunks. mixed: [decodes, chunks, tokens of each chunk], contexts the middle one of
    `contexts`. moved_blocks: copies and swaps. rounds: each is measured so many times, in turns.
    """

    rows: list[int]
    batches: list[int]
    contexts: list[int]
    block_sizes: list[int]
    chunks: list[int]
    cached: list[int]
    mixed: list[list[int]]
    moved_blocks: list[int]
    rounds: int


Work = tuple[list[int], list[tuple[int, int]]]  # contexts of decodes; (new, cached) of chunks


def measure(
    lab: Lab,
    settings: Settings,
    linears: list[torch.nn.Module],
    sizes: ProfileSizes,
    num_heads: int,
    vocab_size: int,
    interrupts: Interrupts,
) -> list[Observation]:
    """Observations of every kind, on a lab of executor=torch. ConfigError where not enough fits to fit anything."""
    executor, seed = lab.executor, settings.seed
    if not isinstance(executor, TorchExecutor):
        raise ConfigError(f"executor={settings.executor.name}: a profile is of a real model, expected torch")
    room = _Room(settings, executor.num_blocks, lab.max_model_len)
    decodes: list[Work] = [([context] * batch, []) for batch in sizes.batches for context in sizes.contexts]
    chunks: list[Work] = [([], [(new, cached)]) for new in sizes.chunks for cached in sizes.cached]
    middle = sorted(sizes.contexts)[len(sizes.contexts) // 2]
    mixed: list[Work] = [([middle] * batch, [(new, 0)] * count) for batch, count, new in sizes.mixed]
    steps = [step for step in (*decodes, *chunks, *mixed) if room.takes(*step)]
    fill_cache(executor, seed)
    whole = [step_cell(executor, "step", contexts, new, vocab_size, seed) for contexts, new in steps]
    rest = [_without(executor, linears, cell) for cell in whole]
    attention = [
        decode_cell(executor, contexts, size, num_heads, seed)
        for size in sorted({settings.block_size, *sizes.block_sizes})
        for contexts, _ in decodes
        if room.takes(contexts, [], size) and size <= contexts[0] and _knows(executor, size)
    ]
    attention += [
        prefill_cell(executor, new, num_heads, seed)
        for contexts, new in steps
        if new and (not contexts or len(new) > 1)
    ]
    products = product_cells(executor, linears, [m for m in sizes.rows if m <= room.tokens], seed)
    moves = move_cells(executor, [count for count in sizes.moved_blocks if 2 * count <= executor.num_blocks], seed)
    cells = [*products, *attention, *moves, *whole, *rest]
    with torch.inference_mode():
        found = observe(cells, sizes.rounds, seed, executor.device, interrupts.raise_if_requested)
    batches = [batch for batch in sizes.batches if batch <= settings.scheduler.max_num_seqs]
    return found + observe_engine(settings, executor.num_blocks, lab.max_model_len, batches, sizes.rounds)


def _without(executor: TorchExecutor, linears: list[torch.nn.Module], step: Cell) -> Cell:
    """The same step without products and attention."""
    products, attention = ProductsAway(linears), AttentionAway(executor.kernel)
    program = executor.program

    def prepare() -> None:
        step.prepare()
        products.remove()
        attention.remove()
        if program is not None:
            program.leave_out(frozenset({PRODUCT, HEAD, ATTEND}))

    def restore() -> None:
        if program is not None:
            program.leave_out(frozenset())
        attention.restore()
        products.restore()

    return replace(step, operator="rest", prepare=prepare, restore=restore)


class _Room:
    """What a step of this run can hold."""

    def __init__(self, settings: Settings, num_blocks: int, max_model_len: int):
        self.tokens = settings.scheduler.max_num_batched_tokens
        self._sequences = settings.scheduler.max_num_seqs
        self._block_size, self._num_blocks, self._longest = settings.block_size, num_blocks, max_model_len

    def takes(self, contexts: list[int], chunks: list[tuple[int, int]], block_size: int | None = None) -> bool:
        size = block_size or self._block_size
        lengths = [*contexts, *(new + cached for new, cached in chunks)]
        return (
            len(contexts) + sum(new for new, _ in chunks) <= self.tokens
            and len(lengths) <= self._sequences
            and max(lengths) <= self._longest
            and sum(-(-length // size) for length in lengths) <= self._num_blocks * self._block_size // size
        )


def _knows(executor: TorchExecutor, block_size: int) -> bool:
    return executor.kernel.block_sizes is None or block_size in executor.kernel.block_sizes
