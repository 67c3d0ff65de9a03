"""Whether a program computes what the modules compute that it was read off: a step of random tokens through both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from pagedlab.executor.decoder_parts import NoProgram
from pagedlab.executor.inputs import StepInputs
from pagedlab.executor.program import DecodeProgram

_SEQUENCES, _BLOCKS = 3, 4  # and of each
_ROUNDING = {torch.float32: 2.0**-16, torch.bfloat16: 2.0**-6}  # a few, as in optimize.py


def try_program(
    program: DecodeProgram,
    model: PreTrainedModel,
    forward: Callable[[StepInputs], torch.Tensor],
    k_cache: list[torch.Tensor],
    v_cache: list[torch.Tensor],
    rows: int,
    max_model_len: int,
) -> None:
    """NoProgram where they differ by more than a few roundings. forward: logits of a step, by the modules. Each layer
    of both is fed the same, so that no difference grows from layer to layer, and numbers of the size of what the layer
    adds to them, so that none is lost in the rounding of a sum. The caches' first blocks are overwritten, then zero."""
    sequences = min(_SEQUENCES, rows, len(k_cache[0]))
    blocks = min(_BLOCKS, len(k_cache[0]) // sequences)
    random = torch.Generator().manual_seed(0)
    kept = [cache[: sequences * blocks] for cache in (*k_cache, *v_cache)]
    before = [torch.randn(cache.shape, generator=random).to(cache.dtype) for cache in kept]
    step = _step(sequences, blocks, k_cache[0].shape[1], model.config.get_text_config().vocab_size, max_model_len)
    try:
        _fill(kept, before)
        fed, made, logits = _watched(model, forward, step, [])
        program.begin(step)
        if not torch.equal(program.x[:sequences], fed[0]):
            raise NoProgram("the first layer is fed something else than embeddings")
        if not all(torch.equal(x, y) for x, y in zip(fed[1:], made, strict=False)):
            raise NoProgram("something happens between its layers")
        if not _same(program.head(made[-1]).float(), logits.float(), logits):
            raise NoProgram("the head computes something else")
        sizes = [(y.float() - x.float()).pow(2).mean().sqrt() for x, y in zip(fed, made, strict=True)]
        small = [(torch.randn(x.shape, generator=random) * s).to(x.dtype) for x, s in zip(fed, sizes, strict=True)]
        _fill(kept, before)
        fed, made, _ = _watched(model, forward, step, small)
        written = [cache.clone() for cache in kept]
        _fill(kept, before)
        program.begin(step)
        for index, (x, y) in enumerate(zip(fed, made, strict=True)):
            if not _same(program.layer(index, x).float() - x.float(), y.float() - x.float(), y):
                raise NoProgram(f"layer {index} computes something else")
        if not all(_same(a.float(), b.float(), b) for a, b in zip(kept, written, strict=True)):
            raise NoProgram("keys or values differ")
    finally:
        _fill(kept, [torch.zeros_like(cache) for cache in kept])


def _step(sequences: int, blocks: int, block_size: int, vocabulary: int, max_model_len: int) -> StepInputs:
    """One token each of sequences of different lengths, which end in their blocks, at positions that have nothing to do
    with that, one of them the last there is: angles and whatever else depends on a position are seen at far ones."""
    own, dice = np.arange(sequences), np.random.default_rng(0)
    last = np.minimum(blocks * block_size - 1, 1 + 3 * own)
    tables = np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks)
    step = decode_step(dice.integers(vocabulary, size=sequences), last, tables, block_size)
    positions = dice.integers(max_model_len // 2, max_model_len, size=sequences)
    positions[0] = max_model_len - 1
    return replace(step, positions=positions)


def decode_step(
    token_ids: np.ndarray,  # int [S]
    positions: np.ndarray,  # int64 [S]
    block_tables: np.ndarray,  # int32 [S, M]
    block_size: int,
) -> StepInputs:
    """One token each of S sequences."""
    order = np.arange(len(token_ids))
    return StepInputs(
        token_ids=token_ids.astype(np.int32),
        positions=positions,
        slot_mapping=block_tables[order, positions // block_size].astype(np.int64) * block_size
        + positions % block_size,
        query_start=np.arange(len(order) + 1, dtype=np.int32),
        context_lens=(positions + 1).astype(np.int32),
        block_tables=block_tables,
        order=order,
        num_decodes=len(order),
        sampled=order,
        sampled_seqs=order,
    )


def _watched(
    model: PreTrainedModel,
    forward: Callable[[StepInputs], torch.Tensor],
    step: StepInputs,
    instead: list[torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """What each layer was fed and what it made of it, [S, C], and the logits. instead: what layers are to be fed, in
    place of what comes out of the ones before; empty: that."""
    fed: list[torch.Tensor] = []
    made: list[torch.Tensor] = []

    def before(layer: Any, args: Any, kwargs: Any) -> Any:
        own = args[0] if args else kwargs["hidden_states"]
        x = instead[len(fed)][None] if instead else own
        fed.append(x[0].clone())
        return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})

    def after(layer: Any, args: Any, out: Any) -> None:
        made.append((out[0] if isinstance(out, tuple) else out).reshape(fed[-1].shape).clone())

    hooks = []
    for layer in getattr(model, model.base_model_prefix).layers:
        hooks.append(layer.register_forward_pre_hook(before, with_kwargs=True))
        hooks.append(layer.register_forward_hook(after))
    try:
        return fed, made, forward(step).clone()
    finally:
        for hook in hooks:
            hook.remove()


def _same(ours: torch.Tensor, theirs: torch.Tensor, rounded: torch.Tensor) -> bool:
    """Within roundings of the largest number and of what was rounded: a sum that is large rounds as such."""
    rounding = _ROUNDING[rounded.dtype]
    allowed = rounding * (theirs.abs().max() + rounded.float().abs())
    return bool(((ours - theirs).abs() <= allowed).all())


def _fill(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)
