"""Whether a program computes what the modules compute that it was read off: a step of random tokens through both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from pagedlab.executor.decoder_parts import NoProgram
from pagedlab.executor.inputs import StepInputs
from pagedlab.executor.program import DecodeProgram

_SEQUENCES = 3
_ROUNDING = {torch.float32: 2.0**-16, torch.bfloat16: 2.0**-6}  # a few, as in optimize.py


def try_program(
    program: DecodeProgram,
    model: PreTrainedModel,
    forward: Callable[[StepInputs], torch.Tensor],
    k_cache: list[torch.Tensor],
    v_cache: list[torch.Tensor],
    rows: int,
) -> None:
    """NoProgram where they differ by more than a few roundings. forward: logits of a step, by the modules. Each layer
    is fed what the model's own layer was fed, so that no difference grows from layer to layer. The caches' first
    blocks are overwritten, then zero."""
    sequences = min(_SEQUENCES, rows, len(k_cache[0]))
    random = torch.Generator().manual_seed(0)
    kept = [cache[:sequences] for cache in (*k_cache, *v_cache)]
    before = [torch.randn(cache.shape, generator=random).to(cache.dtype) for cache in kept]
    own = np.arange(sequences)  # of different lengths, each in a block of its own
    block_size = k_cache[0].shape[1]
    tokens = np.random.default_rng(0).integers(model.config.get_text_config().vocab_size, size=sequences)
    step = decode_step(tokens, own * 2 % block_size, own.astype(np.int32)[:, None], block_size)
    try:
        _fill(kept, before)
        fed, made, logits = _watched(model, forward, step)
        written = [cache.clone() for cache in kept]
        _fill(kept, before)
        program.begin(step)
        if not torch.equal(program.x[:sequences], fed[0]):
            raise NoProgram("the first layer is fed something else than embeddings")
        for index, (x, y) in enumerate(zip(fed, made, strict=True)):
            if not _same(program.layer(index, x).float() - x.float(), y.float() - x.float(), y):
                raise NoProgram(f"layer {index} computes something else")
        if not all(_same(a.float(), b.float(), b) for a, b in zip(kept, written, strict=True)):
            raise NoProgram("keys or values differ")
        if not _same(program.head(made[-1]).float(), logits.float(), logits):
            raise NoProgram("the head computes something else")
    finally:
        _fill(kept, [torch.zeros_like(cache) for cache in kept])


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
    model: PreTrainedModel, forward: Callable[[StepInputs], torch.Tensor], step: StepInputs
) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """What each layer was fed and what it made of it, [S, C], and the logits."""
    fed: list[torch.Tensor] = []
    made: list[torch.Tensor] = []

    def watch(layer: Any, args: Any, kwargs: Any, out: Any) -> None:
        fed.append((args[0] if args else kwargs["hidden_states"])[0].clone())
        made.append((out[0] if isinstance(out, tuple) else out).reshape(fed[-1].shape).clone())

    layers = getattr(model, model.base_model_prefix).layers
    hooks = [layer.register_forward_hook(watch, with_kwargs=True) for layer in layers]
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
