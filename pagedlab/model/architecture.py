"""The matrices of a model, read from its config: what decides how long a step takes, and how large the weights are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagedlab.core.errors import ModelError
from pagedlab.model.shape import ModelShape, number, shape_of, text_fields

_FFN = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts")
_EXPERT_FFN = ("moe_intermediate_size", *_FFN)
# Families with one matrix up and one down; all others have a gate beside the first. They also tie their embeddings
# unless the config says otherwise, which the others do not (transformers' defaults).
_PLAIN_FFN = frozenset(
    [
        "opt",
        "gpt2",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "gpt_bigcode",
        "bloom",
        "falcon",
        "mpt",
        "codegen",
        "phi",
        "starcoder2",
        "xglm",
        "persimmon",
    ]
)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts. count: routed experts of a layer, of which each token asks `per_token`; ffn: the width of
    one. shared_ffn: the width that every token passes besides. dense_layers: the first so many have no experts."""

    count: int
    per_token: int
    ffn: int
    shared_ffn: int
    dense_layers: int


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, section 2.1). kv_rank: numbers of the latent; rope_dim: of the shared
    positional key beside it; q_rank: of the queries' own latent, if any; nope_dim and v_dim: of one head."""

    kv_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int
    q_rank: int | None


@dataclass(frozen=True, slots=True)
class Architecture:
    """shape: what decides the KV cache. ffn: width of a dense feed-forward layer. gated: whether that has a gate.
    tied: whether the output head is the embedding."""

    shape: ModelShape
    ffn: int
    gated: bool
    tied: bool
    experts: Experts | None
    latent: Latent | None

    def attention_parameters(self) -> int:
        """Weights of one attention layer, biases and norms left out."""
        s, l = self.shape, self.latent  # noqa: E741
        if l is None:
            return s.hidden_size * s.head_dim * (2 * s.num_heads + 2 * s.num_kv_heads)
        queries = s.num_heads * (l.nope_dim + l.rope_dim)
        q = s.hidden_size * queries if l.q_rank is None else l.q_rank * (s.hidden_size + queries)
        kv = s.hidden_size * (l.kv_rank + l.rope_dim) + l.kv_rank * s.num_heads * (l.nope_dim + l.v_dim)
        return q + kv + s.num_heads * l.v_dim * s.hidden_size

    def ffn_parameters(self, width: int) -> int:
        """Weights of one feed-forward layer, or one expert, of that width."""
        return (3 if self.gated else 2) * self.shape.hidden_size * width

    def parameters(self) -> int:
        """Weights of the model: attention, feed-forward, experts and routers, embeddings and head; norms, biases and
        learned positions (below 1 %) left out."""
        s, e = self.shape, self.experts
        embeddings = s.hidden_size * s.vocab_size * (1 if self.tied else 2)
        dense = s.num_layers if e is None else e.dense_layers
        total = embeddings + s.num_layers * self.attention_parameters() + dense * self.ffn_parameters(self.ffn)
        if e is not None:
            sparse = e.count * self.ffn_parameters(e.ffn) + self.ffn_parameters(e.shared_ffn)
            total += (s.num_layers - dense) * (sparse + s.hidden_size * e.count)
        return total


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a transformers `config` describes. ModelError names the field that is missing or cannot
    be."""
    fields = text_fields(config)
    shape = shape_of(config, latent_attention=True)
    plain = fields.get("model_type") in _PLAIN_FFN
    tied = fields.get("tie_word_embeddings")
    if tied is not None and not isinstance(tied, bool):
        raise ModelError(f"config: tie_word_embeddings={tied!r}, expected true or false")
    return Architecture(
        shape=shape,
        ffn=_optional(fields, _FFN) or 4 * shape.hidden_size,  # GPT-2's rule, where the config has no width
        gated=not plain,
        tied=plain if tied is None else tied,
        experts=_experts(fields, shape.num_layers),
        latent=_latent(fields),
    )


def _experts(fields: Mapping[str, Any], layers: int) -> Experts | None:
    count = _optional(fields, _EXPERTS)
    if count is None or count == 1:
        return None
    per_token, ffn = number(fields, ("num_experts_per_tok",)), number(fields, _EXPERT_FFN)
    if per_token > count:
        raise ModelError(f"config: num_experts_per_tok={per_token}, expected at most the {count} experts")
    shared = (_optional(fields, ("n_shared_experts",)) or 0) * ffn
    return Experts(
        count=count,
        per_token=per_token,
        ffn=ffn,
        shared_ffn=_optional(fields, ("shared_expert_intermediate_size",)) or shared,
        dense_layers=min(_optional(fields, ("first_k_dense_replace",)) or 0, layers),
    )


def _latent(fields: Mapping[str, Any]) -> Latent | None:
    if fields.get("kv_lora_rank") is None:
        return None
    return Latent(
        kv_rank=number(fields, ("kv_lora_rank",)),
        rope_dim=number(fields, ("qk_rope_head_dim",)),
        nope_dim=number(fields, ("qk_nope_head_dim",)),
        v_dim=number(fields, ("v_head_dim",)),
        q_rank=_optional(fields, ("q_lora_rank",)),
    )


def _optional(fields: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The number under the first of these names that is there and not 0; None where there is none."""
    there = tuple(name for name in names if fields.get(name) not in (None, 0))
    return number(fields, there) if there else None
