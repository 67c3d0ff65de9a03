"""What a decoder of Llama's kind is made of, read off the modules that `optimize.py` has put into a model: what
`program.py` makes a program of."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from pagedlab.executor.fused import FusedNorm, GatedFeedForward, rotates_halves
from pagedlab.executor.packed import PackedLinear, Part
from pagedlab.kernels.product import Product

Kind = TypeVar("Kind", bound=nn.Module)

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}


class NoProgram(Exception):
    """Why a model's decode steps go through its modules, in words."""


@dataclass(slots=True)
class LayerParts:
    """x + out(attention(rotated qkv(before(x)))), then y + down(gate(gate_up(after(y)))). scale: of the scores."""

    before: FusedNorm
    qkv: Product
    out: Product
    after: FusedNorm
    gate_up: Product
    down: Product
    scale: float


@dataclass(slots=True)
class DecoderParts:
    """hidden: C, heads: H, inner: of a feed-forward layer. rotary(x, positions [1, T]) gives cos and sin [1, T, D]."""

    embedding: nn.Embedding
    rotary: nn.Module
    layers: list[LayerParts]
    norm: FusedNorm
    head: Product
    hidden: int
    heads: int
    inner: int


def decoder_parts(model: PreTrainedModel, kv_heads: int, dim: int) -> DecoderParts:
    """NoProgram where the model has other parts. What each computes is for a trial to show."""
    base = getattr(model, model.base_model_prefix, None)
    rotary = _of(nn.Module, base, "rotary_emb")
    if list(inspect.signature(rotary.forward).parameters) != ["x", "position_ids"]:
        raise NoProgram(f"{type(rotary).__name__} asks for more than positions")
    layers = list(_of(nn.ModuleList, base, "layers"))
    head = _of(PackedLinear, model, "lm_head").product
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding) or embedding.weight.dtype is not model.dtype:
        raise NoProgram(f"{type(embedding).__name__} embeds its tokens")
    parts = [_layer(layer, head.in_features) for layer in layers]
    heads = parts[0].out.in_features // dim
    inner = parts[0].down.in_features
    hidden = head.in_features
    shapes = (heads + 2 * kv_heads) * dim, hidden, heads * dim, 2 * inner, hidden, inner, hidden, hidden, hidden
    for part in parts:
        found = (
            *(part.qkv.out_features, part.qkv.in_features, part.out.in_features),
            *(part.gate_up.out_features, part.gate_up.in_features, part.down.in_features, part.down.out_features),
            *(len(part.before.weight), len(part.after.weight)),
        )
        if found != shapes or dim % 2 or heads % kv_heads:
            raise NoProgram(f"{type(layers[0]).__name__}s of several shapes")
    norm = _of(FusedNorm, base, "norm")
    return DecoderParts(embedding, rotary, parts, norm, head, head.in_features, heads, inner)


def _layer(layer: nn.Module, hidden: int) -> LayerParts:
    if (found := _children(layer)) != _LAYER:
        raise NoProgram(f"{type(layer).__name__} has other parts ({', '.join(sorted(found ^ _LAYER))})")
    attention, mlp = _of(nn.Module, layer, "self_attn"), _of(GatedFeedForward, layer, "mlp")
    if (found := _children(attention)) != _ATTENTION:
        raise NoProgram(f"{type(attention).__name__} has other parts ({', '.join(sorted(found ^ _ATTENTION))})")
    whole = _of(Part, attention, "q_proj").whole
    scale = getattr(attention, "scaling", None)
    if not isinstance(scale, float) or not rotates_halves(attention) or not isinstance(whole, PackedLinear):
        raise NoProgram(f"{type(attention).__name__} is of an unknown kind")
    qkv, out = whole.product, _of(PackedLinear, attention, "o_proj").product
    gate_up, down = _of(PackedLinear, mlp, "gate_up").product, _of(PackedLinear, mlp, "down").product
    # Rows as long in memory as they are, so that one product can read and add to what another wrote.
    if any(p.columns != hidden for p in (out, down)) or any(p.padded for p in (qkv, out, gate_up, down)):
        raise NoProgram(f"{type(layer).__name__}'s sizes are not multiples of a vector's")
    before, after = (_of(FusedNorm, layer, name) for name in ("input_layernorm", "post_attention_layernorm"))
    return LayerParts(before, qkv, out, after, gate_up, down, scale)


def _children(module: nn.Module) -> set[str]:
    """Names of those that hold weights or compute with them."""
    return {name for name, child in module.named_children() if name != "rotary_emb" or list(child.parameters())}


def _of(kind: type[Kind], owner: Any, name: str) -> Kind:
    found = getattr(owner, name, None)
    if not isinstance(found, kind):
        what = "nothing" if found is None else type(found).__name__
        raise NoProgram(f"{type(owner).__name__}.{name} is {what}")
    return found
